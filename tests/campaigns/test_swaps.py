"""Files of other runs, seeds and versions in place of a run's own: refused or made again, never used."""

from __future__ import annotations

import contextlib
import io
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.campaigns.children import contents
from tests.campaigns.record import Tally, attempts, refusal
from tests.campaigns.world import save_arrays, write_images_config

from tdumpra import writing
from tdumpra.cli.run import run_stages
from tdumpra.runs import steps
from tdumpra.runs.attach import array_model_step, attach_config
from tdumpra.runs.config import Config, read_config
from tdumpra.runs.outputs import all_outputs
from tdumpra.runs.table_stages import evaluate_step

SWAPPED = (
    "config.toml", "split.json", "checkpoints/last.safetensors", "checkpoints/best.safetensors",
    "outputs/train.safetensors", "outputs/val.safetensors", "outputs/test.safetensors", "bank.safetensors",
    "gate.safetensors", "gate.json", "model.safetensors", "evaluation.json", "compared.json",
)  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {  # what the donors have otherwise
    "seed": {"seeds": "[1]"},
    "training": {"train": "deterministic = true\nlearning_rate = 0.01"},
    "network": {"embedding": 12},
    "images": {"source": "synthetic:n=70,size=32,seed=3"},
    "gate": {"extra": "[tune]\npreset = 'paper'\nobjective = 'accuracy'"},
    "figures": {"bootstrap": 5},
    "version": {},
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def another_version() -> Iterator[None]:
    """Write as an older tdumpra would: other figures from the same inputs, and other schemas of JSON files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "COMPUTATION", steps.COMPUTATION - 1)
        patch.setattr("tdumpra.runs.documents.__version__", "0.0.1")
        yield


def make_images(config: Config) -> None:
    run_stages(config, quiet=True)


def make_arrays(config: Config) -> None:
    (outputs,) = all_outputs(config)
    evaluate_step(outputs).result()
    array_model_step(outputs).result()


def image_runs(root: Path) -> dict[str, Config]:
    """Return the run that is harmed, called ``own``, and its donors; all have one cache of images."""
    (root / "work").mkdir()
    runs = {}
    for name, changes in {"own": {}, **OTHERS}.items():
        config = read_config(write_images_config(root, **changes))
        runs[name] = replace(config, folder=str(root / name))
    return runs


def array_runs(root: Path) -> dict[str, Config]:
    saved = [save_arrays(root / f"{seed}.npz", seed) for seed in range(2)]
    tune = {"preset": "paper"}
    runs = {
        "own": attach_config(saved[0], root / "own", {}, tune),
        "seed": attach_config(saved[1], root / "seed", {}, tune),
        "bank": attach_config(saved[0], root / "bank", {"n_prototypes": 2}, tune),
        "gate": attach_config(saved[0], root / "gate", {}, {**tune, "objective": "accuracy"}),
        "version": attach_config(saved[0], root / "version", {}, tune),
    }
    return {name: replace(run, evaluate=replace(run.evaluate, bootstrap=4)) for name, run in runs.items()}


KINDS: dict[str, tuple[Callable[[Path], dict[str, Config]], Callable[[Config], None]]] = {
    "run of images": (image_runs, make_images),
    "run of saved arrays": (array_runs, make_arrays),
}


def swap(own: Path, donor: Path, rng: np.random.Generator) -> list[str]:
    """Copy one file, sometimes several, of a donor over those of a run; return which differ from what was there."""
    there = [name for name in SWAPPED if (own / name).exists() and (donor / name).exists()]
    count = 1 if rng.random() < 0.6 else int(rng.integers(2, len(there) + 1))
    chosen = rng.choice(there, size=count, replace=False).tolist()
    differing = [name for name in chosen if (own / name).read_bytes() != (donor / name).read_bytes()]
    for name in differing:
        shutil.copyfile(donor / name, own / name)
    return differing


@pytest.mark.parametrize("kind", KINDS)
@attempts(6, 500)
def test_no_file_of_another_run_is_used(tmp_path, monkeypatch, kind, attempts):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")  # a model tells when it was made
    plan, make = KINDS[kind]
    runs = plan(tmp_path)
    folders = {name: Path(str(config.folder)) for name, config in runs.items()}
    for name, config in runs.items():
        with quiet(), another_version() if name == "version" else contextlib.nullcontext():
            make(config)
    own, kept = folders["own"], tmp_path / "kept"
    shutil.copytree(own, kept)
    whole, rng, tally = contents(own), np.random.default_rng(13), Tally("swaps", kind)
    donors = [name for name in runs if name != "own"]
    while tally.tried < attempts and not tally.is_late:
        shutil.rmtree(own)
        shutil.copytree(kept, own)
        writing._swept.clear()
        donor = donors[int(rng.integers(len(donors)))]
        swapped = swap(own, folders[donor], rng)
        if not swapped:
            continue
        detail = f"{swapped} of another {donor}"
        try:
            with quiet():
                make(runs["own"])
        except Exception as error:
            tally.note(*refusal(error, detail))
            continue
        found = contents(own)
        differing = [name for name in {*whole, *found} if found.get(name) != whole.get(name)]
        tally.note("silently wrong" if differing else "made again", f"{detail}: {differing} differ")
    tally.finish()
