"""From a model and local rows to an adapted model: the trial, its cost at home, its document, and the new contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from tdumpra.artifacts import jsonable
from tdumpra.core.linear_head import LinearHead
from tdumpra.core.metrics import OBJECTIVES
from tdumpra.estimator import DualPathClassifier
from tdumpra.method.record import Record
from tdumpra.method.rows import KeptRows
from tdumpra.models.adapt import Adaptation, Interval, adapt, compared
from tdumpra.models.dose import dose_curve
from tdumpra.models.local_rows import LocalRows
from tdumpra.models.opened import OpenedModel
from tdumpra.models.ways import Adapted, Plan, Workbench
from tdumpra.networks.model_file import Model
from tdumpra.tuning.goal import Goal

Array = np.ndarray


class Outcome(NamedTuple):
    """The trial, its document (``adaptation.json``), and the new model's contents; ``None`` where nothing won."""

    adaptation: Adaptation
    document: dict[str, Any]
    content: Model | DualPathClassifier | None


def adapt_model(model: OpenedModel, local: LocalRows, source: str, *, objective: str | None = None) -> Outcome:
    """Try every way on the local rows that have labels, and make the new model of the one that wins.

    Thousands of small fits: threads of three libraries would wait for each other, and the longer the busier a machine.
    """
    with threadpool_limits(1):
        return _adapt(model, local, source, goal_of(model, objective))


def _adapt(model: OpenedModel, local: LocalRows, source: str, goal: Goal) -> Outcome:
    record, names = model.record, model.class_names
    if record.train.p.shape[1] != len(names):
        known = record.train.p.shape[1]
        raise ValueError(
            f"the bank knows classes that the classifier does not ({', '.join(names[known:])}): adapt the model from "
            "before they were added"
        )
    bench = Workbench(model.decision, record, names, local.rows.rows(local.rows.labelled))
    adaptation = adapt(bench, goal)
    plan = adaptation.choice.plans[adaptation.choice.shown]
    home, home_note = _at_home(bench, adaptation, plan)
    counts = np.bincount(bench.local.y, minlength=len(names))
    document = {
        "model": model.path.name,
        "source": source,
        "rows": len(bench.local),
        "lesions": len(np.unique(bench.local.kin)),
        "classes": dict(zip(names, counts.tolist(), strict=True)),
        "missing": [name for name, count in zip(names, counts, strict=True) if not count],
        **adaptation.to_json(),
        "home": home,
        "dose": [jsonable(dose.to_json()) for dose in dose_curve(bench, adaptation)],
        "notes": [*local.notes, *_notes(bench, counts), *home_note],
    }
    content = (
        None if adaptation.adapted is None else content_of(model, bench, adaptation.adapted, plan, local.fingerprint)
    )
    return Outcome(adaptation, document, content)


def goal_of(model: OpenedModel, objective: str | None) -> Goal:
    """Return the objective that was asked for, or else that of the model's own tuning."""
    tuned = model.lineage[0].settings.get("tune") if model.lineage else None
    tuned = tuned if isinstance(tuned, Mapping) else {}
    wanted = objective or tuned.get("objective", "balanced_accuracy")
    costs = tuned.get("costs") if wanted == "cost" else None
    if wanted == "cost" and not costs:
        raise ValueError(f"the model was tuned without costs: choose an objective of {', '.join(OBJECTIVES)}")
    return Goal.check(wanted, costs, n_classes=len(model.class_names))


def _notes(bench: Workbench, counts: Array) -> list[str]:
    """Return what a reader should know of the local rows."""
    notes = []
    missing = [name for name, count in zip(bench.class_names, counts, strict=True) if not count]
    if missing:
        notes.append(
            f"the local cases hold no {', no '.join(missing)}: nothing is learned of it here, averages leave it out, "
            "and only the figures at home tell what adapting costs it"
        )
    if "head" not in bench.readings:
        notes.append("no linear head was tried: it needs pooled features of the local cases and of the model's record")
    return notes


def _at_home(bench: Workbench, adaptation: Adaptation, plan: Plan) -> tuple[dict[str, Any] | None, list[str]]:
    """Return what the winner's plan does to the model's own validation rows, and what must be said of that."""
    rows = bench.record.validation
    everyone = np.ones(len(bench.local), dtype=bool)
    after = adaptation.adapted or bench.fit(everyone, plan)
    notes = []
    known: Array = rows.has_p
    if after.head is not None and len(rows):
        known = known & rows.has_features & (rows.features is not None)
    if not known.all():
        notes.append(f"at home {int((~known).sum()):,} of {len(rows):,} rows are left out: they have no features")
        rows = rows.rows(known)
    if not len(rows):
        return None, notes
    if bench.record.bank.with_validation:
        notes.append("the bank holds the validation rows too, so the figures at home flatter retrieval")
    base = Adapted(bench.decision)
    posteriors = {name: np.asarray(each.decide(rows).p) for name, each in (("chosen", after), ("keep", base))}
    figures, gains = compared(posteriors, rows, adaptation.goal)

    def table(figures: Mapping[str, Interval]) -> dict[str, Any]:
        return {metric: each._asdict() for metric, each in figures.items()}

    found = {"rows": len(rows), "before": figures["keep"], "after": figures["chosen"], "change": gains["keep"]}
    return jsonable({k: v if k == "rows" else table(v) for k, v in found.items()}), notes  # type: ignore[arg-type]


def content_of(
    model: OpenedModel, bench: Workbench, adapted: Adapted, plan: Plan, source: str
) -> Model | DualPathClassifier:
    """Return the model with the adapted decision and head, and a record that holds the local rows."""
    record = adapted_record(bench.record, bench.local, adapted.head, plan.bank_weight, source)
    return model.with_rows(record, adapted.decision, head=adapted.head)


def adapted_record(record: Record, local: KeptRows, head: LinearHead | None, bank_weight: float, source: str) -> Record:
    """Return the record with the local rows, marked by their source; probabilities are those of the new head.

    Rows without features have none under a new head: their probabilities are unknown from here on.
    """
    grown = record.with_rows(local, weight=bank_weight, source=source)
    if head is None:
        return grown
    return replace(grown, train=_read_by(head, grown.train), validation=_read_by(head, grown.validation))


def _read_by(head: LinearHead, rows: KeptRows) -> KeptRows:
    if rows.features is None or rows.has_features is None:
        return replace(rows, p=np.full_like(rows.p, np.nan))
    p = softmax(head.logits(rows.features), axis=1).astype(np.float32)
    return replace(rows, p=np.where(rows.has_features[:, None], p, np.float32(np.nan)))
