"""Validate a finished model on data from elsewhere: figures where there are labels, shift in any case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tdumpra import __version__
from tdumpra.core import metrics
from tdumpra.errors import TdumpraError, nearest
from tdumpra.evaluation.case import Case
from tdumpra.evaluation.comparators import COMPARATORS
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.evaluation.metrics_table import METRICS
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.evaluation.story import gate_story
from tdumpra.method.decision import Decision
from tdumpra.method.outputs import TestOutputs, ValidationOutputs
from tdumpra.method.record import Record
from tdumpra.method.rows import KeptRows
from tdumpra.models.local_rows import LocalRows
from tdumpra.models.opened import OpenedModel
from tdumpra.models.shift import Seen, look, shift

KIND, SCHEMA = "validation", 1
_SHOWN = ("student", "similarity", "gate")  # of the comparators: what needs no fit of its own
_MOST_VALUES = 12  # of a column that is taken for subgroups


class Floor(NamedTuple):
    """A metric that must reach a value."""

    metric: str
    least: float


def parse_floors(texts: Sequence[str]) -> tuple[Floor, ...]:
    """Read ``METRIC=VALUE``, as ``--fail-under`` takes it."""
    rising = [name for name in metrics.METRICS if not METRICS[name].lower_is_better]
    floors = []
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if name not in metrics.METRICS:
            raise ValueError(f"--fail-under names {name!r}{nearest(name, rising)}; it takes {', '.join(rising)}")
        if name not in rising:
            raise ValueError(f"--fail-under {name}: less is better there; it takes {', '.join(rising)}")
        try:
            floors.append(Floor(name, float(value)))
        except ValueError:
            raise ValueError(f"--fail-under takes METRIC=VALUE, as in  {name}=0.7,  not {text!r}") from None
        if not 0 <= floors[-1].least <= 1:
            raise ValueError(f"--fail-under {name} must lie between 0 and 1, not {value}")
    return tuple(floors)


def validate(
    model: OpenedModel,
    local: LocalRows,
    source: str,
    *,
    floors: Sequence[Floor] = (),
    settings: EvaluateConfig | None = None,
) -> dict[str, Any]:
    """Return the contents of ``validation.json``. Copies of one image count as one group."""
    kin = local.rows.kin
    rows = replace(local.rows, groups=kin, grouped=local.rows.grouped | (kin != local.rows.groups))
    local, record, names = local._replace(rows=rows), model.record, model.class_names
    labelled = rows.labelled
    if floors and not labelled.any():
        raise TdumpraError(
            f"{source} has no labels, so that nothing can be held against --fail-under: add labels, or leave it out"
        )
    decision, unseen = model.decision, _unseen(model.decision, record, names)
    new, validation = look(decision, rows), look(unseen, record.validation.rows(record.validation.has_p))
    moved = shift(new, validation, record, names)
    evaluation = None
    if labelled.any():
        evaluation = _evaluation(model, local, unseen, settings or EvaluateConfig())
    at_home = _at_home(validation)
    checked = [_checked(floor, evaluation) for floor in floors]
    return {
        "version": __version__,
        "model": {"file": model.path.name, "sha256": model.digest, "classes": list(names)},
        "source": {
            "name": _place(source), "fingerprint": local.fingerprint, "rows": len(rows),
            "labelled": int(labelled.sum()), "groups": len(np.unique(kin)),
            "grouped": bool(rows.grouped.any()),
            "classes": {name: int((rows.y == c).sum()) for c, name in enumerate(names)},
        },
        "sentences": _sentences(evaluation, at_home, moved, rows, names),
        "evaluation": evaluation,
        "at_home": at_home,
        "shift": moved,
        "fail_under": checked,
        "notes": list(local.notes),
    }  # fmt: skip


def failures(document: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each floor that was not reached."""
    said = []
    for each in document["fail_under"]:
        if each["met"]:
            continue
        word, value = METRICS[each["metric"]].word, each["value"]
        found = "is undefined on these rows" if value is None or value != value else f"is {value:.4f}"
        said.append(f"{word} {found}, and --fail-under asks for {each['least']:g}")
    return said


def _unseen(decision: Decision, record: Record, names: Sequence[str]) -> Decision:
    """Return the decision with a bank that holds no validation rows, to be tried on those rows."""
    if not record.bank.with_validation or not len(record.validation):
        return decision
    return replace(decision, bank=record.bank_of_train(names))


def _evaluation(model: OpenedModel, local: LocalRows, unseen: Decision, asked: EvaluateConfig) -> dict[str, Any]:
    """Score the labelled rows, as a run scores its test rows."""
    keep, names = local.rows.labelled, model.class_names
    rows = local.rows.rows(keep)
    columns = {name: _text(column)[keep] for name, column in local.metadata.items()}
    columns = {name: column for name, column in columns.items() if _is_subgroup(column)}
    test = _scored(TestOutputs, rows, len(names), columns)
    settings = replace(asked, class_names=names, subgroups=tuple(columns))
    validation = model.record.validation.rows(model.record.validation.has_p)
    case = Case(
        train=None,
        validation=_scored(ValidationOutputs, validation, len(names)) if len(validation) else None,
        test=test,
        decision=model.decision,
        decided=model.decision.decide(test.p, test.z),
        unseen_bank=unseen.bank,
    )
    comparators = {name: COMPARATORS[name] for name in _SHOWN}
    document = evaluate(case, comparators, settings, paired=False).document
    rows_of = {"rows": {"val": len(validation), "test": len(rows)}, "grouped": bool(rows.grouped.any())}
    return {**rows_of, **{name: value for name, value in document.items() if name != "retrieval_worth"}}


def _scored(kind: Any, rows: KeptRows, n_classes: int, metadata: Mapping[str, Any] | None = None) -> Any:
    """Return rows to score; the classifier gives nothing to classes that the bank alone knows."""
    p = np.pad(rows.p.astype(np.float64), ((0, 0), (0, n_classes - rows.p.shape[1])))
    groups = rows.groups if rows.grouped.any() else None
    return kind.check(p / p.sum(1, keepdims=True), rows.z, rows.y, groups, ids=rows.ids, metadata=metadata)


def _text(column: Any) -> Any:
    return np.array(["" if value is None or value != value else str(value) for value in np.asarray(column).tolist()])


def _is_subgroup(column: Any) -> bool:
    """Return whether a column parts the rows into few groups: few values, or numbers, which are cut into quarters."""
    values = np.unique(column[column != ""])
    if len(values) < 2:
        return False
    try:
        values.astype(np.float64)
    except ValueError:
        return len(values) <= _MOST_VALUES
    return True


def _at_home(validation: Seen) -> dict[str, float] | None:
    """Return the metrics on the model's own validation rows: on these its gate was chosen."""
    if not len(validation.rows):
        return None
    return metrics.classification_metrics(validation.decided.p.double().numpy(), validation.rows.y)


def _checked(floor: Floor, evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
    value = float("nan") if evaluation is None else evaluation["comparators"]["gate"][floor.metric]
    return {"metric": floor.metric, "least": floor.least, "value": value, "met": bool(value >= floor.least)}


def _place(source: str) -> str:
    """Return a source without the folders of this machine."""
    kind, colon, place = source.rpartition(":")
    return f"{kind}{colon}{Path(place).name}" if place else source


def _sentences(
    evaluation: Mapping[str, Any] | None,
    at_home: Mapping[str, float] | None,
    moved: Mapping[str, Any],
    rows: KeptRows,
    names: Sequence[str],
) -> list[str]:
    said, n, known = [], len(rows), int(rows.labelled.sum())
    if evaluation is None:
        said.append(f"none of the {n:,} rows has a label: what has shifted can be told, and no figures")
    else:
        parts = []
        present = np.unique(rows.y[rows.labelled])
        for name in ("accuracy", "balanced_accuracy")[: len(present)]:
            low, high = evaluation.get("intervals", {}).get("gate", {}).get(name, (float("nan"),) * 2)
            value = evaluation["comparators"]["gate"][name]
            home = "" if at_home is None else f", {at_home[name]:.3f} on its own validation rows"
            parts.append(f"{METRICS[name].word} {value:.3f} (95% interval {low:.3f} to {high:.3f}{home})")
        counted = f"{known:,} rows" if known == n else f"{known:,} labelled of {n:,} rows"
        said.append(f"on {counted}: {'; '.join(parts)}")
        if len(present) == 1:
            said.append(f"all labelled rows are {names[present[0]]}: balanced accuracy says nothing of other classes")
        said.append(gate_story(evaluation).replace("on test", "here"))
    return [*said, *moved["sentences"]]
