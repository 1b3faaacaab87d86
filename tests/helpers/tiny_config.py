"""Small configurations as files, and what ``tdumpra run`` does with them before the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tdumpra.cli.run import run_stages
from tdumpra.runs.config import read_config

SOURCE = "synthetic:n=120,size=32"


def run_command(path: Path, out: Path | None, *, quiet: bool = False) -> dict[int, dict[str, Any]]:
    """Run every stage of a configuration, as ``tdumpra run PATH --out OUT`` does before the report."""
    config = read_config(path)
    return run_stages(config if out is None else replace(config, folder=str(out)), quiet=quiet)


def config_text(
    cache: Path,
    *,
    source: str = SOURCE,
    name: str = "tiny",
    folder: Path | None = None,
    seeds: str = "[0]",
    backbone: str = "tiny_networks:plain",
    embedding: int = 8,
    epochs: int = 2,
    bootstrap: int = 20,
    data: str = "",
    train: str = "",
    evaluate: str = "",
    extra: str = "",
) -> str:
    """Return a run on synthetic images that takes a moment; lines of TOML add to its sections, or to its end."""
    place = f'folder = "{folder}"' if folder is not None else ""
    return f"""
        name = "{name}"
        {place}
        seeds = {seeds}
        [data]
        source = "{source}"
        cache = "{cache}"
        framing = {{height = 16, width = 16}}
        workers = 0
        {data}
        [network]
        backbone = "{backbone}"
        weights = "none"
        image_size = 16
        embedding = {embedding}
        [train]
        epochs = {epochs}
        batch_size = 16
        log_every = 1
        accelerator = "cpu"
        {train}
        [evaluate]
        bootstrap = {bootstrap}
        {evaluate}
        {extra}
        """


def write_config(path: Path, cache: Path, **options: Any) -> Path:
    """Write :func:`config_text` to a file."""
    path.write_text(config_text(cache, **options), encoding="utf-8")
    return path
