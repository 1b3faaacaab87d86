"""Whether saved outputs may stand in one table: what is averaged or set side by side must be of the same test rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tdumpra.artifacts import fingerprint
from tdumpra.errors import TdumpraError
from tdumpra.evaluation.over_seeds import SEEDS, SeedRows, refuse_another_kind, refuse_other_test_rows
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs import outputs as run_outputs
from tdumpra.runs.config import Config
from tdumpra.runs.outputs import SavedRun

_OF = {"model": SEEDS, "backbone": "trainings of one backbone"}


def refuse_strangers(
    config: Config,
    runs: Sequence[SavedRun],
    *,
    of_one: Literal["model", "backbone"] = "model",
    test_rows: bool = True,
) -> None:
    """Compare each further run of a model, or of a backbone, with the first one.

    Args:
        config: how to read the runs.
        runs: saved outputs, or runs whose tables are there.
        of_one: what they are compared within.
        test_rows: they must share them. Otherwise classes, and whether there are groups, are compared alone.
    """
    for name in dict.fromkeys(getattr(run, of_one) for run in runs):
        first, *others = (run for run in runs if getattr(run, of_one) == name)
        if not others:
            continue
        known = _rows_of(config, first)
        for other in others:
            rows = _rows_of(config, other)
            refuse_another_kind(known, rows, who=_OF[of_one])
            if test_rows:
                refuse_other_test_rows(known, rows, who=_OF[of_one])


def refuse_several_backbones(config: Config, what: str) -> None:
    """Saved outputs of one network only: those of several would be averaged as if they were its seeds."""
    backbones = dict.fromkeys(run.backbone for run in run_outputs.saved_runs(config))
    if config.outputs and len(backbones) > 1:
        raise TdumpraError(
            f"{what} is of one network, and by their names the outputs are of {len(backbones)} "
            f"({', '.join(backbones)}): give those of one, or the same name to its files (NAME_ce_seed0.npz, "
            "NAME_joint_seed1.npz)"
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


def _rows_of(config: Config, run: SavedRun) -> SeedRows:
    return SeedRows.of(str(run.path), run_outputs.read_saved(run, config))
