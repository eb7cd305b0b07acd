"""Figures for papers, drawn by matplotlib, which is the extra `plot`: as PNG, PDF or SVG.

As wide as the text of a page, so that letters keep their size there; fonts go into the file.
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
# Any: the names of settings are a type of matplotlib, which is imported late.
_STYLE: Any = {
    "font.family": "DejaVu Sans", "font.size": 8, "axes.titlesize": 9, "axes.labelsize": 8,
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.6, "grid.color": "#dde2e8", "grid.linewidth": 0.5, "axes.axisbelow": True,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "legend.fontsize": 7, "legend.frameon": False, "lines.linewidth": 1.0, "hatch.linewidth": 0.5,
    "pdf.fonttype": 42, "svg.fonttype": "path", "savefig.dpi": 300, "text.parse_math": False,
    "svg.hashsalt": "planner",
}  # fmt: skip
# Without the hour in it the same answer makes the same file.
_UNDATED: dict[Kind, dict[str, None]] = {
    "png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None},
}  # fmt: skip


@contextmanager
def styled_figure(high_inch: float) -> Iterator[Figure]:
    """A figure to draw on, in the style of all.  RequestError where matplotlib is missing."""
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(WIDE_INCH, high_inch), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def saved(figure: Figure, kind: Kind) -> bytes:
    """The file of a figure."""
    page = io.BytesIO()
    figure.savefig(page, format=kind, metadata=_UNDATED[kind])
    return page.getvalue()


def log_ticks(axis: Axis, words: Callable[[float], str]) -> None:
    """Mark a logarithmic axis at 1, 2 and 5; where it spans less than a decade, more often."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high > 8 * low else (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
