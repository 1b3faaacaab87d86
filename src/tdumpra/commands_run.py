"""The commands that work in a run's folder: ``run``, ``train``, ``embed``, ``bank``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tdumpra.artifacts import read_json
from tdumpra.assemble import assemble_model
from tdumpra.bank_health import BankHealth
from tdumpra.config import Config, read_config
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.predict import Model
from tdumpra.run_folder import RunFolder, run_folders
from tdumpra.stages import Dataset, embed_stage, open_data, train_stage
from tdumpra.table_stages import Banked, bank_stage, decision_inputs, evaluate_stage, is_evaluated, tune_stage
from tdumpra.train import make_fabric

Work = Callable[[Config, Dataset, RunFolder, int, Fabric, Console], None]


def train_command(config: Path, out: Path | None) -> None:
    """Train student and teacher; goes on where an earlier run stopped."""
    _for_each_seed(read_config(config), out, _train)


def embed_command(config: Path, out: Path | None) -> None:
    """Write logits and embeddings of every image: the tables that everything afterwards stands on."""
    _for_each_seed(read_config(config), out, _embed)


def bank_command(config: Path, out: Path | None) -> None:
    """Cluster the training embeddings into prototypes, and look them over."""
    settings = read_config(config)
    for seed, folder in run_folders(run_root(settings, out), settings.seeds).items():
        with folder.claim(settings, seed):
            _show_bank(bank_stage(settings, folder, seed), folder, Console())


def run_command(config: Path, out: Path | None, *, quiet: bool = False) -> dict[int, dict[str, Any]]:
    """Every stage, skipping those whose inputs have not changed; gives the evaluation of each seed.

    With saved ``outputs`` in the configuration there is nothing to train or to embed, and no model of images.
    """
    settings = read_config(config)
    evaluations: dict[int, dict[str, Any]] = {}

    def all_stages(
        config: Config, data: Dataset | None, folder: RunFolder, seed: int, fabric: Fabric | None, console: Console
    ) -> None:
        if data is not None and fabric is not None:
            _train(config, data, folder, seed, fabric, console)
            _embed(config, data, folder, seed, fabric, console)
        if fabric is None or fabric.is_global_zero:
            evaluations[seed] = _decide(config, data, folder, seed, console)
        if fabric is not None:
            fabric.barrier()

    if settings.outputs:
        for seed, folder in run_folders(run_root(settings, out), settings.seeds).items():
            with folder.claim(settings, seed):
                all_stages(settings, None, folder, seed, None, Console(quiet=quiet))
    else:
        _for_each_seed(settings, out, all_stages, quiet=quiet)
    return evaluations


def run_root(config: Config, out: Path | None) -> Path:
    """The folder of a run."""
    return out if out is not None else Path("runs") / config.name


def _train(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
    if train_stage(config, data, folder, seed=seed, fabric=fabric, console=console):
        console.print(f"Trained: {folder.checkpoint('last')}", soft_wrap=True)
    elif config.network.finished:
        console.print("The classifier is finished: nothing to train", soft_wrap=True)
    else:
        console.print(f"{folder.checkpoint('last')} is trained to its end", soft_wrap=True)


def _embed(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
    if not embed_stage(config, data, folder, fabric=fabric, console=console):
        console.print(f"{folder.root / 'outputs'} is up to date", soft_wrap=True)


def _decide(config: Config, data: Dataset | None, folder: RunFolder, seed: int, console: Console) -> dict[str, Any]:
    """Bank, tuning, evaluation and model: everything that needs no training."""
    banked = bank_stage(config, folder, seed)
    _show_bank(banked, folder, console)
    if is_evaluated(config, folder, seed) and (data is None or _is_assembled(config, folder, seed)):
        console.print(f"{folder.evaluation} is up to date", soft_wrap=True)
        return read_json(folder.evaluation, kind="evaluation", schema=1)
    tuning = tune_stage(config, folder, seed, banked.bank)
    if data is not None:
        inputs = decision_inputs(config, folder, seed)
        assemble_model(config, data, folder, tuning.decision, inputs=inputs).write(folder.model)
        console.print(f"Written: {folder.model}", soft_wrap=True)
    return evaluate_stage(config, folder, seed, tuning)


def _is_assembled(config: Config, folder: RunFolder, seed: int) -> bool:
    if not folder.model.exists():
        return False
    try:
        model = Model.read(folder.model)
    except ArtifactError:
        return False  # a damaged model is made again
    wanted = decision_inputs(config, folder, seed)
    return wanted.items() <= model.identity.items() and bool(model.thumbnails) == config.bank.thumbnails


def _for_each_seed(config: Config, out: Path | None, work: Work, *, quiet: bool = False) -> None:
    fabric = make_fabric(config.train)
    fabric.launch()
    console = Console(quiet=quiet or not fabric.is_global_zero)
    data = open_data(config, console)
    for seed, folder in run_folders(run_root(config, out), config.seeds).items():
        with _claimed_by_first(folder, config, seed, fabric):
            if fabric.is_global_zero:
                data.split.write(folder.split)
            work(config, data, folder, seed, fabric, console)


@contextmanager
def _claimed_by_first(folder: RunFolder, config: Config, seed: int, fabric: Fabric) -> Iterator[None]:
    """The first process claims the folder for all; where it cannot, the others end too instead of waiting for it."""
    if fabric.world_size == 1:
        with folder.claim(config, seed):
            yield
        return
    if not fabric.is_global_zero:
        if not fabric.broadcast(False):
            raise SystemExit(2)
        yield
        return
    try:
        claim = folder.claim(config, seed)
        claim.__enter__()
    except TdumpraError:
        fabric.broadcast(False)
        raise
    try:
        fabric.broadcast(True)
        yield
    finally:
        claim.__exit__(None, None, None)


def _show_bank(banked: Banked, folder: RunFolder, console: Console) -> None:
    if not banked.made:
        console.print(f"{folder.bank} is up to date", soft_wrap=True)
        return
    console.print(_health_table(banked.health))
    for note in banked.health.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    console.print(f"Written to {folder.bank} ({int(banked.bank.mask.sum())} prototypes)", soft_wrap=True)


def _health_table(health: BankHealth) -> Table:
    table = Table("class", "prototypes", "merged", "effective", "cohesion", "nearest other class")
    for each in health.classes:
        table.add_row(
            each.name, str(each.live), str(each.merged), f"{each.effective:.1f}", f"{each.cohesion:.3f}",
            f"{each.nearest_other:.3f}",
        )  # fmt: skip
    return table
