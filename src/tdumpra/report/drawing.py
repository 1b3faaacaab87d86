"""A chart as a thing: a figure, what it says in words, and its numbers. It comes out as SVG, PNG or CSV.

An SVG takes its colours from the page it stands in: what is drawn in a colour of :data:`COLOURS` comes out as
``var(--name)``, so that one chart serves light pages, dark ones and paper. Matplotlib is loaded when the first
figure is made, and only then.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from tdumpra.artifacts import write_bytes
from tdumpra.errors import MissingExtraError

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
    """A drawn figure, its words for who cannot see it, and its numbers for who wants to draw another."""

    figure: Figure
    alt: str
    rows: Sequence[Mapping[str, Any]]

    def svg(self) -> str:
        """Markup to stand inside a page, in the page's own colours."""
        import matplotlib

        buffer = io.StringIO()
        with matplotlib.rc_context(_STYLE):
            self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        return _inline(buffer.getvalue(), self.alt)

    def write_png(self, path: Path) -> None:
        """A picture on white."""
        import matplotlib

        buffer = io.BytesIO()
        with matplotlib.rc_context(_STYLE):
            self.figure.savefig(
                buffer, format="png", dpi=_DOTS_PER_INCH, facecolor=COLOURS["card"], metadata={"Software": None}
            )
        write_bytes(path, buffer.getvalue())

    def csv(self) -> str:
        """The numbers; an undefined one is empty."""
        return csv_text(self.rows)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under the names of all their keys; a key that a row lacks, or whose value is ``None``, is empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    table = csv.DictWriter(buffer, names, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(
        {name: "" if value is None or value != value else value for name, value in row.items()} for row in rows
    )
    return buffer.getvalue()


def styled(draw: Callable[P, Chart]) -> Callable[P, Chart]:
    """A function that draws, in the house's style; elsewhere matplotlib stays as it was."""

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
    """An empty figure, in inches. No pyplot: nothing global, no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _inline(svg: str, alt: str) -> str:
    """Matplotlib's file as an element of a page: no header, no size of its own, no fixed colour, no repeated ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)  # what nothing refers to, and every figure has
    svg = re.sub(r"font-family: [^;\"]+; ", "", svg)  # the page's own
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    words = escape(alt)
    opening = re.match(r"<svg[^>]*>", svg)
    box = re.search(r'viewBox="[^"]+"', svg)
    if opening is None or box is None:
        raise ValueError("matplotlib wrote no SVG element")
    start = f'<svg {box[0]} role="img" aria-label="{words}">'
    return f"{start}<title>{words}</title>{svg[opening.end() :].strip()}"
