"""Refuse outputs that may not stand in one table: what is averaged or compared must be of the same test rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tdumpra.artifacts import fingerprint
from tdumpra.errors import TdumpraError
from tdumpra.evaluation.over_seeds import SEEDS, SeedRows, refuse_another_kind, refuse_other_test_rows
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs.config import Config
from tdumpra.runs.outputs import Outputs, all_outputs, folds_of_seeds

_OF = {"model": SEEDS, "backbone": "trainings of one backbone"}


def refuse_strangers(
    outputs: Sequence[Outputs], *, of_one: Literal["model", "backbone"] = "model", test_rows: bool = True
) -> None:
    """Compare the further outputs of a model, or of a backbone, with the first ones.

    Classes, and whether there are groups, must agree; with ``test_rows`` the test rows must be the same too, those of
    the outer folds of a seed taken together.
    """
    seeds = folds_of_seeds(outputs)
    for name in dict.fromkeys(getattr(folds[0], of_one) for folds in seeds):
        of_name = [folds for folds in seeds if getattr(folds[0], of_one) == name]
        if len(of_name) == 1 and len(of_name[0]) == 1:
            continue
        known, *others = ([_rows_of(each) for each in folds] for folds in of_name)
        for rows in (*known[1:], *(each for folds in others for each in folds)):
            refuse_another_kind(known[0], rows, who=_OF[of_one])
        if test_rows:
            together = [_together(folds) for folds in (known, *others)]
            for rows in together[1:]:
                refuse_other_test_rows(together[0], rows, who=_OF[of_one])


def refuse_folds(config: Config, what: str) -> None:
    """Refuse outer folds where rows of different splits would be averaged as if they were seeds of one."""
    if (not config.outputs and config.data.outer_folds is not None and config.data.fold is None) or any(
        each.fold is not None for each in config.outputs
    ):
        raise TdumpraError(f"{what} works on one split: name one of the outer folds with data.fold, or do without them")


def refuse_several_backbones(config: Config, what: str) -> None:
    """Refuse saved outputs of several networks: they would be averaged as if they were seeds of one."""
    backbones = dict.fromkeys(each.backbone for each in all_outputs(config))
    if config.outputs and len(backbones) > 1:
        raise TdumpraError(
            f"{what} is of one network, and the outputs are of {len(backbones)} ({', '.join(backbones)}): give those "
            "of one, or the same backbone in each table [[outputs]]"
        )


def rows_scored(splits: SplitOutputs) -> str:
    """A name for the images that were scored, and for their labels."""
    test = splits.test
    names = [""] * len(test) if test.own_ids is None else [str(name) for name in test.own_ids]
    return fingerprint(*sorted(f"{name}={label}" for name, label in zip(names, test.y.tolist(), strict=True)))


def refuse_mixed(results: Iterable[Mapping[str, Any]]) -> None:
    """The cells of one table, told apart by :func:`rows_scored`: the data may have changed between two trainings."""
    if len({result["test_rows"] for result in results}) > 1:
        raise TdumpraError(
            "the rows of this table were not scored on the same test images and labels: the data changed after some of "
            "the networks were trained; take another folder, or train them all again"
        )


def _together(folds: Sequence[SeedRows]) -> SeedRows:
    """Join the test rows of the folds of a seed; none may be tested twice."""
    first = folds[0]
    if len(folds) == 1:
        return first
    joined: dict[str, Any] = {}
    for what in ("y", "groups", "ids"):
        columns = [getattr(each, what) for each in folds]
        joined[what] = None if any(column is None for column in columns) else np.concatenate(columns)
    for what in ("groups", "ids"):
        if joined[what] is None:
            continue
        names, times = np.unique(np.concatenate([np.unique(getattr(each, what)) for each in folds]), return_counts=True)
        if (times > 1).any():
            raise TdumpraError(
                f"{str(names[times.argmax()])!r} is tested in two folds of {first.name} and those beside it: outer "
                "folds must share no test row and no group"
            )
    return first._replace(**joined)


def _rows_of(outputs: Outputs) -> SeedRows:
    return SeedRows.of(str(outputs.origin), outputs.load())
