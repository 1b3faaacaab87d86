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


def write_config(path: Path, cache: Path, *, seeds: str = "[0]", train: str = "", extra: str = "") -> Path:
    path.write_text(
        f"""
        name = "tiny"
        seeds = {seeds}
        [data]
        source = "{SOURCE}"
        cache = "{cache}"
        framing = {{height = 16, width = 16}}
        workers = 0
        [network]
        backbone = "tiny_networks:plain"
        weights = "none"
        image_size = 16
        embedding = 8
        [train]
        epochs = 2
        batch_size = 16
        log_every = 1
        accelerator = "cpu"
        {train}
        {extra}
        """
    )
    return path
