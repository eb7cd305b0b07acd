"""Colours and marks that tell the series of a chart apart, on light and dark backgrounds."""

from __future__ import annotations

COLOURS = {
    "light": (
        "#1f6fc4", "#c8501e", "#2b8a4b", "#8b4bb8", "#a87b00", "#c2387a", "#157f8a", "#5d6670",
    ),
    "dark": (
        "#6cb0ff", "#ff9a62", "#6fd08c", "#cf9bf2", "#e6bf4f", "#ff8dbb", "#58cdd8", "#aab4be",
    ),
}  # fmt: skip
# SVG paths of marks of equal size, centred on (0, 0).
MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.8L4.4 3.4H-4.4z",
    "M0-5.2L4.4 0 0 5.2-4.4 0z",
    "M0 4.8L4.4-3.4H-4.4z",
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "M-4.4 0L-2.2-4H2.2L4.4 0 2.2 4H-2.2z",
)
