"""Scoring on test outputs: every comparator, and what the gate did to predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tdumpra.artifacts import fingerprint
from tdumpra.core import metrics, selective
from tdumpra.core.bootstrap import percentile_interval, point_name
from tdumpra.core.groups import gained_by_lesion, lesion_numbers
from tdumpra.evaluation import breakdown
from tdumpra.evaluation.case import Case, Scored, joined_decided, joined_test
from tdumpra.evaluation.comparators import COMPARATORS, Comparator
from tdumpra.evaluation.gate_report import cost_curve, per_thousand
from tdumpra.evaluation.gate_report import gate_report as gate_report
from tdumpra.evaluation.over_seeds import SeedResult
from tdumpra.evaluation.paired import compare
from tdumpra.evaluation.replicates import (
    ambiguous_below,
    figures_of,
    joined_posteriors,
    posteriors_of,
    replicates_of,
    tuned_replicates,
    unsure_rows,
)
from tdumpra.evaluation.rivals import calibrated
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.evaluation.undefined import undefined_figures
from tdumpra.evaluation.worth import champions, retrieval_worth
from tdumpra.method.decision import Decided, Decision
from tdumpra.method.outputs import ScoredOutputs

Array = np.ndarray


def evaluate(
    cases: Case | Sequence[Case],
    comparators: Mapping[str, Comparator] = COMPARATORS,
    settings: EvaluateConfig | None = None,
    *,
    paired: bool = True,
) -> SeedResult:
    """Score every comparator and the gate, each of them once.

    Args:
        cases: what was fitted, and the rows to score. Several cases are the outer folds of one seed: each gives the
            posteriors of its own test rows by its own fits, and all figures are of the rows of all folds.
        comparators: what the gate is compared with; ``gate`` must be among them for ``compared``.
        settings: what to show beyond metrics and the gate's report; by default no intervals.
        paired: also compare the gate with its rivals row by row, as means over seeds need it.
    """
    cases = (cases,) if isinstance(cases, Case) else tuple(cases)
    if not cases:
        raise ValueError("an evaluation needs at least one case")
    settings = settings or EvaluateConfig(bootstrap=0)
    test = joined_test(cases)
    settings.chosen_classes(test.n_classes)  # find a misspelt name before the work, not after it
    settings.check_subgroups(test.metadata)
    scored = _scored(cases, test, comparators)
    rivals = [name for name in scored.posteriors if comparators[name].rival]
    pairs = [name for name in ("gate", *rivals, "oracle") if name in scored.posteriors] if paired else []
    figures = figures_of(scored, pairs, settings)
    lesions = test.lesions()
    member, by_lesion = (lesion_numbers(groups, len(test)) for groups in (test.groups, lesions))
    replicates = replicates_of(figures, member, settings)
    compared = None
    if "gate" in pairs:
        # Rows without groups are numbered by place in a document, and by id where several seeds are compared.
        drawn = replicates
        if not np.array_equal(member, by_lesion):
            drawn = replicates_of({name: figures[name] for name in pairs}, by_lesion, settings)
        compared = compare({name: scored.posteriors[name] for name in pairs}, scored.y, lesions, figures, drawn)
        compared["points"] = _points(drawn, settings, test.n_classes)
        if settings.tuning_replicates:
            redone = {name: comparators[name] for name in pairs if name != "oracle"}
            compared["tuned"] = tuned_replicates(scored, redone, by_lesion, settings)
    document = _document(scored, comparators, replicates, settings)
    return SeedResult({**document, "test_set": _name_of(test)}, gained(scored.decided, test), compared)


def gained(decided: Decided, rows: ScoredOutputs) -> dict[str, int]:
    """Return fixed minus broken predictions of each lesion in which they differ."""
    right, right_before = ((p.argmax(1) == rows.y).long() for p in (decided.p, decided.p_cls))
    return gained_by_lesion((right - right_before).numpy(), rows.lesions())


def _points(replicates: Mapping[str, Mapping[str, Array]], settings: EvaluateConfig, n_classes: int) -> dict[str, Any]:
    """Return the replicates of the operating points, for intervals over seeds."""
    names = settings.names(n_classes)
    return {
        name: {
            names[c]: {f"{at:g}": of_name[point_name(c, at)].round(5).tolist() for at in settings.specificities}
            for c in settings.chosen_classes(n_classes)
        }
        for name, of_name in replicates.items()
    }


def _name_of(test: ScoredOutputs) -> str:
    """Return a name for the test rows, whatever their order: models that share it were tested on the same cases."""
    ids = [""] * len(test) if test.own_ids is None else test.own_ids.tolist()
    rows = sorted(zip(test.lesions().tolist(), ids, test.y.tolist(), strict=True))
    return fingerprint(*(f"{lesion}\n{name}\n{label}" for lesion, name, label in rows))


def _scored(cases: tuple[Case, ...], test: ScoredOutputs, comparators: Mapping[str, Comparator]) -> Scored:
    """Compute the posteriors by case, and join those that every case has."""
    posteriors = joined_posteriors(cases, comparators)
    held_out = [case.on_validation() for case in cases]  # with what was fitted for the test rows
    return Scored(
        cases=cases,
        test=test,
        decided=joined_decided(cases),
        posteriors=posteriors,
        on_validation=tuple({} if case is None else posteriors_of(case, comparators) for case in held_out),
    )


def _document(
    scored: Scored,
    comparators: Mapping[str, Comparator],
    replicates: Mapping[str, Mapping[str, Array]],
    settings: EvaluateConfig,
) -> dict[str, Any]:
    y, costs, posteriors = scored.y, scored.goal.costs, scored.posteriors
    scores = {name: _scores(p, scored) for name, p in posteriors.items()}
    document: dict[str, Any] = {"comparators": scores, "gate": _gate_section(scored)}
    if replicates:
        document["intervals"] = {
            name: {metric: list(percentile_interval(replicates[name][metric], settings.level)) for metric in of_name}
            for name, of_name in scores.items()
        }
        document["bootstrap"] = {
            "replicates": settings.bootstrap, "level": settings.level, "seed": settings.seed,
            "groups": int(_member(scored).max()) + 1,
        }  # fmt: skip
    names = settings.names(scored.test.n_classes)
    document["per_class"] = {name: breakdown.by_class(p, y, names) for name, p in posteriors.items()}
    document["operating_points"] = {
        name: breakdown.operating_points(p, y, settings, replicates.get(name, {})) for name, p in posteriors.items()
    }
    below = [ambiguous_below(case, settings) for case in scored.cases]
    document["ambiguous"] = {
        "below": below[0] if len(set(below)) == 1 else below,
        **breakdown.part(posteriors, y, unsure_rows(scored, settings)),
    }
    if settings.subgroups:
        columns = {name: np.asarray(scored.test.metadata[name]) for name in settings.subgroups}
        document["subgroups"] = breakdown.by_subgroup(posteriors, y, columns)
    lesion = _member(scored)
    document["calibration"] = {name: breakdown.calibration(p, y, lesion) for name, p in posteriors.items()}
    document["selective"] = {
        name: breakdown.selective_figures(
            p, y, lesion, _refer_below(scored, name, settings), refer_risk=settings.refer_risk
        )
        for name, p in posteriors.items()
    }
    document["per_1000"] = {"test": _per_1000(scored, settings), "validation": None}
    document["cost_curve"] = _cost_curve(scored)
    document["rivals"] = _rivals(scored)
    if costs is not None:
        document["costs"] = {name: breakdown.decision_costs(p, y, costs) for name, p in posteriors.items()}
    if all("student" in of_case for of_case in scored.on_validation):
        document["retrieval_worth"] = _worth(scored, comparators, replicates, settings)
    document["undefined"] = [each.to_json() for each in undefined_figures(document)]
    return document


def _rivals(scored: Scored) -> dict[str, Any]:
    """Return what each rival chose on validation; of several folds, a list."""
    chosen = [case.choices() for case in scored.cases]
    if len(chosen) == 1:
        return chosen[0]
    return {name: [of_case[name] for of_case in chosen] for name in chosen[0] if name in scored.posteriors}


def _worth(
    scored: Scored,
    comparators: Mapping[str, Comparator],
    replicates: Mapping[str, Mapping[str, Array]],
    settings: EvaluateConfig,
) -> dict[str, Any]:
    """Compare the champions of both sides, which each fold chooses on its own validation rows."""
    with_bank = {name for name in scored.posteriors if comparators[name].needs_bank}
    by_case = [
        champions(held_out, case.validation.y, scored.goal, with_bank, among=scored.posteriors.keys())
        for case, held_out in zip(scored.cases, scored.on_validation, strict=True)
        if case.validation is not None
    ]
    sides = [tuple(names) for names in zip(*by_case, strict=True)]
    ours, rival = (", ".join(dict.fromkeys(names)) for names in sides)
    joined = {ours: scored.put_together(sides[0]), rival: scored.put_together(sides[1])}
    known = dict(replicates)
    mixed = {name: p for name, p in joined.items() if name not in known}
    if replicates and mixed:
        known |= replicates_of(figures_of(replace(scored, posteriors=mixed), [], settings), _member(scored), settings)
    scores = {name: _scores(p, scored) for name, p in joined.items()}
    return retrieval_worth(ours, rival, scores, known, scored.goal, level=settings.level)


def _scores(p: Array, scored: Scored) -> dict[str, float]:
    """Return the metrics of every results table, and the mean cost where costs are known."""
    found, costs = metrics.classification_metrics(p, scored.y), scored.goal.costs
    if costs is not None:
        found["cost"] = float(metrics.cost_by_row(p.argmax(1), scored.y, costs).mean())
    return found


def _member(scored: Scored) -> Array:
    return lesion_numbers(scored.test.groups, len(scored.test))


def _refer_below(scored: Scored, name: str, settings: EvaluateConfig) -> Array | None:
    """Return for each test row the confidence below which its case refers, chosen on that case's validation rows."""
    thresholds = []
    for case, held_out in zip(scored.cases, scored.on_validation, strict=True):
        if case.validation is None or name not in held_out:
            return None
        p, y = held_out[name].double().numpy(), case.validation.y.numpy()
        threshold = selective.refer_below(p.max(1), p.argmax(1) != y, risk=settings.refer_risk)
        thresholds.append(np.full(len(case.test), threshold))
    return np.concatenate(thresholds)


def _gate_section(scored: Scored) -> dict[str, Any]:
    """Return the gate's report and settings; of several folds, lists with the settings of each."""
    decided, test = scored.decided, scored.test
    report = gate_report(decided.p_cls, decided.p_sim, decided.p, test.y, test.groups, opened=decided.opened)
    chosen = [case.decision.to_json() for case in scored.cases]
    settings = chosen[0]
    if len(chosen) > 1:
        settings = {name: [each[name] for each in chosen] for name in settings}
        settings["guarantees_similarity"] = all(settings["guarantees_similarity"])
    return {"mcnemar_p": report.pop("p_value"), **report, **settings}


def _per_1000(scored: Scored, settings: EvaluateConfig) -> dict[str, Any]:
    decided, names = scored.decided, settings.names(scored.test.n_classes)
    before, after = (p.argmax(1).cpu().numpy() for p in (decided.p_cls, decided.p))
    classes = {names[c]: c for c in settings.chosen_classes(len(names))}
    return per_thousand(before, after, decided.opened.cpu().numpy(), scored.y, classes)


def _cost_curve(scored: Scored) -> dict[str, Any]:
    """Vary theta alone: a gate under its largest theta opens wherever it does under a smaller one."""
    wide = [
        replace(case, decided=_with_theta(case.decision, 1.0).decide(case.test.p, case.test.z)) for case in scored.cases
    ]
    networks = [calibrated(case, "p_second") for case in scored.cases]
    seconds = [
        case.decided.p_sim if network is None else network.test
        for case, network in zip(scored.cases, networks, strict=True)
    ]
    gate = joined_decided(wide)
    p_cls, p_gate, second = (p.double().cpu().numpy() for p in (gate.p_cls, gate.p, torch.cat(seconds)))
    return cost_curve(p_cls, p_gate, gate.opened.cpu().numpy(), second, scored.y)


def _with_theta(decision: Decision, theta: float) -> Decision:
    return replace(decision, thresholds=replace(decision.thresholds, theta=theta))
