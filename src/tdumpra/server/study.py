"""What a study shows so far: agreement of readers, and readers, classifier and model against the decided labels.

Cases are the lesions' photographs: intervals draw lesions with replacement, so that several photographs of one lesion
count as what they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tdumpra.core.bootstrap import group_weights, percentile_interval
from tdumpra.server.cases import FILTERS
from tdumpra.server.export import rows
from tdumpra.server.tables import Account, Case, Opinion, Reading

LEVEL = 0.95
_REPLICATES = 1000
_NONE = float("nan")
_PATHS = {"classifier alone": "classifier", "retrieval alone": "retrieval", "model, with its gate": "label"}


class Estimate(NamedTuple):
    """A figure with its interval; NaN where the data do not define it."""

    value: float
    low: float
    high: float
    n: int


class Rater(NamedTuple):
    """Someone or something that names classes, beside the decided labels."""

    name: str
    share: Estimate


class Moved(NamedTuple):
    """Decided cases that the gate moved."""

    right: int  # the classifier was wrong, and the final label is right
    wrong: int  # the classifier was right, and the final label is wrong
    neither: int


class Study(NamedTuple):
    """Everything on the page of a study."""

    counts: dict[str, int]
    kappa: Estimate
    raters: list[Rater]
    moved: Moved
    changed_mind: dict[str, int]  # readers' second answers, given with the model: kept, to right, to wrong, other


class _Answer(NamedTuple):
    case: str
    group: str
    rater: str
    label: str
    informed: bool
    first: bool


def study(session: Session, readers: int) -> Study:
    """Compute all figures of the cases that are not withdrawn."""
    answers = _answers(session)
    decided = {case.id: decision.label for case, decision, _ in rows(session)}
    models = [(case.id, case.lesion or case.id, opinion) for case, _, opinion in rows(session)]
    raters = _readers(answers, decided)
    for name, said in _PATHS.items():
        pairs = [(group, getattr(opinion, said) == decided[case]) for case, group, opinion in models]
        raters.append(Rater(name, _share(pairs)))
    return Study(
        _counts(session, answers, len(decided), readers),
        fleiss_kappa(answers_by_case(answers)),
        raters,
        _moved([(opinion, decided[case]) for case, _, opinion in models]),
        _changed(answers, decided),
    )


def answers_by_case(answers: Sequence[_Answer]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the group and the first answers of each case that at least two people read."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in answers:
        if each.first:
            found[each.case, each.group].append(each.label)
    return [(group, tuple(labels)) for (_, group), labels in found.items() if len(labels) > 1]


def fleiss_kappa(cases: Sequence[tuple[str, tuple[str, ...]]]) -> Estimate:
    r"""Return agreement beyond chance of answers by any readers, with its interval over groups.

    .. math:: \\kappa = (P - P_e) / (1 - P_e)

    ``P`` is the mean over cases of the share of pairs of answers that agree, ``P_e`` the sum of the squared shares of
    the classes among all answers (Fleiss, 1971). Each case counts alike, however many people read it.
    """
    if not cases:
        return Estimate(_NONE, _NONE, _NONE, 0)
    names = sorted({label for _, labels in cases for label in labels})
    table = np.array([[labels.count(name) for name in names] for _, labels in cases], float)
    n = table.sum(1)
    agree = (table * (table - 1)).sum(1) / (n * (n - 1))
    shares = table / n[:, None]

    def kappa(w: np.ndarray) -> np.ndarray:
        total = w.sum(0)
        by_chance = ((shares.T @ w / total) ** 2).sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            found: np.ndarray = np.where(by_chance < 1, (agree @ w / total - by_chance) / (1 - by_chance), np.nan)
        return found

    return _interval([group for group, _ in cases], kappa)


def _share(pairs: Sequence[tuple[str, bool]]) -> Estimate:
    """Return how often something is true, with its interval over groups."""
    if not pairs:
        return Estimate(_NONE, _NONE, _NONE, 0)
    right = np.array([each for _, each in pairs], float)
    return _interval([group for group, _ in pairs], lambda w: right @ w / w.sum(0))


def _interval(groups: Sequence[str], figure: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    member = np.unique(np.asarray(groups), return_inverse=True)[1]
    drawn = [figure(w) for w in group_weights(member, n_replicates=_REPLICATES, seed=0)]
    value = float(figure(np.ones((len(groups), 1)))[0])
    low, high = percentile_interval(np.concatenate(drawn), LEVEL)
    return Estimate(value, low, high, len(groups))


def _answers(session: Session) -> list[_Answer]:
    found = (
        select(Reading, Case, Account.name)
        .join(Case, Reading.case_id == Case.id)
        .join(Account, Reading.reader_id == Account.id)
        .where(Case.withdrawn_at.is_(None))
        .order_by(Case.number, Reading.created_at)
    )
    return [
        _Answer(case.id, case.lesion or case.id, name, reading.label, reading.informed, reading.first)
        for reading, case, name in session.execute(found)
    ]


def _readers(answers: Sequence[_Answer], decided: dict[str, str]) -> list[Rater]:
    raters: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for each in answers:
        if each.case in decided:
            how = "with the model" if each.informed else "alone"
            raters[f"reader {each.rater}, {how}"].append((each.group, each.label == decided[each.case]))
    return [Rater(name, _share(pairs)) for name, pairs in sorted(raters.items())]


def _counts(session: Session, answers: Sequence[_Answer], decided: int, readers: int) -> dict[str, int]:
    labels = defaultdict(list)
    for each in answers:
        if each.first:
            labels[each.case].append(each.label)
    complete = [found for found in labels.values() if len(found) >= readers]
    judged = select(func.count()).select_from(Case).join(Opinion, Opinion.case_id == Case.id)
    living = judged.where(Case.withdrawn_at.is_(None), Opinion.active)
    return {
        "cases": session.scalar(living) or 0,
        FILTERS["opened"]: session.scalar(living.where(Opinion.opened)) or 0,
        FILTERS["moved"]: session.scalar(living.where(Opinion.label != Opinion.classifier)) or 0,
        "read by enough": len(complete),
        "readers differ": sum(len(set(found)) > 1 for found in complete),
        "decided": decided,
    }


def _moved(judged: Sequence[tuple[Opinion, str]]) -> Moved:
    moved = [(opinion, truth) for opinion, truth in judged if opinion.label != opinion.classifier]
    right = sum(opinion.label == truth for opinion, truth in moved)
    wrong = sum(opinion.classifier == truth for opinion, truth in moved)
    return Moved(right, wrong, len(moved) - right - wrong)


def _changed(answers: Sequence[_Answer], decided: dict[str, str]) -> dict[str, int]:
    alone = {(each.case, each.rater): each.label for each in answers if each.first and not each.informed}
    found = {"stayed": 0, "to the decided label": 0, "away from it": 0, "between other labels, or not decided yet": 0}
    for each in answers:
        before = alone.get((each.case, each.rater))
        if before is None or not each.informed:
            continue
        truth = decided.get(each.case)
        if each.label == before:
            found["stayed"] += 1
        elif each.label == truth:
            found["to the decided label"] += 1
        elif before == truth:
            found["away from it"] += 1
        else:
            found["between other labels, or not decided yet"] += 1
    return found
