"""What goes into a model beside what it needs to predict: its record, its figures, the first entry of its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tdumpra.evaluation.in_brief import in_brief
from tdumpra.method import lineage
from tdumpra.method.outputs import TrainOutputs, ValidationOutputs
from tdumpra.method.record import BankRecipe, Record
from tdumpra.method.rows import KeptRows, no_rows
from tdumpra.runs.outputs import Outputs, TrainedOutputs
from tdumpra.runs.refit import folder_in_use
from tdumpra.runs.table_stages import evaluate_step
from tdumpra.runs.tables import OutputsTable, in_space, read_tables

_PLACES = ("folder", "seeds", "evaluate", "outputs")  # settings that do not change a model of one seed


def record_of(outputs: Outputs) -> Record | None:
    """Return what the model keeps of its rows; ``None`` where ``bank.record`` is off."""
    config = outputs.config
    if not config.bank.record:
        return None
    recipe = BankRecipe(
        config.bank.n_prototypes, config.bank.seed, config.tune.searched().merge_above, bool(config.tune.folds)
    )
    if not isinstance(outputs, TrainedOutputs):
        splits = outputs.load()
        train = _from_outputs(splits.train, splits.n_classes, start=0)
        return Record.keep(train, _from_outputs(splits.validation, splits.n_classes, start=len(train)), recipe)
    refit = config.train.refit
    tables, space = in_space(config, read_tables(folder_in_use(outputs)), outputs.seed, refit=refit)
    train = _from_table(tables["train"], space, config.tune.classifier)
    if refit:  # the second network saw the validation images: they are among its training rows
        return Record.keep(train, no_rows(train.p.shape[1], train.z.shape[1]), recipe._replace(with_validation=False))
    return Record.keep(train, _from_table(tables["val"], space, config.tune.classifier), recipe)


def evaluation_in_brief(outputs: Outputs) -> dict[str, Any]:
    """Return the figures that the model takes along, and where its images came from."""
    data = {}
    if isinstance(outputs, TrainedOutputs):
        asked = outputs.config.data
        names = ("protocol", "split_seed", "hold_out", "fold")
        data = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
        sources = {"source": asked.source, "test_source": asked.test_source}
        data |= {name: _without_folders(source) for name, source in sources.items() if source is not None}
    return in_brief(evaluate_step(outputs).result().document, data)


def _without_folders(source: str) -> str:
    """Return a source without the folders of this machine, which a model that is handed on should not tell."""
    kind, _, place = source.partition(":")
    return f"{kind}:{place if kind == 'synthetic' else Path(place).name}"


def first_entry(outputs: Outputs, command: str, inputs: Mapping[str, str]) -> tuple[lineage.Entry, ...]:
    """Return the history of a model that has no parents."""
    settings = {name: value for name, value in asdict(outputs.config).items() if name not in _PLACES}
    settings = {"seed": outputs.seed, **settings}
    if not isinstance(outputs, TrainedOutputs):  # nothing was trained or embedded
        settings = {name: value for name, value in settings.items() if name in ("seed", "name", "bank", "tune")}
    return lineage.append((), command=command, settings=settings, inputs=inputs)


def _from_table(table: OutputsTable, space: str, classifier: str) -> KeptRows:
    features = table.features_teacher if classifier == "teacher" else table.features
    ids, groups = np.array(table.ids, np.str_), np.array(table.groups, np.str_)
    return KeptRows(
        ids=ids,
        groups=groups,
        y=table.labels.numpy().astype(np.int64),
        p=table.posterior(classifier).float().numpy(),
        z=table.embedding(space).numpy(),
        features=None if features is None else features.numpy(),
        colours=None if table.colours is None else table.colours.numpy(),
        content=None if table.content is None else np.array(table.content, np.str_),
        grouped=bool((ids != groups).any()),
    )


def _from_outputs(rows: TrainOutputs | ValidationOutputs, n_classes: int, *, start: int) -> KeptRows:
    """Return a file's rows; those without an id are numbered from ``start`` on."""
    numbers = np.arange(start, start + len(rows)).astype(np.str_)
    ids = numbers if rows.ids is None else rows.ids
    p: Any = np.full((len(rows), n_classes), np.nan, np.float32) if rows.p is None else _array(rows.p)
    return KeptRows(
        ids=ids,
        groups=ids if rows.groups is None else rows.groups,
        y=rows.y.numpy(),
        p=p.astype(np.float32),
        z=_array(rows.z),
        features=None if rows.features is None else _array(rows.features.half()),
        named=rows.ids is not None,
        grouped=rows.groups is not None,
    )


def _array(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.numpy()
    return array
