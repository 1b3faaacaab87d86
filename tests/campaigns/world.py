"""One small run of images and one of saved arrays, with every kind of file that they leave behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from tests.support import seed_arrays
from tiny_config import write_config

from tdumpra.cli import main as cli

SETTINGS: dict[str, Any] = {
    "source": "synthetic:n=70,size=32", "train": "deterministic = true", "bootstrap": 4,
    "extra": "[tune]\npreset = 'paper'",
}  # fmt: skip
ARRAYS = """
name = "net"
{outputs}
[tune]
preset = "paper"
[evaluate]
bootstrap = 4
"""


def write_images_config(folder: Path, **changes: Any) -> Path:
    """Write the configuration of a run that trains for a moment, with changes."""
    return write_config(folder / "images.toml", folder / "work" / "cache", **{**SETTINGS, **changes})


def save_arrays(path: Path, seed: int = 0, *, rows: int = 40) -> Path:
    """Save outputs of ``rows`` rows for each split."""
    arrays = seed_arrays(seed)
    rng = np.random.default_rng(0)
    kept = [rng.choice(np.flatnonzero(arrays["split"] == part), rows, replace=False) for part in range(3)]
    numbers = np.sort(np.concatenate(kept))
    np.savez(path, allow_pickle=False, **{name: array[numbers] for name, array in arrays.items()})
    return path


def write_arrays_config(folder: Path, *seeds: int) -> Path:
    """Write the configuration of an evaluation of saved outputs."""
    entries = [
        f'[[outputs]]\nfile = "{save_arrays(folder / f"seed{seed}.npz", seed).name}"\nbackbone = "net"\nseed = {seed}\n'
        for seed in seeds
    ]
    path = folder / "arrays.toml"
    path.write_text(ARRAYS.format(outputs="".join(entries)), encoding="utf-8")
    return path


def command(*arguments: object) -> int:
    """Run a command in this process; return its exit code."""
    before = sys.argv
    sys.argv = ["tdumpra", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0
