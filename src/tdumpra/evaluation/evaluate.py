"""Scoring on test outputs: every comparator, and what the gate did to predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from tdumpra import checks
from tdumpra.core import metrics, risk, significance
from tdumpra.core.bootstrap import MetricSums, bootstrap_metrics, percentile_interval
from tdumpra.core.groups import gained_by_lesion, lesion_numbers, sum_by_lesion
from tdumpra.evaluation import breakdown
from tdumpra.evaluation.comparators import COMPARATORS, Case, Comparator
from tdumpra.evaluation.over_seeds import SeedResult
from tdumpra.evaluation.paired import Figures, compare, with_selective_figures
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.evaluation.undefined import undefined_figures
from tdumpra.method.arrays import posterior_and_labels
from tdumpra.method.decision import Decided
from tdumpra.method.outputs import ScoredOutputs

Array = np.ndarray
MIDDLE_THETA = 0.7


def evaluate(
    case: Case,
    comparators: Mapping[str, Comparator] = COMPARATORS,
    settings: EvaluateConfig | None = None,
    *,
    paired: bool = True,
) -> SeedResult:
    """Score every comparator and the gate, each of them once.

    Args:
        case: what was fitted, and the rows to score.
        comparators: what the gate is compared with; ``gate`` must be among them for ``compared``.
        settings: what to show beyond metrics and the gate's report; by default no intervals.
        paired: also compare the gate with its rivals row by row, as means over seeds need it.
    """
    settings = settings or EvaluateConfig(bootstrap=0)
    settings.chosen_classes(case.test.n_classes)  # find a misspelt name before the work, not after it
    settings.check_subgroups(case.test.metadata)
    y = case.test.y.numpy()
    posteriors = {name: p.double().cpu().numpy() for name, p in _posteriors(case, comparators).items()}
    rivals = [name for name in posteriors if comparators[name].rival]
    pairs = [name for name in ("gate", *rivals, "oracle") if name in posteriors] if paired else []
    figures = _figures(case, posteriors, pairs, settings)
    lesions = case.test.lesions()
    member, by_lesion = (lesion_numbers(groups, len(y)) for groups in (case.test.groups, lesions))
    replicates = _replicates(figures, member, settings)
    compared = None
    if "gate" in pairs:
        # Rows without groups are numbered by place in a document, and by id where several seeds are compared.
        drawn = replicates
        if not np.array_equal(member, by_lesion):
            drawn = _replicates({name: figures[name] for name in pairs}, by_lesion, settings)
        compared = compare({name: posteriors[name] for name in pairs}, y, lesions, figures, drawn)
    document = _document(case, comparators, posteriors, replicates, settings)
    return SeedResult(document, gained(case.decided, case.test), compared)


def gained(decided: Decided, rows: ScoredOutputs) -> dict[str, int]:
    """Return fixed minus broken predictions of each lesion in which they differ."""
    right, right_before = ((p.argmax(1) == rows.y).long() for p in (decided.p, decided.p_cls))
    return gained_by_lesion((right - right_before).numpy(), rows.lesions())


def _document(
    case: Case,
    comparators: Mapping[str, Comparator],
    posteriors: Mapping[str, Array],
    replicates: Mapping[str, Mapping[str, Array]],
    settings: EvaluateConfig,
) -> dict[str, Any]:
    y, costs = case.test.y.numpy(), case.goal.costs
    scores = {name: metrics.classification_metrics(p, y) for name, p in posteriors.items()}
    if costs is not None:
        for name, p in posteriors.items():
            scores[name]["cost"] = float(metrics.cost_by_row(p.argmax(1), y, costs).mean())
    validation = case.on_validation()
    on_validation = {} if validation is None else _posteriors(validation, comparators)

    def selective(name: str, p: Array) -> dict[str, Any]:
        chosen_on = None
        if validation is not None and name in on_validation:
            chosen_on = on_validation[name].double().numpy(), validation.test.y.numpy()
        return breakdown.selective_figures(p, y, chosen_on, refer_risk=settings.refer_risk)

    document: dict[str, Any] = {"comparators": scores, "gate": _gate_section(case)}
    if replicates:
        document["intervals"] = {
            name: {metric: list(percentile_interval(replicates[name][metric], settings.level)) for metric in of_name}
            for name, of_name in scores.items()
        }
        document["bootstrap"] = {
            "replicates": settings.bootstrap, "level": settings.level, "seed": settings.seed,
            "groups": int(lesion_numbers(case.test.groups, len(y)).max()) + 1,
        }  # fmt: skip
    document["per_class"] = {name: breakdown.by_class(p, y, settings) for name, p in posteriors.items()}
    document["ambiguous"] = {
        "below": ambiguous_below(case, settings),
        **breakdown.part(posteriors, y, ambiguous_rows(case, settings)),
    }
    if settings.subgroups:
        columns = {name: np.asarray(case.test.metadata[name]) for name in settings.subgroups}
        document["subgroups"] = breakdown.by_subgroup(posteriors, y, columns)
    document["calibration"] = {name: breakdown.calibration(p, y) for name, p in posteriors.items()}
    document["selective"] = {name: selective(name, p) for name, p in posteriors.items()}
    if costs is not None:
        document["costs"] = {name: breakdown.decision_costs(p, y, costs) for name, p in posteriors.items()}
    if validation is not None and "student" in on_validation:
        with_bank = {name for name in on_validation if comparators[name].needs_bank}
        document["retrieval_worth"] = breakdown.retrieval_worth(
            on_validation, validation.test.y, scores, replicates, case.goal, with_bank=with_bank, level=settings.level
        )
    document["undefined"] = [each.to_json() for each in undefined_figures(document)]
    return document


def _posteriors(case: Case, comparators: Mapping[str, Comparator]) -> dict[str, Tensor]:
    if case.first is not None and (before := case.first.on_validation()) is not None:
        _posteriors(before, comparators)  # fits everything
        case.first.fits.update(before.fits)
        case.fits.update(before.fits)
    results = {name: comparator.posterior(case) for name, comparator in comparators.items()}
    given = {name: p for name, p in results.items() if p is not None}
    for name, p in given.items():
        if p.shape != case.test.p.shape:
            raise ValueError(f"the comparator {name} returned shape {tuple(p.shape)}, not {tuple(case.test.p.shape)}")
    return given


def _figures(
    case: Case, posteriors: Mapping[str, Array], pairs: list[str], settings: EvaluateConfig
) -> dict[str, Figures]:
    """Return the figures of each posterior as functions of the rows' weights, more of them for ``pairs``."""
    y, costs, unsure = case.test.y.numpy(), case.goal.costs, ambiguous_rows(case, settings)
    figures: dict[str, Figures] = {}
    for name in posteriors if settings.bootstrap else pairs:
        p = posteriors[name]
        means = {} if costs is None else {"cost": metrics.cost_by_row(p.argmax(1), y, costs)}
        of_name = MetricSums.prepare(p, y, means).metrics
        figures[name] = with_selective_figures(of_name, p, y, unsure) if name in pairs else of_name
    return figures


def _replicates(figures: Mapping[str, Figures], member: Array, settings: EvaluateConfig) -> dict[str, dict[str, Array]]:
    if not settings.bootstrap:
        return {}
    return bootstrap_metrics(figures, member, n_replicates=settings.bootstrap, seed=settings.seed)


def _gate_section(case: Case) -> dict[str, Any]:
    decided = case.decided
    report = gate_report(decided.p_cls, decided.p_sim, decided.p, case.test.y, case.test.groups, opened=decided.opened)
    return {
        "mcnemar_p": report.pop("p_value"),
        **report,
        **case.decision.to_json(),
    }


def ambiguous_below(case: Case, settings: EvaluateConfig) -> float:
    """Return the classifier's confidence below which a row is ambiguous: the gate's theta, unless settings say more.

    A gate that is shut, or has no ceiling on that confidence, has no theta: the middle of the paper's grid serves.
    """
    theta = case.decision.thresholds.theta
    if settings.ambiguous_below is not None:
        return settings.ambiguous_below
    return theta if 0 < theta < 1 else MIDDLE_THETA


def ambiguous_rows(case: Case, settings: EvaluateConfig) -> Array:
    """Mark the ambiguous rows."""
    unsure: Array = (case.decided.signals.gamma_cls < ambiguous_below(case, settings)).cpu().numpy()
    return unsure


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
    headroom = float(wrong_cls.mean() - best.mean())
    return {
        "n": len(labels),
        "opened": int(is_open.sum()),
        "flipped": int((predicted != predicted_cls).sum()),
        "fixed": fixed,
        "broken": broken,
        "p_value": significance.mcnemar_exact(fixed, broken),
        "sign_flip_p": None if names is None else significance.sign_flip_test(sum_by_lesion(gained, names)),
        "harm_upper": significance.clopper_pearson_upper(broken, len(labels)),
        "classifier_accuracy": float(1 - wrong_cls.mean()),
        "similarity_accuracy": float(1 - wrong_sim.mean()),
        "accuracy": float(1 - wrong.mean()),
        "oracle_accuracy": float(1 - best.mean()),
        "risk_change": decomposition.change,
        "open_share": decomposition.open_share,
        "risk_change_where_open": decomposition.change_where_open,
        "headroom": headroom,
        "headroom_taken": float((wrong_cls.mean() - wrong.mean()) / headroom) if headroom > 0 else float("nan"),
        "regret": regret.excess,
        "misranked": regret.misranked,
    }


def _beside(cls: Array, p: Any, name: str) -> Array:
    """Check another posterior of the same rows."""
    rows = checks.check_probabilities(p, name, n_classes=cls.shape[1])
    if len(rows) != len(cls):
        raise ValueError(f"p_cls has {len(cls)} rows and {name} has {len(rows)}")
    other: Array = rows.double().cpu().numpy()
    return other
