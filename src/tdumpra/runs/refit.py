"""The second network of ``train.refit``: trained on train and validation images, with all that the first one chose.

The first network is tuned on validation rows that it never saw. The second has seen them, so nothing is fitted on its
outputs: its bank is made of train and validation rows, the gate's settings are carried over, and test rows are scored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from tdumpra.core.calibration import class_prior
from tdumpra.data.dataset import Dataset
from tdumpra.errors import ArtifactError
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import TestOutputs, TrainOutputs, join
from tdumpra.networks.checkpoint import epochs_behind
from tdumpra.runs.config import Config, read_config
from tdumpra.runs.folder import RefitFolder, RunFolder
from tdumpra.runs.outputs import Outputs, TrainedOutputs
from tdumpra.runs.tables import (
    in_space,
    read_tables,
    refuse_mixed_tables,
    refuse_other_settings,
    run_with_tables,
    scored_rows,
    train_rows,
)
from tdumpra.writing import make_folder

TO_BE_MADE = "to be made"


class SecondPass(NamedTuple):
    """What the stages are given for the second network of ``train.refit``."""

    dataset: Dataset  # the validation images are among the training images
    folder: RefitFolder
    epochs: int  # behind the first network's checkpoint that was embedded: the best one's, or until patience ended


def second_pass(config: Config, dataset: Dataset, folder: RunFolder) -> SecondPass:
    """Prepare the second training of a run whose first one lies in ``folder``."""
    chosen = folder.checkpoint(config.embed.checkpoint)
    if not chosen.exists():
        raise ArtifactError(f"{chosen} does not exist: run  tdumpra train  first")
    for place in (folder.refit.root / "checkpoints", folder.refit.root / "outputs"):
        make_folder(place)
    return SecondPass(dataset.without_validation(), folder.refit, epochs_behind(chosen))


class Rows(NamedTuple):
    """The second network's outputs. There are no validation rows: nothing can be tuned on them."""

    train: TrainOutputs  # of train and validation images
    test: TestOutputs


class Refitted(NamedTuple):
    """The second network's outputs, and what decides on them: its own bank, with all that the first network chose."""

    rows: Rows
    decision: Decision


def folder_in_use(outputs: TrainedOutputs) -> RunFolder:
    """Return the folder of the network that goes into use: the second one, where there are two."""
    return outputs.folder.refit if outputs.config.train.refit else outputs.folder


def refit_identity(outputs: Outputs) -> dict[str, Any]:
    """Name the contents of the second network's tables; nothing where there is no second network."""
    if not isinstance(outputs, TrainedOutputs) or not outputs.config.train.refit:
        return {}
    folders = {"refit": outputs.folder.refit}
    other = _space_folder(outputs)
    if other is not None:
        folders["refit of bank.space"] = other.refit
    return {name: folder.tables_digest() if folder.has_tables else TO_BE_MADE for name, folder in folders.items()}


def _space_folder(outputs: TrainedOutputs) -> RunFolder | None:
    """Return the folder of the run that ``bank.space`` names, if that run was trained."""
    space = outputs.config.bank.space
    if space in ("teacher", "student"):
        return None
    folder = run_with_tables(space, outputs.seed, fold=outputs.fold)
    return None if read_config(folder.config).network.as_it_is else folder


def refit_rows(outputs: TrainedOutputs, first: SplitOutputs) -> Rows:
    """Read the second network's tables; refuse those of other images than the ``first`` network's."""
    config, folder = outputs.config, outputs.folder.refit
    if not folder.has_tables:
        raise ArtifactError(
            f"{folder.root} holds no tables of the second network, which train.refit asks for: run  tdumpra train "
            " and  tdumpra embed  first"
        )
    tables = read_tables(folder)
    refuse_other_settings(config, tables["train"].made, folder)
    joined, space = in_space(config, tables, outputs.seed, refit=True)
    refuse_mixed_tables(joined)
    rows = Rows(
        train_rows(joined["train"], space),
        scored_rows(TestOutputs, joined["test"], space, config.tune.classifier, "_test"),
    )
    expected = {"train": join([first.train.ids, first.validation.ids]), "test": first.test.ids}
    if any(sorted(expected[part]) != sorted(table.ids) for part, table in joined.items()):
        raise ArtifactError(
            f"{folder.root} was trained on other images than the train and validation images of {outputs.folder.root}: "
            "remove it, and run  tdumpra train  and  tdumpra embed  again"
        )
    return rows


def carried_over(decision: Decision, bank: PrototypeBank, rows: Rows) -> Refitted:
    """Put the second network's bank, and the prior of its training rows, in place of the first network's."""
    return Refitted(rows, replace(decision, bank=bank, prior=class_prior(rows.train.y, bank.n_classes)))
