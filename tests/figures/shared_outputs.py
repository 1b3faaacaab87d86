"""Cases on real outputs, where they lie beside the clone in ``../shared/outputs``. They take minutes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.figures.cases import FREE, command
from tests.figures.condense import evaluation_figures

OUTPUTS = Path(os.environ.get("TDUMPRA_OUTPUTS", Path(__file__).parents[3] / "shared" / "outputs"))
ATTACHED = (
    "lite0_ce2_seed0", "lite0_joint_seed0", "site_rosendahl_seed0", "site_rosendahl_seed1", "two_networks_seed0",
    "two_networks_seed1", "two_networks_seed2",
)  # fmt: skip
TUNED = {"pool_seeds": "pool_seeds = true", "certify": "certify = true", "folds": "folds = 3"}
_KEY = ("rows", "comparators", "comparators_std", "gate", "retrieval_worth", "headroom_taken", "by_seed")


def attach(name: str) -> Callable[[Path], Any]:
    """Attach the second path to one file."""

    def case(folder: Path) -> Any:
        return key_figures(command("attach", OUTPUTS / f"{name}.npz", "--out", folder / "out", *FREE, "--no-report"))

    return case


def evaluate(how: str) -> Callable[[Path], Any]:
    """Evaluate two networks over three seeds, tuned in one of the ways there are."""

    def case(folder: Path) -> Any:
        files = [str(OUTPUTS / f"two_networks_seed{seed}.npz") for seed in range(3)]
        path = folder / "saved.toml"
        tune = f"preset = 'free'\n{how}"
        path.write_text(f"outputs = {json.dumps(files)}\n[tune]\n{tune}\n[evaluate]\nbootstrap = 100\n")
        found = command("evaluate", path, "--out", folder / "out")
        return key_figures(found)

    return case


def key_figures(found: dict[str, Any]) -> dict[str, Any]:
    """Return all comparators' metrics, the gate's counts and thresholds, and what the bank was worth."""
    return evaluation_figures({key: found[key] for key in _KEY if key in found})


CASES = (
    {f"real_attach_{name}": attach(name) for name in ATTACHED}
    | {f"real_evaluate_{name}": evaluate(tune) for name, tune in TUNED.items()}
    if OUTPUTS.is_dir()
    else {}
)
