"""Figures for papers as PNG, PDF or SVG, drawn by matplotlib (the extra `plot`).

A figure is as wide as a page's text, so it needs no scaling there; fonts are embedded.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from planner.drawing.png import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Kind = Literal["png", "pdf", "svg"]
WIDE_INCH = 7.0
MARKERS = ("o", "s", "^", "D", "v", "P", "H", "X", "<", ">", "p", "*")
# Any, since the type of the setting names is matplotlib's, and matplotlib is imported lazily.
_STYLE: Any = {
    "font.family": "DejaVu Sans", "font.size": 8, "axes.titlesize": 9, "axes.labelsize": 8,
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.6, "grid.color": "#dde2e8", "grid.linewidth": 0.5, "axes.axisbelow": True,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "legend.fontsize": 7, "legend.frameon": False, "lines.linewidth": 1.0, "hatch.linewidth": 0.5,
    "pdf.fonttype": 42, "svg.fonttype": "path", "savefig.dpi": 300, "text.parse_math": False,
    "svg.hashsalt": "planner",
}  # fmt: skip
# No creation date, so that the same answer gives the same file.
_UNDATED: dict[Kind, dict[str, None]] = {
    "png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None},
}  # fmt: skip


@contextmanager
def styled_figure(high_inch: float) -> Iterator[Figure]:
    """An empty figure in the common style.  Raises RequestError if matplotlib is missing."""
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(WIDE_INCH, high_inch), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def saved(figure: Figure, kind: Kind) -> bytes:
    """The figure as the bytes of a file."""
    page = io.BytesIO()
    figure.savefig(page, format=kind, metadata=_UNDATED[kind])
    return page.getvalue()


def log_ticks(axis: Axis, words: Callable[[float], str]) -> None:
    """Put ticks at 1, 2 and 5 of each decade; more of them if the axis spans less than one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high > 8 * low else (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
