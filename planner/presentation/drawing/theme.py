"""Colours, patterns and marks of drawings, light and dark; patterns and marks need no colour.

The page has the same colours in web/tabs/tabs.css; a browser test compares the two.
"""

from __future__ import annotations

from typing import Literal

from cost_models.package_files import table, text


def sheet(name: str) -> str:
    """A style sheet beside this module, from a line of its own on."""
    return "\n" + text("planner.presentation.drawing", f"{name}.css")


Theme = Literal["auto", "light", "dark"]
Mode = Literal["light", "dark"]

_TABLE = table("planner.presentation.drawing", "theme.json")
# By name: light, dark.  Fills are light on a light page and dark on a dark one, so one text colour
# is readable on all; s0 to s7 tell the series of a chart apart.
_COLOURS: dict[str, tuple[str, str]] = _TABLE["colours"]
COLOURS: dict[Mode, dict[str, str]] = {
    "light": {name: light for name, (light, _) in _COLOURS.items()},
    "dark": {name: dark for name, (_, dark) in _COLOURS.items()},
}

SERIES = 8
# Paths of marks of equal size, centred on (0, 0).
MARKS: tuple[str, ...] = _TABLE["marks"]

# A pattern for each kind besides its colour: stripes, dots, lines; forward has none.
SIGNS: dict[str, str] = _TABLE["signs"]
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
