"""Colours, patterns and marks of drawings, light and dark; patterns and marks need no colour."""

from __future__ import annotations

from typing import Literal

from cost_models.package_files import text


def sheet(name: str) -> str:
    """A style sheet beside this module, from a line of its own on."""
    return "\n" + text("planner.presentation.drawing", f"{name}.css")


Theme = Literal["auto", "light", "dark"]
Mode = Literal["light", "dark"]

# Fills are light on a light page and dark on a dark one, so one text colour is readable on all;
# s0 to s7 tell the series of a chart apart.
_COLOURS = {  # light, dark
    "page": ("#ffffff", "#14181d"),
    "ink": ("#1c2128", "#eef1f4"),
    "quiet": ("#57606a", "#a2adb8"),
    "grid": ("#dde2e8", "#2c333b"),
    "idle": ("#f0f2f5", "#20262d"),
    "F": ("#9cc4f5", "#2b5c99"),
    "B": ("#93d3a2", "#27703f"),
    "I": ("#f5cf7d", "#85620f"),
    "W": ("#dcaee6", "#75407f"),
    "C": ("#d1453b", "#ff7b72"),
    "memory": ("#8a94a0", "#76818d"),
    "s0": ("#1f6fc4", "#6cb0ff"),
    "s1": ("#c8501e", "#ff9a62"),
    "s2": ("#2b8a4b", "#6fd08c"),
    "s3": ("#8b4bb8", "#cf9bf2"),
    "s4": ("#a87b00", "#e6bf4f"),
    "s5": ("#c2387a", "#ff8dbb"),
    "s6": ("#157f8a", "#58cdd8"),
    "s7": ("#5d6670", "#aab4be"),
}
COLOURS: dict[Mode, dict[str, str]] = {
    "light": {name: light for name, (light, _) in _COLOURS.items()},
    "dark": {name: dark for name, (_, dark) in _COLOURS.items()},
}

SERIES = 8
# Paths of marks of equal size, centred on (0, 0).
MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.8L4.4 3.4H-4.4z",
    "M0-5.2L4.4 0 0 5.2-4.4 0z",
    "M0 4.8L4.4-3.4H-4.4z",
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "M-4.4 0L-2.2-4H2.2L4.4 0 2.2 4H-2.2z",
)

# A pattern for each kind besides its colour: stripes, dots, lines; forward has none.
SIGNS = {
    "B": "M-1 7L7-1M-1 1L1-1M5 7L7 5",
    "I": "M1.5 1.5h.01M4.5 4.5h.01",
    "W": "M0 1.5h6M0 4.5h6",
    "C": "M-1-1L7 7M-1 5L1 7M5-1L7 1",
}
PATTERNS = "".join(
    f'<pattern id="tl-{kind}" width="6" height="6" patternUnits="userSpaceOnUse">'
    f'<rect class="{kind}-ground" width="6" height="6"/><path class="sign" d="{path}"/></pattern>'
    for kind, path in SIGNS.items()
)

_RULES = sheet("timeline")

STYLE = _RULES + "".join(
    f".timeline .{kind}{{fill:url(#tl-{kind})}}"
    f".timeline .{kind}-ground{{fill:{'none' if kind == 'C' else f'var(--{kind})'}}}\n"
    for kind in SIGNS
)


def colours(theme: Theme, of: str = ".timeline") -> str:
    """The style sheet that sets a theme's colours on the elements that match the selector `of`."""
    if theme != "auto":
        return _sheet(theme, of)
    dark = _sheet("dark", of)
    return f"{_sheet('light', of)}@media (prefers-color-scheme:dark){{{dark}}}"


def _sheet(mode: Mode, of: str) -> str:
    values = ";".join(f"--{name}:{colour}" for name, colour in COLOURS[mode].items())
    return f"{of}{{color-scheme:{mode};{values}}}"
