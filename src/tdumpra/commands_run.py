"""The commands that train and embed: ``train``, ``embed``, ``bank``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lightning_fabric import Fabric
from rich.console import Console
from rich.table import Table

from tdumpra.bank_health import BankHealth
from tdumpra.config import Config, read_config
from tdumpra.run_folder import RunFolder, run_folders
from tdumpra.stages import Dataset, bank_stage, embed_stage, open_data, train_stage
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
    console = Console()
    for seed, folder in run_folders(run_root(settings, out), settings.seeds).items():
        with folder.claim(settings, seed):
            bank, health = bank_stage(settings, folder)
        console.print(_health_table(health))
        for note in health.notes:
            console.print(f"[yellow]note:[/] {note}", soft_wrap=True)
        console.print(f"Written to {folder.bank} ({int(bank.mask.sum())} prototypes)", soft_wrap=True)


def run_root(config: Config, out: Path | None) -> Path:
    """The folder of a run."""
    return out if out is not None else Path("runs") / config.name


def _train(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
    train_stage(config, data, folder, seed=seed, fabric=fabric, console=console)
    if fabric.is_global_zero:
        console.print(f"Trained: {folder.checkpoint('last')}", soft_wrap=True)


def _embed(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
    if not embed_stage(config, data, folder, fabric=fabric, console=console):
        console.print(f"{folder.root / 'outputs'} is up to date", soft_wrap=True)


def _for_each_seed(config: Config, out: Path | None, work: Work) -> None:
    fabric = make_fabric(config.train)
    fabric.launch()
    console = Console(quiet=not fabric.is_global_zero)
    data = open_data(config, console)
    for seed, folder in run_folders(run_root(config, out), config.seeds).items():
        if fabric.is_global_zero:
            with folder.claim(config, seed):
                data.split.write(folder.split)
                work(config, data, folder, seed, fabric, console)
        else:
            work(config, data, folder, seed, fabric, console)


def _health_table(health: BankHealth) -> Table:
    table = Table("class", "prototypes", "merged", "effective", "cohesion", "nearest other class")
    for each in health.classes:
        table.add_row(
            each.name, str(each.live), str(each.merged), f"{each.effective:.1f}", f"{each.cohesion:.3f}",
            f"{each.nearest_other:.3f}",
        )  # fmt: skip
    return table
