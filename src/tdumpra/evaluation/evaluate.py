"""Scoring on test outputs: every comparator, and what the gate did to predictions."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from torch import Tensor

from tdumpra import checks
from tdumpra.core import metrics, risk, significance
from tdumpra.core.bootstrap import MetricSums, bootstrap_metrics, percentile_interval
from tdumpra.core.lesions import lesion_numbers, sum_by_lesion
from tdumpra.evaluation import breakdown
from tdumpra.evaluation.comparators import COMPARATORS, WITHOUT_BANK, Case, Comparator
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.evaluation.undefined import undefined_figures
from tdumpra.evaluation.worth import retrieval_worth
from tdumpra.method.arrays import posterior_and_labels

Array = np.ndarray
MIDDLE_THETA = 0.7


def evaluate(
    case: Case,
    comparators: Mapping[str, Comparator] = COMPARATORS,
    settings: EvaluateConfig | None = None,
    *,
    without_bank: Set[str] = WITHOUT_BANK,
) -> dict[str, Any]:
    """The contents of ``evaluation.json``.

    Args:
        case: what was fitted, and the rows to score.
        comparators: what is put beside the gate.
        settings: what is asked for beyond metrics and the gate's report; the defaults, without intervals, if left out.
        without_bank: which comparators need no second path, for the worth of retrieval.
    """
    settings = settings or EvaluateConfig(bootstrap=0)
    settings.chosen_classes(case.test.n_classes)  # a misspelt class is found before the work, not after it
    columns = _subgroup_columns(case, settings)
    y, tensors = case.test.y.numpy(), _posteriors(case, comparators)
    posteriors = {name: p.double().cpu().numpy() for name, p in tensors.items()}
    scores = {name: metrics.classification_metrics(p, y) for name, p in posteriors.items()}
    costs = case.costs
    if costs is not None:
        for name, p in posteriors.items():
            scores[name]["cost"] = float(metrics.cost_by_row(p.argmax(1), y, costs).mean())
    replicates = _replicates(case, posteriors, settings)
    rehearsal = case.rehearsal()
    rehearsed = _posteriors(rehearsal, comparators) if rehearsal is not None else {}
    gate = _gate_section(case)

    def on_validation(name: str) -> tuple[Array, Array] | None:
        p = rehearsed.get(name)
        return None if p is None or rehearsal is None else (p.double().numpy(), rehearsal.test.y.numpy())

    evaluation: dict[str, Any] = {"comparators": scores, "gate": gate}
    if replicates is not None:
        evaluation["intervals"] = {
            name: {metric: list(percentile_interval(values, settings.level)) for metric, values in of_name.items()}
            for name, of_name in replicates.items()
        }
        evaluation["bootstrap"] = {
            "replicates": settings.bootstrap, "level": settings.level, "seed": settings.seed,
            "groups": int(_members(case).max()) + 1,
        }  # fmt: skip
    evaluation["per_class"] = {name: breakdown.by_class(p, y, settings) for name, p in posteriors.items()}
    evaluation["ambiguous"] = _ambiguous(case, posteriors, settings)
    if columns:
        evaluation["subgroups"] = breakdown.by_subgroup(posteriors, y, columns)
    evaluation["calibration"] = {name: breakdown.calibration(p, y) for name, p in posteriors.items()}
    evaluation["selective"] = {
        name: breakdown.selective_figures(p, y, on_validation(name), refer_risk=settings.refer_risk)
        for name, p in posteriors.items()
    }
    if costs is not None:
        evaluation["costs"] = {name: breakdown.decision_costs(p, y, costs) for name, p in posteriors.items()}
    if rehearsal is not None and "student" in rehearsed:
        evaluation["retrieval_worth"] = retrieval_worth(
            rehearsed, rehearsal.test.y, scores, replicates, case.goal, without_bank=without_bank, level=settings.level
        )
    evaluation["undefined"] = undefined_figures(evaluation)
    return evaluation


def _posteriors(case: Case, comparators: Mapping[str, Comparator]) -> dict[str, Tensor]:
    results = {name: comparator(case) for name, comparator in comparators.items()}
    given = {name: p for name, p in results.items() if p is not None}
    for name, p in given.items():
        if p.shape != case.test.p.shape:
            raise ValueError(f"the comparator {name} returned shape {tuple(p.shape)}, not {tuple(case.test.p.shape)}")
    return given


def _replicates(
    case: Case, posteriors: Mapping[str, Array], settings: EvaluateConfig
) -> dict[str, dict[str, Array]] | None:
    if not settings.bootstrap:
        return None
    y, costs = case.test.y.numpy(), case.costs
    prepared = {
        name: MetricSums.prepare(p, y, {} if costs is None else {"cost": metrics.cost_by_row(p.argmax(1), y, costs)})
        for name, p in posteriors.items()
    }
    return bootstrap_metrics(prepared, _members(case), n_replicates=settings.bootstrap, seed=settings.seed)


def _members(case: Case) -> Array:
    """The number of each row's group; without groups each row is one of its own."""
    return lesion_numbers(case.test.groups, len(case.test))


def _gate_section(case: Case) -> dict[str, Any]:
    decided = case.decided
    report = gate_report(decided.p_cls, decided.p_sim, decided.p, case.test.y, case.test.groups, opened=decided.opened)
    return {
        "mcnemar_p": report.pop("p_value"),
        **report,
        **case.decision.to_json(),
    }


def _ambiguous(case: Case, posteriors: Mapping[str, Array], settings: EvaluateConfig) -> dict[str, Any]:
    """Rows on which the (calibrated) classifier's confidence lies below theta.

    A gate that is shut, or that has no ceiling on that confidence, has no theta to speak of: the middle of the paper's
    grid serves instead.
    """
    below = ambiguous_below(case, settings)
    return {"below": below, **breakdown.part(posteriors, case.test.y.numpy(), ambiguous_rows(case, settings))}


def ambiguous_below(case: Case, settings: EvaluateConfig) -> float:
    """The confidence below which a row is called ambiguous."""
    theta = case.decision.thresholds.theta
    if settings.ambiguous_below is not None:
        return settings.ambiguous_below
    return theta if 0 < theta < 1 else MIDDLE_THETA


def ambiguous_rows(case: Case, settings: EvaluateConfig) -> Array:
    """Which rows are called ambiguous."""
    unsure: Array = (case.decided.signals.gamma_cls < ambiguous_below(case, settings)).cpu().numpy()
    return unsure


def _subgroup_columns(case: Case, settings: EvaluateConfig) -> dict[str, Array]:
    known = case.test.metadata
    settings.refuse_unknown_subgroups(known)
    return {name: np.asarray(known[name]) for name in settings.subgroups}


def gate_report(
    p_cls: Any, p_sim: Any, p_final: Any, y: Any, groups: Any = None, *, opened: Any = None
) -> dict[str, Any]:
    """Compare the final predictions with the classifier's, row by row.

    Args:
        p_cls: the (calibrated) classifier's posterior.
        p_sim: retrieval's.
        p_final: what came out of the gate.
        y: labels.
        groups: lesions or patients: adds a test that does not take two images of one lesion for two.
        opened: where the gate opened; if left out, where ``p_final`` differs from ``p_cls``.

    Returns:
        ``n``; ``opened``, ``flipped`` (label changed), ``fixed`` (wrong to right), ``broken`` (right to wrong);
        ``p_value`` of the exact McNemar test; ``sign_flip_p`` over groups, if given; ``harm_upper``, the one-sided 95 %
        Clopper–Pearson bound on the broken share; accuracies of the classifier, of retrieval, of the result and of an
        ``oracle`` that always follows the right path; the risk decomposition (``risk_change`` = ``open_share`` ×
        ``risk_change_where_open``), and the ``regret`` against the oracle with its bound ``misranked``;
        ``headroom`` (the oracle's accuracy above the classifier's) and the share of it that was taken.
    """
    cls, labels = posterior_and_labels(p_cls, y, "p_cls")
    sim, final = _beside(cls, p_sim, "p_sim"), _beside(cls, p_final, "p_final")
    is_open = (final != cls).any(1) if opened is None else checks.to_tensor(opened, "opened").bool().cpu().numpy()
    if is_open.shape != (len(labels),):
        raise ValueError(f"opened needs one entry per row: {len(labels)}, not shape {is_open.shape}")
    names = checks.check_groups(groups, "groups", n_rows=len(labels))

    predicted_cls, predicted = cls.argmax(1), final.argmax(1)
    wrong_cls, wrong_sim, wrong = (q.argmax(1) != labels for q in (cls, sim, final))
    gained = wrong_cls.astype(np.int64) - wrong  # +1 fixed, -1 broken
    fixed, broken = int((gained > 0).sum()), int((gained < 0).sum())
    decomposition = risk.risk_decomposition(wrong_cls.astype(float), wrong.astype(float), is_open)
    regret = risk.regret(wrong_cls.astype(float), wrong_sim.astype(float), wrong.astype(float))
    best = np.where(risk.bayes_gate(wrong_cls, wrong_sim), wrong_sim, wrong_cls)
    return {
        "n": len(labels),
        "opened": int(is_open.sum()),
        "flipped": int((predicted != predicted_cls).sum()),
        "fixed": fixed,
        "broken": broken,
        "p_value": significance.mcnemar_exact(fixed, broken),
        "sign_flip_p": None if names is None else significance.sign_flip_test(sum_by_lesion(gained, names).sums),
        "harm_upper": significance.clopper_pearson_upper(broken, len(labels)),
        "classifier_accuracy": float(1 - wrong_cls.mean()),
        "similarity_accuracy": float(1 - wrong_sim.mean()),
        "accuracy": float(1 - wrong.mean()),
        "oracle_accuracy": float(1 - best.mean()),
        "risk_change": decomposition.change,
        "open_share": decomposition.open_share,
        "risk_change_where_open": decomposition.change_where_open,
        "headroom": float(wrong_cls.mean() - best.mean()),
        "headroom_taken": _share(wrong_cls.mean() - wrong.mean(), wrong_cls.mean() - best.mean()),
        "regret": regret.excess,
        "misranked": regret.misranked,
    }


def _beside(cls: Array, p: Any, name: str) -> Array:
    """Another posterior of the same rows, checked."""
    rows = checks.check_probabilities(p, name, n_classes=cls.shape[1])
    if len(rows) != len(cls):
        raise ValueError(f"p_cls has {len(cls)} rows and {name} has {len(rows)}")
    other: Array = rows.double().cpu().numpy()
    return other


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else float("nan")
