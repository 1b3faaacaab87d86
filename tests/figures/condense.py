"""Reduce a command's JSON to the figures worth keeping, and compare them with those kept before."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

# Prose, places and fingerprints may change while every figure stays.
_NOT_FIGURES = frozenset({
    "checksum", "columns", "environment", "fingerprint", "inputs", "kind", "made_from", "name", "notes", "outputs",
    "reason", "schema", "seconds", "sentence", "settings", "source", "title", "tuning", "version",
})  # fmt: skip
_LONG = 12  # longer lists are summed up
SHORT = frozenset({"costs", "gate", "retrieval_worth", "rows"})
_BY_SEED = frozenset({"comparators", "gate", "retrieval_worth"})


def figures(value: Any) -> Any:
    """Return ``value`` without prose and places, its long lists and tables summed up."""
    if isinstance(value, dict):
        return {str(key): figures(each) for key, each in value.items() if key not in _NOT_FIGURES}
    if not isinstance(value, list | tuple):
        return value
    if len(value) <= _LONG and not any(isinstance(each, list) and len(each) > 2 for each in value):
        return [figures(each) for each in value]
    if all(isinstance(each, dict) for each in value):
        columns = sorted({key for row in value for key in row} - _NOT_FIGURES)
        return {key: summary([row.get(key) for row in value]) for key in columns}
    return summary(value)


def evaluation_figures(found: dict[str, Any], whole: frozenset[str] = SHORT | {"comparators"}) -> dict[str, Any]:
    """Return the figures of an evaluation; sections that are not ``whole`` are summed up for each comparator."""
    if "models" in found:  # the first of which stands at the top as well
        return {name: evaluation_figures(each, whole) for name, each in found["models"].items()}
    kept: dict[str, Any] = {}
    for key, value in found.items():
        if key == "by_seed":
            seeds = {seed: {name: each[name] for name in _BY_SEED & each.keys()} for seed, each in value.items()}
            kept[key] = {seed: evaluation_figures(each, SHORT) for seed, each in seeds.items()}
        elif key in whole or not isinstance(value, dict):
            kept |= figures({key: value})
        else:
            kept[key] = {name: summary(each) for name, each in value.items()}
    return dict(sorted(kept.items()))


def summary(value: Any) -> list[Any]:
    """Return what changes with any figure below ``value``: how many there are, two sums, a digest of the labels."""
    leaves = list(_leaves(value, ""))
    numbers = [(i, each) for i, (_, each) in enumerate(leaves) if _is_number(each)]
    labels = [(place, each) for place, each in leaves if not _is_number(each)]
    sums = math.fsum(each for _, each in numbers), math.fsum(each * (1 + i % 97) for i, each in numbers)
    return [len(numbers), *sums, hashlib.sha256(repr(labels).encode()).hexdigest()[:8] if labels else ""]


def differences(expected: Any, found: Any, *, relative: float, place: str = "") -> list[str]:
    """Return where ``found`` departs from ``expected``. Keys that ``expected`` does not know are allowed."""
    if isinstance(expected, dict) and isinstance(found, dict):
        missing = [f"{place}.{key}: missing" for key in expected if key not in found]
        pairs = [(f"{place}.{key}", expected[key], found[key]) for key in expected if key in found]
        return missing + [line for at, old, new in pairs for line in differences(old, new, relative=relative, place=at)]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = [(f"{place}[{i}]", old, new) for i, (old, new) in enumerate(zip(expected, found, strict=True))]
        return [line for at, old, new in pairs for line in differences(old, new, relative=relative, place=at)]
    if isinstance(expected, float) and _is_number(found):
        same = math.isclose(expected, found, rel_tol=relative, abs_tol=relative)
    else:
        same = type(expected) is type(found) and expected == found
    return [] if same else [f"{place}: {expected!r} became {found!r}"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield every figure below ``value`` with its place; the order of a dictionary's keys does not matter."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            if key not in _NOT_FIGURES:
                yield from _leaves(value[key], f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for i, each in enumerate(value):
            yield from _leaves(each, f"{place}[{i}]")
    else:
        yield place, value
