"""Scoring on test outputs: every comparator, and what the gate did to predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tdumpra.artifacts import fingerprint_of
from tdumpra.core.bootstrap import Draws, percentile_interval, point_name
from tdumpra.core.groups import gained_by_lesion, lesion_numbers
from tdumpra.evaluation import breakdown
from tdumpra.evaluation.case import Case, Scored, joined_decided, joined_test, part_notes
from tdumpra.evaluation.comparators import COMPARATORS, Comparator
from tdumpra.evaluation.gate_report import cost_curve, per_thousand
from tdumpra.evaluation.gate_report import gate_report as gate_report
from tdumpra.evaluation.judged import Draw, Judged, judge, replicates_of, scores_of
from tdumpra.evaluation.over_seeds import SeedResult
from tdumpra.evaluation.paired import compare
from tdumpra.evaluation.replicates import ambiguous_below, one_by_one, put_together, tuned_replicates, unsure_rows
from tdumpra.evaluation.rivals import calibrated
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.evaluation.undefined import undefined_figures
from tdumpra.evaluation.worth import champions, retrieval_worth
from tdumpra.method.decision import Decision
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
    scored = Scored(
        cases=cases,
        test=test,
        decided=joined_decided(cases),
        lesion=lesion_numbers(test.groups, len(test)),
        unsure=unsure_rows(cases, settings),
    )
    lesions, by_lesion = np.unique(test.lesions(), return_inverse=True)
    draw = _draw(scored, by_lesion, settings)
    parts = breakdown.subgroups({name: np.asarray(test.metadata[name]) for name in settings.subgroups})

    def is_paired(name: str) -> bool:
        return paired and (name in ("gate", "oracle") or comparators[name].rival)

    judged = {
        each.name: judge(scored, each, settings, draw, parts, paired=is_paired(each.name))
        for each in one_by_one(cases, comparators)
    }
    rivals = [name for name in judged if comparators[name].rival]
    sides = {name: judged[name].side for name in ("gate", *rivals, "oracle") if name in judged}
    compared = None
    if paired and "gate" in sides:
        compared = compare({name: side for name, side in sides.items() if side is not None}, lesions, by_lesion)
        drawn: dict[str, Mapping[str, Array]] = {name: found.replicates for name, found in judged.items()}
        if draw.lesions is not draw.groups:
            drawn = {name: side.replicates for name, side in sides.items() if side is not None}
        compared["points"] = _points(drawn, settings, test.n_classes)
        if settings.tuning_replicates:
            redone = {name: comparators[name] for name in sides if name != "oracle"}
            compared["tuned"] = tuned_replicates(scored, redone, by_lesion, settings)
    document = _document(scored, comparators, judged, settings, draw, parts)
    return SeedResult({**document, "test_set": _name_of(test)}, gained(scored, lesions, by_lesion), compared)


def _draw(scored: Scored, by_lesion: Array, settings: EvaluateConfig) -> Draw:
    """Draw groups. Rows without groups are numbered by place, and by id where several seeds are compared."""
    if not settings.bootstrap:
        return Draw(None, None)
    groups = Draws.make(scored.lesion, n_replicates=settings.bootstrap, seed=settings.seed)
    if np.array_equal(scored.lesion, by_lesion):
        return Draw(groups, groups)
    return Draw(groups, Draws.make(by_lesion, n_replicates=settings.bootstrap, seed=settings.seed))


def gained(scored: Scored, lesions: Array, by_lesion: Array) -> dict[str, int]:
    """Return fixed minus broken predictions of each lesion in which they differ."""
    decided, y = scored.decided, scored.test.y
    right, right_before = ((p.argmax(1) == y).long() for p in (decided.p, decided.p_cls))
    return gained_by_lesion((right - right_before).numpy(), lesions, by_lesion)


def _points(replicates: Mapping[str, Mapping[str, Array]], settings: EvaluateConfig, n_classes: int) -> dict[str, Any]:
    """Return the replicates of the operating points, for intervals over seeds."""
    names = settings.names(n_classes)
    return {
        name: {
            names[c]: {f"{at:g}": of_name[point_name(c, at)].round(5).tolist() for at in settings.specificities}
            for c in settings.chosen_classes(n_classes)
        }
        for name, of_name in replicates.items()
        if of_name
    }


def _name_of(test: ScoredOutputs) -> str:
    """Return a name for the test rows, whatever their order: models that share it were tested on the same cases."""
    lesions, ids, y = test.lesions(), test.own_ids, test.y.numpy()

    def rows() -> Iterator[str]:
        for i in np.lexsort((y, lesions) if ids is None else (y, ids, lesions)):
            yield f"{lesions[i]}\n{'' if ids is None else ids[i]}\n{y[i]}"

    return fingerprint_of(rows())


def _document(
    scored: Scored,
    comparators: Mapping[str, Comparator],
    judged: Mapping[str, Judged],
    settings: EvaluateConfig,
    draw: Draw,
    parts: Mapping[str, Mapping[str, Array]],
) -> dict[str, Any]:
    costs = scored.goal.costs

    def section(name: str) -> dict[str, Any]:
        return {each: found.sections[name] for each, found in judged.items()}

    document: dict[str, Any] = {
        "comparators": {name: found.scores for name, found in judged.items()},
        "gate": _gate_section(scored),
    }
    if draw.groups is not None:
        document["intervals"] = {
            name: {
                metric: list(percentile_interval(found.replicates[metric], settings.level)) for metric in found.scores
            }
            for name, found in judged.items()
        }
        document["bootstrap"] = {
            "replicates": settings.bootstrap, "level": settings.level, "seed": settings.seed,
            "groups": int(scored.lesion.max()) + 1,
        }  # fmt: skip
    document["per_class"] = section("per_class")
    if settings.chosen_classes(scored.test.n_classes):
        document["operating_points"] = section("operating_points")
    below = [ambiguous_below(case, settings) for case in scored.cases]
    document["ambiguous"] = {
        "below": below[0] if len(set(below)) == 1 else below,
        "n": int(scored.unsure.sum()),
        "comparators": {name: found.unsure for name, found in judged.items()},
    }
    if parts:
        document["subgroups"] = {
            column: {
                value: {
                    "n": int(rows.sum()),
                    "comparators": {name: found.subgroups[column][value] for name, found in judged.items()},
                }
                for value, rows in values.items()
            }
            for column, values in parts.items()
        }
    document |= {name: section(name) for name in ("calibration", "selective")}
    document["per_1000"] = {"test": _per_1000(scored, settings), "validation": None}
    document["cost_curve"] = _cost_curve(scored)
    document["rivals"] = _rivals(scored, judged)
    if costs is not None:
        document["costs"] = section("costs")
    if "student" in judged and None not in judged["student"].on_validation:
        document["retrieval_worth"] = _worth(scored, comparators, judged, settings, draw)
    document["undefined"] = [each.to_json() for each in undefined_figures(document)]
    if notes := part_notes(scored, settings, draw.groups):
        document["notes"] = notes
    return document


def _rivals(scored: Scored, judged: Mapping[str, Judged]) -> dict[str, Any]:
    """Return what each rival chose on validation; of several folds, a list."""
    chosen = [case.choices() for case in scored.cases]
    if len(chosen) == 1:
        return chosen[0]
    return {name: [of_case[name] for of_case in chosen] for name in chosen[0] if name in judged}


def _worth(
    scored: Scored,
    comparators: Mapping[str, Comparator],
    judged: Mapping[str, Judged],
    settings: EvaluateConfig,
    draw: Draw,
) -> dict[str, Any]:
    """Compare the champions of both sides, which each fold chooses on its own validation rows."""
    with_bank = {name for name in judged if comparators[name].needs_bank}
    by_case = [
        champions(
            {
                name: score
                for name, found in judged.items()
                if name != "oracle" and (score := found.on_validation[number]) is not None
            },
            with_bank,
        )
        for number in range(len(scored.cases))
    ]
    sides = [tuple(names) for names in zip(*by_case, strict=True)]
    ours, rival = (", ".join(dict.fromkeys(names)) for names in sides)
    asked = {ours, rival} & judged.keys()
    scores: dict[str, Mapping[str, float]] = {name: judged[name].scores for name in asked}
    replicates: dict[str, Mapping[str, Array]] = {name: judged[name].replicates for name in asked}
    for name, names in zip((ours, rival), sides, strict=True):
        if name not in scores:  # the folds follow different ones
            p = put_together(scored.cases, [comparators[each] for each in names])
            scores[name], replicates[name] = scores_of(p, scored), replicates_of(scored, p, settings, draw.groups)
    return retrieval_worth(
        ours, rival, scores, replicates if draw.groups is not None else {}, scored.goal, level=settings.level
    )


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
