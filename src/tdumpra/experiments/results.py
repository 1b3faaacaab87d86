"""A table of results, and its four written forms: CSV, JSON, Markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdumpra.artifacts import jsonable
from tdumpra.evaluation.metrics_table import HEADINGS
from tdumpra.evaluation.over_seeds import Figure, mean_and_deviation
from tdumpra.evaluation.undefined import in_words
from tdumpra.screen import csv_text
from tdumpra.writing import write_bytes

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
    "Δ": r"$\Delta$", "θ": r"$\theta$", "β": r"$\beta$", "κ": r"$\kappa$", "τ": r"$\tau$", "α": r"$\alpha$",
    "λ": r"$\lambda$", "≤": r"$\le$", "×": r"$\times$", "–": "--",
}  # fmt: skip


Value = Figure | str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """Rows of values under headings, with a title and what a reader must know."""

    title: str
    columns: Mapping[str, str]  # key to heading
    rows: Sequence[Mapping[str, Value]]  # by key; one that is left out is an empty cell
    notes: Sequence[str] = ()
    screen: Sequence[str] = ()  # the columns that fit on a screen; all if left out
    made_from: str = ""  # a name for what the figures were made from

    def to_csv(self) -> str:
        """Plain numbers; a column whose figures have a deviation gets a second one for it."""
        spread = {key for key in self.columns if any(_std(row.get(key)) is not None for row in self.rows)}
        header = [name for key in self.columns for name in ([key, f"{key}_std"] if key in spread else [key])]
        lines: list[list[Any]] = [header]
        for row in self.rows:
            cells: list[Any] = []
            for key in self.columns:
                value = row.get(key)
                plain = value.mean if isinstance(value, Figure) else value
                cells += [plain, _std(value)] if key in spread else [plain]
            lines.append(["" if cell is None else cell for cell in cells])
        return csv_text(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain values, figures as mean and std."""
        rows = [
            {key: value._asdict() if isinstance(value, Figure) else value for key, value in row.items()}
            for row in self.rows
        ]
        return {
            "title": self.title,
            "columns": dict(self.columns),
            "rows": rows,
            "notes": list(self.notes),
            "made_from": self.made_from,
        }

    def to_markdown(self) -> str:
        """A heading, the table, and the notes below it."""
        lines = [f"## {self.title}", "", _bars(self.columns.values()), _bars("---" for _ in self.columns)]
        lines += [_bars(_text(row.get(key)) for key in self.columns) for row in self.rows]
        lines += ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """A ``table`` for the package booktabs."""
        body = [" & ".join(_escaped(_text(row.get(key))) for key in self.columns) + r" \\" for row in self.rows]
        lines = [
            r"\begin{table}[t]", r"\centering", rf"\caption{{{_escaped(self.title)}}}",
            rf"\begin{{tabular}}{{l{'c' * (len(self.columns) - 1)}}}", r"\toprule",
            " & ".join(map(_escaped, self.columns.values())) + r" \\", r"\midrule", *body, r"\bottomrule",
            r"\end{tabular}", *(rf"\par\footnotesize {_escaped(note)}" for note in self.notes), r"\end{table}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _forms(self) -> dict[str, str]:
        return {
            "csv": self.to_csv(),
            "json": json.dumps(jsonable(self.to_json()), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
            "md": self.to_markdown(),
            "tex": self.to_latex(),
        }

    def write(self, folder: Path, stem: str) -> list[Path]:
        """Write all four forms, each atomically."""
        paths = []
        for suffix, text in self._forms().items():
            paths.append(folder / f"{stem}.{suffix}")
            write_bytes(paths[-1], text.encode())
        return paths

    def is_written(self, folder: Path, stem: str) -> bool:
        """Return whether all four forms are there as they would be written."""
        forms = ((folder / f"{stem}.{suffix}", text.encode()) for suffix, text in self._forms().items())
        return all(path.exists() and path.read_bytes() == text for path, text in forms)


def with_means(rows: Sequence[Mapping[str, Value]], *, own: Sequence[str] = ()) -> list[Mapping[str, Value]]:
    """Return rows of models (``run``) and seeds with the means over seeds below those of each model.

    The rows of a model's seeds correspond in their order. ``own`` are values that each seed has of its own: they have
    no mean where they differ.
    """
    found: list[Mapping[str, Value]] = []
    for run in dict.fromkeys(row["run"] for row in rows):
        by_seed: dict[Value, list[Mapping[str, Value]]] = {}
        for row in rows:
            if row["run"] == run:
                by_seed.setdefault(row["seed"], []).append(row)
                found.append(row)
        if len(by_seed) > 1 and len(set(map(len, by_seed.values()))) == 1:
            found += [_mean_row(of_seeds, own) for of_seeds in zip(*by_seed.values(), strict=True)]
    return found


def _mean_row(of_seeds: Sequence[Mapping[str, Value]], own: Sequence[str]) -> dict[str, Value]:
    def mean(name: str) -> Value:
        values = [row[name] for row in of_seeds]
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(set(values)) == 1 and (name in own or not isinstance(values[0], float)):
            return values[0]
        if name in own:
            return None
        return mean_and_deviation(numbers if len(numbers) == len(values) else [None])

    return {**{name: mean(name) for name in of_seeds[0]}, "seed": "mean"}


def comparator_table(name: str, evaluation: Mapping[str, Any]) -> ResultTable:
    """All comparators, with intervals (one seed) or deviations (several)."""
    std, intervals = evaluation.get("comparators_std", {}), evaluation.get("intervals", {})
    rows: list[dict[str, Value]] = []
    for comparator, scores in evaluation["comparators"].items():
        row: dict[str, Value] = {"comparator": comparator}
        for metric in HEADINGS:
            spread = None if comparator not in std else std[comparator][metric]
            row[metric] = mean_and_deviation([scores[metric]])._replace(std=spread)
            low, high = intervals.get(comparator, {}).get(metric, (None, None))
            row[f"{metric}_interval"] = None if low is None else f"{low:.4f} to {high:.4f}"
        rows.append(row)
    shown = {key: heading for metric, heading in HEADINGS.items() for key, heading in
             ((metric, heading), *([(f"{metric}_interval", "95 %")] if intervals else []))}  # fmt: skip
    rows_of = evaluation["rows"]
    title = f"{name}: {rows_of['test']:,} test rows, seeds {', '.join(map(str, evaluation['seeds']))}"
    folds = next(iter(evaluation.get("by_seed", {}).values()), evaluation).get("folds", ())
    if len(folds) > 1:
        title += f", {len(folds)} outer folds"
    notes = [evaluation["tuning"], *evaluation.get("notes", [])]
    if "retrieval_worth" in evaluation:
        notes.append(evaluation["retrieval_worth"]["sentence"])
    notes += undefined_notes(evaluation["undefined"])
    columns = {"comparator": "Comparator", **shown}
    by_seed = evaluation.get("by_seed", {"": evaluation})
    made_from = " ".join(each.get("made_from", "") for each in by_seed.values())
    screen = ("comparator", *HEADINGS)
    return ResultTable(title=title, columns=columns, rows=rows, notes=notes, screen=screen, made_from=made_from)


def undefined_notes(undefined: Sequence[Mapping[str, str]]) -> list[str]:
    """A sentence for each reason why something is undefined, with an example."""
    reasons = dict.fromkeys(each["reason"] for each in undefined)
    places = {reason: [each["where"] for each in undefined if each["reason"] == reason] for reason in reasons}
    return [
        f"Undefined: {in_words(where[0])}{f', and {len(where) - 1} more' if len(where) > 1 else ''} ({reason})."
        for reason, where in places.items()
    ]


def _std(value: Value) -> float | None:
    return value.std if isinstance(value, Figure) else None


def _text(value: Value) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _bars(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
