"""A chart: a figure, its description in words, and its numbers, written as SVG, PNG, PDF or CSV.

An SVG takes its colours from the page around it: a colour of :data:`COLOURS` becomes ``var(--name)``, so that one
chart serves light pages, dark pages and paper. Matplotlib is loaded only when the first figure is made.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from tdumpra import screen
from tdumpra.errors import MissingExtraError
from tdumpra.writing import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")

# The pages' light colours. c0 to c7 stay apart for colour-blind readers, and each has its contrast to the page.
COLOURS = {
    "card": "#ffffff", "ink": "#16202a", "muted": "#566370", "line": "#d7dee5", "accent": "#0a5c8f",
    "good": "#00694e", "bad": "#a5350b",
    "c0": "#015692", "c1": "#c58609", "c2": "#089d66", "c3": "#c42f17", "c4": "#3484d9", "c5": "#a65d84",
    "c6": "#496d17", "c7": "#54486a",
}  # fmt: skip
_DOTS_PER_INCH = 160
_LETTERS_PER_INCH = 11  # of a title
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable, and in the reader's font
    "svg.hashsalt": "tdumpra",  # the same figure is the same bytes
    "font.size": 8.5, "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.labelsize": 8.5, "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False,
    "text.color": COLOURS["ink"], "axes.labelcolor": COLOURS["muted"], "axes.titlecolor": COLOURS["ink"],
    "xtick.color": COLOURS["muted"], "ytick.color": COLOURS["muted"], "axes.edgecolor": COLOURS["line"],
    "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none", "grid.color": COLOURS["line"],
    "grid.linewidth": 0.6, "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "xtick.major.size": 0, "ytick.major.size": 0, "lines.linewidth": 1.6,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """A drawn figure, its description for readers who cannot see it, and its numbers."""

    figure: Figure
    alt: str
    rows: Sequence[Mapping[str, Any]]

    def svg(self) -> str:
        """Return markup to place inside a page, in the page's own colours."""
        return _inline(self._saved("svg", metadata={"Date": None}).decode(), self.alt)

    def write_png(self, path: Path) -> None:
        """Write a picture on white."""
        white = COLOURS["card"]
        write_bytes(path, self._saved("png", dpi=_DOTS_PER_INCH, facecolor=white, metadata={"Software": None}))

    def write_pdf(self, path: Path) -> None:
        """Write a PDF on white."""
        write_bytes(path, self._saved("pdf", facecolor=COLOURS["card"], metadata={"CreationDate": None}))

    def _saved(
        self, kind: str, *, metadata: dict[str, Any], dpi: float | None = None, facecolor: str = "none"
    ) -> bytes:
        """Draw once: ``savefig`` would draw everything a first time for the layout, which drawing sets anyway."""
        import matplotlib
        from matplotlib.backend_bases import get_registered_canvas_class

        buffer, figure = io.BytesIO(), self.figure
        before = figure.dpi, figure.get_facecolor()
        with matplotlib.rc_context(_STYLE):
            try:
                figure.set_dpi(dpi or figure.dpi)
                figure.set_facecolor(facecolor)
                getattr(get_registered_canvas_class(kind)(figure), f"print_{kind}")(buffer, metadata=metadata)
            finally:
                figure.set_dpi(before[0])
                figure.set_facecolor(before[1])
        return buffer.getvalue()


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV under the names of all their keys; a missing or undefined value is empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = ([row.get(name) for name in names] for row in rows)
    return screen.csv_text(
        [names, *(["" if value is None or value != value else value for value in row] for row in cells)]
    )


def styled(draw: Callable[P, Chart]) -> Callable[P, Chart]:
    """Let a function draw in the style of the pages; matplotlib's own settings stay as they are."""

    @wraps(draw)
    def in_style(*arguments: P.args, **options: P.kwargs) -> Chart:
        try:
            import matplotlib.figure
        except ImportError as error:
            raise MissingExtraError("matplotlib", "report", "drawing figures") from error
        with matplotlib.rc_context(_STYLE):
            return draw(*arguments, **options)

    return in_style


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches. It needs no pyplot, no global state and no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def set_title(figure: Figure, title: str) -> None:
    """Write a title above all panels, in as many lines as the figure's width needs."""
    if title:
        lines = textwrap.fill(title, int(_LETTERS_PER_INCH * figure.get_figwidth()))
        figure.suptitle(lines, x=0.01, horizontalalignment="left", fontsize=9, fontweight="bold")


def _inline(svg: str, alt: str) -> str:
    """Turn Matplotlib's file into an element of a page: no header, size, fixed colour or repeated id."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)  # nothing refers to them, and every figure has the same ones
    svg = re.sub(r"font-family: [^;\"]+; ", "", svg)  # use the page's
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    words = escape(alt)
    opening = re.match(r"<svg[^>]*>", svg)
    box = re.search(r'viewBox="[^"]+"', svg)
    if opening is None or box is None:
        raise ValueError("matplotlib wrote no SVG element")
    start = f'<svg {box[0]} role="img" aria-label="{words}">'
    return f"{start}<title>{words}</title>{svg[opening.end() :].strip()}"
