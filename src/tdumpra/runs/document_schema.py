"""What ``evaluation.json``, ``compared.json`` and ``gate.json`` may say: the types and ranges of what is read back.

A seal tells that a file is whole, not that it makes sense. A document that does not pass is made again where it can be,
and refused where it is only shown. The checks raise ``KeyError``, ``TypeError`` and ``ValueError``;
:func:`tdumpra.foreign.reading` makes one sentence of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tdumpra.evaluation.metrics_table import HEADINGS
from tdumpra.values import check_count, check_list, check_table, check_text

Check = Callable[[Any, str], object]


def check_document(kind: str, content: Mapping[str, Any]) -> None:
    """Check a document of a kind that has a schema; others pass."""
    if kind in _SCHEMAS:
        _SCHEMAS[kind](content, kind)


def number(value: Any, name: str) -> None:
    """Check a finite number, or null where it is undefined."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value!r}")


def share(value: Any, name: str) -> None:
    """Check a number from 0 to 1, or null where it is undefined."""
    number(value, name)
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1, not {value!r}")


def count(value: Any, name: str) -> None:
    """Check a whole number that is not negative."""
    check_count(value, name, least=0)


def flag(value: Any, name: str) -> None:
    """Check true or false."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, not {value!r}")


def perhaps(check: Check) -> Check:
    """Let null pass too."""
    return lambda value, name: None if value is None else check(value, name)


def either(*checks: Check) -> Check:
    """Check a value that may be of several kinds."""

    def check(value: Any, name: str) -> None:
        problems = []
        for each in checks:
            try:
                each(value, name)
            except (KeyError, TypeError, ValueError) as problem:
                problems.append(problem)
            else:
                return
        raise problems[-1]

    return check


def each(check: Check, *, having: tuple[str, ...] = ()) -> Check:
    """Check the values of an object, whatever their names; those of ``having`` must be there."""

    def checked(value: Any, name: str) -> None:
        values = check_table(value, name)
        for key in having:
            if key not in values:
                raise KeyError(f"{name}.{key}")
        for key, item in values.items():
            check(item, f"{name}.{key}")

    return checked


def listed(check: Check, length: int | None = None) -> Check:
    """Check a list of equal kinds, of that length where one is given."""

    def checked(value: Any, name: str) -> None:
        for i, item in enumerate(check_list(value, name, length)):
            check(item, f"{name}[{i}]")

    return checked


def table(needed: Mapping[str, Check], possible: Mapping[str, Check] | None = None) -> Check:
    """Check the fields of an object; ``possible`` ones may be missing, and further ones may be there."""

    def checked(value: Any, name: str) -> None:
        values = check_table(value, name)
        for key, check in needed.items():
            if key not in values:
                raise KeyError(f"{name}.{key}")
            check(values[key], f"{name}.{key}")
        for key, check in (possible or {}).items():
            if key in values:
                check(values[key], f"{name}.{key}")

    return checked


_NUMBERS = each(number)
_LIST = listed(number)
_PAIR = listed(number, 2)
_SCORES = each(_NUMBERS, having=("student", "gate"))
_METRICS = table(dict.fromkeys(HEADINGS, number))
_LEAD = table({"difference": number, "interval": perhaps(_PAIR)})
_PAIRED = each(table({"fixed": number, "broken": number}, dict.fromkeys(HEADINGS, _LEAD)))
_MOVED = table({"opened": number, "fixed": number, "broken": number, "by_class": each(_NUMBERS)})
_CURVE = each(_LIST, having=("accuracy", "balanced_accuracy", "nll"))
_BIN = each(either(number, _LIST))


def _evaluation(value: Any, name: str) -> None:
    """Check the figures of a seed, of several seeds (``by_seed``) or of several models (``models``)."""
    _EVALUATION(value, name)
    scored = set(value["comparators"])
    for section in ("intervals", "comparators_std", "per_class", "calibration", "selective"):
        if section in value and set(value[section]) != scored:
            raise ValueError(f"{name}.{section} must be of the comparators, and is of {', '.join(value[section])}")


_EVALUATION = table(
    {
        "version": check_text,
        "rows": table({"train": count, "val": count, "test": count}),
        "grouped": flag,
        "tuning": check_text,
        "certified": perhaps(flag),
        "notes": listed(check_text),
        "comparators": each(_METRICS, having=("student", "gate")),
        "gate": table(
            {"opened": number, "flipped": number, "fixed": number, "broken": number, "mcnemar_p": share},
            {"n": number, "sign_flip_p": share, "harm_upper": share},
        ),
        "undefined": listed(table({"where": check_text, "reason": check_text})),
    },
    {
        "made_from": check_text,
        "name": check_text,
        "inputs": each(either(check_text, listed(check_text))),
        "refit": flag,
        "seeds": listed(count),
        "folds": listed(count),
        "test_set": check_text,
        "comparators_std": _SCORES,
        "intervals": each(each(_PAIR), having=("student", "gate")),
        "bootstrap": each(either(number, check_text, flag)),
        "per_class": each(each(_NUMBERS)),
        "operating_points": each(each(each(each(either(number, _PAIR))))),
        "ambiguous": table({"below": number, "n": number, "comparators": each(_NUMBERS)}),
        "calibration": each(
            table(
                {
                    "classwise_ece": number,
                    "ece_if_calibrated": table({"mean": number, "upper": number}),
                    "bins": either(each(_LIST), listed(_BIN)),
                }
            )
        ),
        "selective": each(
            table(
                {"aurc": number, "excess_aurc": number, "curve": table({"coverage": _LIST, "risk": _LIST})},
                {"refer": perhaps(each(either(number, _LIST)))},  # several folds have a threshold each
            )
        ),
        "per_1000": table({"test": perhaps(_MOVED), "validation": perhaps(_MOVED)}),
        "cost_curve": perhaps(table({"theta": _LIST, "asked": _LIST, "gate": _CURVE, "average": _CURVE})),
        "rivals": each(either(check_table, listed(check_table))),
        "retrieval_worth": table({"sentence": check_text, "winner": check_text, "interval": perhaps(_PAIR)}),
        "paired": _PAIRED,
        "paired_with_tuning": _PAIRED,
        "headroom_taken": number,
        "resampled": check_text,
        "by_seed": each(_evaluation),
        "models": each(_evaluation),
    },
)
_COMPARED = table(
    {
        "gained": each(number),
        "compared": table(
            {"scores": each(_NUMBERS), "replicates": each(each(_LIST)), "gained": each(_NUMBERS)},
        ),
    }
)
_CHOSEN = table({"objective": number, "accuracy": number, "opened": number, "thresholds": perhaps(_NUMBERS)})
_GATE = table(
    {
        "sentence": check_text,
        "objective": check_text,
        "cases": table({"rows": count, "groups": perhaps(count), "by_class": listed(count), "disagreements": count}),
        "tried": table({"settings": count}),
        "base": _CHOSEN,
        "best": _CHOSEN,
        "contenders": listed(_CHOSEN),
        "won_by": _NUMBERS,
        "asked": number,
        "decision": table({"kappa": number, "tau": number, "temperature": number, "rule": check_text}),
        "certificate": perhaps(check_table),
        "out_of_fold": perhaps(check_table),
        "expected": perhaps(check_table),
        "notes": listed(check_text),
        "settings": check_table,
    }
)
_SCHEMAS: dict[str, Check] = {"evaluation": _evaluation, "compared": _COMPARED, "gate": _GATE}
