"""``tdumpra predict`` on one image, from the start of the process, against a bare script with torch and timm.

The bare script builds the same network by timm, loads the same weights, decodes the same photograph and gives its
probabilities. Both are processes of their own, run in turns; the processor's seconds count, as a busy machine changes
them less. Each has one thread: threads that wait for each other would count too.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file

from benchmarks import lazy_predict
from benchmarks.common import Row, within
from tdumpra.networks.model_file import Model

BARE = """
import sys
import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

weights, photograph, name, size = sys.argv[1:]
state = load_file(weights)
network = timm.create_model(name, num_classes=len(state["classifier.bias"])).eval()
network.load_state_dict(state)
pixels = np.asarray(Image.open(photograph).convert("RGB").resize((int(size), int(size)), Image.BICUBIC))
images = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 255
with torch.inference_mode():
    print(network((images - 0.45) / 0.22).softmax(1).tolist())
"""
REPEATS, MOST = 5, 1.5


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photograph = lazy_predict.photographs(folder)[0]
        model = replace(lazy_predict.two_networks(), retrieval=None)
        model.write(folder / "model.safetensors")
        _write_plain(model, folder / "plain.safetensors")
        network = model.classifier.network
        bare = [
            sys.executable, "-c", BARE, str(folder / "plain.safetensors"), str(photograph), network.backbone,
            str(network.image_size),
        ]  # fmt: skip
        ours = [sys.executable, "-m", "tdumpra", "predict", str(folder / "model.safetensors"), str(photograph), "--csv"]
        _seconds(bare), _seconds(ours)  # files are in the system's cache from here on
        pairs = [(_seconds(ours), _seconds(bare)) for _ in range(REPEATS)]
    mine, theirs = (min(column) for column in zip(*pairs, strict=True))
    against = f"{MOST:g} times a bare script with torch and timm"
    return [within("predict, one image from a cold start", mine, MOST * theirs, unit="s", against=against)]


def _write_plain(model: Model, path: Path) -> None:
    """Write the classifier's weights by the names that timm gives them."""
    state = {name.removeprefix("backbone."): tensor for name, tensor in model.classifier.state.items()}
    save_file({name: tensor for name, tensor in state.items() if not name.startswith("projection.")}, path)


def _seconds(command: list[str]) -> float:
    """Return the processor's seconds of a process and of those that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
