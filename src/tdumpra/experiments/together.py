"""Refuse outputs that may not stand in one table: what is averaged or compared must be of the same test rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tdumpra.artifacts import fingerprint
from tdumpra.errors import TdumpraError
from tdumpra.evaluation.over_seeds import SEEDS, SeedRows, refuse_another_kind, refuse_other_test_rows
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs.config import Config
from tdumpra.runs.outputs import Outputs, all_outputs

_OF = {"model": SEEDS, "backbone": "trainings of one backbone"}


def refuse_strangers(
    outputs: Sequence[Outputs], *, of_one: Literal["model", "backbone"] = "model", test_rows: bool = True
) -> None:
    """Compare the further outputs of a model, or of a backbone, with the first ones.

    Classes, and whether there are groups, must agree; with ``test_rows`` the test rows must be the same too.
    """
    for name in dict.fromkeys(getattr(each, of_one) for each in outputs):
        first, *others = (each for each in outputs if getattr(each, of_one) == name)
        if not others:
            continue
        known = _rows_of(first)
        for other in others:
            rows = _rows_of(other)
            refuse_another_kind(known, rows, who=_OF[of_one])
            if test_rows:
                refuse_other_test_rows(known, rows, who=_OF[of_one])


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


def _rows_of(outputs: Outputs) -> SeedRows:
    return SeedRows.of(str(outputs.origin), outputs.load())
