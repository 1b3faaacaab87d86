"""Small finished models of both kinds, and folders of images from elsewhere for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tests.support import make_problem, save_problem
from tiny_runs import CLASS_NAMES, colour_of, colours, embed_run, outputs_of, settings

from tdumpra.data.manifest import Record
from tdumpra.runs.attach import array_model_step, attach_config
from tdumpra.runs.model import model_step
from tdumpra.runs.outputs import all_outputs


def model_of_images(root: Path) -> Path:
    """Train a tiny network on three colours, and return its model file."""
    config, data = settings(epochs=4), colours(120)
    folder = embed_run(config, root, data)
    torch.use_deterministic_algorithms(False)
    return model_step(outputs_of(config, folder), data).result()


def model_of_arrays(root: Path) -> Path:
    """Attach a gate to a small problem of four classes, and return its model file."""
    (outputs,) = all_outputs(attach_config(save_problem(root / "mine.npz"), root / "out", {}, {}))
    return array_model_step(outputs).result()


def picture(seed: int, label: int, *, darker: int = 0) -> np.ndarray:
    """Return a picture of a class; pictures of seeds below 120 are those of the model."""
    pixels = colour_of(Record(f"image{seed:04d}", None, label, ""))
    return (pixels.astype(int) - darker).clip(0, 255).astype(np.uint8)


def local_folder(root: Path, labels: Sequence[int], *, start: int = 5000, darker: int = 0) -> Path:
    """Write a folder for each class, with an image for each label."""
    for i, label in enumerate(labels):
        place = root / CLASS_NAMES[label] / f"case{i:03d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(start + i, label, darker=darker)).save(place)
    return root


def local_arrays(path: Path, *, seed: int = 5, prefix: str = "away-", **changes: np.ndarray | None) -> Path:
    """Write one set of outputs for the model of arrays; a change of ``None`` leaves an array out."""
    rows = make_problem(seed).test
    arrays = {
        "p": rows.p, "z": rows.z, "y": rows.y,
        "group": np.char.add(prefix, rows.groups), "id": np.char.add(prefix, rows.ids),
    }  # fmt: skip
    kept = {name: array for name, array in {**arrays, **changes}.items() if array is not None}
    np.savez(path, allow_pickle=False, **kept)
    return path
