"""The commands that work in a run's folder: ``run``, ``train``, ``embed``, ``bank``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lightning_fabric import Fabric
from rich.console import Console
from rich.table import Table

from tdumpra.artifacts import read_json
from tdumpra.data.dataset import Dataset, open_data
from tdumpra.errors import ArtifactError
from tdumpra.experiments.evaluation import keep_finished
from tdumpra.method.bank_health import BankHealth
from tdumpra.networks.model_file import Model
from tdumpra.networks.train import make_fabric
from tdumpra.runs.config import Config
from tdumpra.runs.fitting import metadata_fingerprint
from tdumpra.runs.folder import RunFolder, refuse_results_of_another, run_folders, run_root
from tdumpra.runs.idle_settings import idle_settings
from tdumpra.runs.model import assemble_model
from tdumpra.runs.outputs import found_from_anywhere, read_run, read_saved, saved_runs
from tdumpra.runs.stages import claimed_by_first, embed_stage, train_stage
from tdumpra.runs.table_stages import (
    Banked,
    bank_of,
    bank_stage,
    decision_inputs,
    evaluate_stage,
    is_evaluated,
    tune_stage,
)
from tdumpra.screen import show_notes
from tdumpra.tuning.goal import Goal

Work = Callable[[Config, Dataset, RunFolder, int, Fabric, Console], None]


class Evaluated(NamedTuple):
    """A seed's folder and the contents of its ``evaluation.json``."""

    folder: RunFolder
    evaluation: dict[str, Any]


def train_command(config: Path, out: Path | None) -> None:
    """Train student and teacher; goes on where an earlier run stopped."""
    _for_each_seed(_in_folder(config, out), _train)


def embed_command(config: Path, out: Path | None) -> None:
    """Write logits and embeddings of every image: the tables that everything afterwards stands on."""
    _for_each_seed(_in_folder(config, out), _embed)


def bank_command(config: Path, out: Path | None) -> None:
    """Cluster the training embeddings into prototypes, and look them over."""
    settings = _in_folder(config, out)
    if settings.outputs:
        _banks_of_files(settings)
        return
    for seed, folder in run_folders(run_root(settings), settings.seeds).items():
        with folder.claim(settings, seed):
            _show_bank(bank_stage(settings, folder, seed), folder, Console())


def _banks_of_files(config: Config) -> None:
    """Each file's bank where ``tune`` puts its gate; the names of the files say which seeds they are."""
    config = replace(config, outputs=tuple(map(found_from_anywhere, config.outputs)))
    root, runs = run_root(config), saved_runs(config)
    show_notes(idle_settings(config), Console(stderr=True))
    for run in runs:
        splits = read_saved(run, config)  # before a folder is made for it
        folder = RunFolder(root if len(runs) == 1 else root / f"{run.model}_seed{run.seed}")
        with folder.claim(config, run.seed):
            _show_bank(bank_of(splits, config, folder), folder, Console())


def run_command(config: Path, out: Path | None, *, quiet: bool = False) -> dict[int, Evaluated]:
    """Every stage, skipping those whose inputs have not changed; gives the evaluation of each seed."""
    evaluations: dict[int, Evaluated] = {}

    def encode(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
        _train(config, data, folder, seed, fabric, console)
        _embed(config, data, folder, seed, fabric, console)

    def decide(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
        if fabric.is_global_zero:
            evaluations[seed] = Evaluated(folder, _decide(config, data, folder, seed, console))
        fabric.barrier()

    def both(*arguments: Any) -> None:
        encode(*arguments)
        decide(*arguments)

    settings = _in_folder(config, out)
    root = run_root(settings)
    show_notes(idle_settings(settings), Console(stderr=True, quiet=quiet))
    for folder in {root, *(each.root for each in run_folders(root, settings.seeds).values())}:
        refuse_results_of_another(settings, folder)
    # one choice for all seeds can be made only when all are there; else each seed is finished before the next begins
    rounds = (encode, decide) if settings.tune.pool_seeds else (both,)
    _for_each_seed(settings, *rounds, quiet=quiet)
    return evaluations


def _in_folder(config: Path, out: Path | None) -> Config:
    settings = read_run(config)
    return settings if out is None else replace(settings, folder=str(out))


def _train(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
    if train_stage(config, data, folder, seed=seed, fabric=fabric, console=console):
        console.print(f"Trained: {folder.checkpoint('last')}", soft_wrap=True)
    elif config.network.as_it_is:
        console.print("The network is taken as it is: nothing to train", soft_wrap=True)
    else:
        console.print(f"{folder.checkpoint('last')} is trained to its end", soft_wrap=True)


def _embed(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
    if not embed_stage(config, data, folder, seed=seed, fabric=fabric, console=console):
        console.print(f"{folder.root / 'outputs'} is up to date", soft_wrap=True)


def _decide(config: Config, data: Dataset, folder: RunFolder, seed: int, console: Console) -> dict[str, Any]:
    """Bank, tuning, evaluation and model: everything that needs no training."""
    _show_bank(bank_stage(config, folder, seed), folder, console)
    if is_evaluated(config, folder, seed) and _is_assembled(config, folder, seed):
        console.print(f"{folder.evaluation} is up to date", soft_wrap=True)
        return read_json(folder.evaluation, kind="evaluation", schema=1)
    fitted = tune_stage(config, folder, seed)
    inputs = decision_inputs(config, folder, seed)
    assemble_model(config, data, folder, fitted.tuning.decision, seed=seed, inputs=inputs).write(folder.model)
    console.print(f"Written: {folder.model}", soft_wrap=True)
    evaluation = evaluate_stage(config, folder, seed, fitted)
    keep_finished(config, seed, fitted, {key: value for key, value in evaluation.items() if key != "inputs"})
    return evaluation


def _is_assembled(config: Config, folder: RunFolder, seed: int) -> bool:
    if not folder.model.exists():
        return False
    try:
        model = Model.read(folder.model)
    except ArtifactError:
        return False  # a damaged model is made again
    wanted = decision_inputs(config, folder, seed)
    return wanted.items() <= model.identity.items() and bool(model.thumbnails) == config.bank.thumbnails


def _for_each_seed(config: Config, *rounds: Work, quiet: bool = False) -> None:
    if config.outputs:
        raise ValueError("this configuration names saved outputs: there is nothing to train or to embed")
    fabric = make_fabric(config.train)
    fabric.launch()
    console = Console(quiet=quiet or not fabric.is_global_zero)
    data, told = None, dict[str, None]()
    for work, (seed, folder) in itertools.product(rounds, run_folders(run_root(config), config.seeds).items()):
        if data is None or config.data.val_by_seed:
            data = open_data(config.data, seed, progress=console.is_terminal)
            show_notes([note for note in data.notes if note not in told], console)
            told |= dict.fromkeys(data.notes)
            _refuse_what_cannot_be_scored(config, data)
        with claimed_by_first(folder, config, seed, fabric):
            if fabric.is_global_zero:
                data.split.write(folder.split)
            work(config, data, folder, seed, fabric, console)


def _refuse_what_cannot_be_scored(config: Config, data: Dataset) -> None:
    """What tuning and evaluation would refuse after hours of training is refused before them."""
    names = data.manifest.class_names
    Goal.check(config.tune.objective, config.tune.costs, n_classes=len(names))
    asked = replace(config.evaluate, class_names=config.evaluate.class_names or names)
    asked.chosen_classes(len(names))
    if asked.metadata is not None:
        metadata_fingerprint(config)  # the table must be there; its columns are subgroups too
        return
    records = (data.manifest.records[row] for row in data.rows("test"))
    asked.refuse_unknown_subgroups(sorted({key for record in records for key in record.meta}))


def _show_bank(banked: Banked, folder: RunFolder, console: Console) -> None:
    if not banked.made:
        console.print(f"{folder.bank} is up to date", soft_wrap=True)
        return
    console.print(_health_table(banked.health))
    show_notes(banked.health.notes, console)
    console.print(f"Written to {folder.bank} ({int(banked.bank.mask.sum())} prototypes)", soft_wrap=True)


def _health_table(health: BankHealth) -> Table:
    table = Table("class", "prototypes", "merged", "effective", "cohesion", "nearest other class")
    for each in health.classes:
        table.add_row(
            each.name, str(each.live), str(each.merged), f"{each.effective:.1f}", f"{each.cohesion:.3f}",
            f"{each.nearest_other:.3f}",
        )  # fmt: skip
    return table
