"""The small world in which the commands and the code of our pages run: what a reader has at hand, in miniature.

Pages name real things: HAM10000, a ResNet-50, twenty epochs. Here they stand for small ones, as these tables say:

========================================  ==========================================================================
on the page                               here
========================================  ==========================================================================
``z_train``, ``p_val``, … ``outputs.npz``  every fourth lesion of the arrays that the demo makes
a timm backbone, ``weights = "timm"``      the network ``tiny_networks:plain`` without weights, 32 pixels
three seeds                               two
epochs, batch size, precision, workers    one epoch of 16 images in 32-bit on a CPU, without worker processes
``synthetic:n=1200,size=64``              ``synthetic:n=120,size=32``
the demo's model on a server              the model of the page's own run
a Ray cluster                             this machine alone, which gives the same rows
``data/ham10000``                         84 pictures in seven colours, in HAM10000's layout
a table of six cases                      the same table, its rows repeated under new names
``examples/ham10000_outputs.npz``          the same arrays
``examples/rosendahl_outputs.npz``         160 cases of a place that differs from home, four classes
``my_classifier.pth``                     the state of a ``tiny_networks:plain`` for three classes
========================================  ==========================================================================
"""

from __future__ import annotations

import csv
import io
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tiny_networks
import torch
from demo_arrays import demo_outputs
from PIL import Image
from two_places import write_outputs

from tdumpra.data.images.framing import Framing
from tdumpra.runs.config import Config, config_text, read_config

SIZE = 32
SPELLINGS = {
    "synthetic:n=1200,size=64": f"synthetic:n=120,size={SIZE}",
    "serve runs/demo": "serve runs/ham10000-lite0/seed-0",
    " --engine ray --address 127.0.0.1:6379": "",
    " --engine ray": "",
}
REPEATS = 16  # of a table's rows: every class in every part of a split
HAM_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
HAM_LESIONS = 8  # of each class
PHOTOGRAPHS = ("a.jpg", "b.jpg", "photograph.jpg", "photographs/one.jpg", "photographs/two.jpg")


def arrays() -> dict[str, Any]:
    """What the pages' Python code finds in its namespace."""
    whole = demo_outputs()
    keep = np.array([int(name.split("-")[-1]) % 4 == 0 for name in whole["group"]])
    made = {name: array[keep] for name, array in whole.items()}
    named = {"p": made["p"], "z": made["z"], "y": made["y"], "split": made["split"], "lesion": made["group"]}
    for code, part in enumerate(("train", "val", "test")):
        rows = named["split"] == code
        named |= {f"{name}_{part}": named[name][rows] for name in ("p", "z", "y", "lesion")}
    return named


def furnish(root: Path, named: dict[str, Any]) -> None:
    """Put into ``root`` what the pages take for granted."""
    np.savez(
        root / "outputs.npz", p=named["p"], z=named["z"], y=named["y"], split=named["split"], group=named["lesion"]
    )
    (root / "examples").mkdir()
    shutil.copy(root / "outputs.npz", root / "examples" / "ham10000_outputs.npz")
    write_outputs(root / "examples" / "rosendahl_outputs.npz")
    _write_csv_outputs(root / "outputs.csv", named)
    for number, name in enumerate(PHOTOGRAPHS):
        _picture(root / name, number, number)
    torch.manual_seed(0)
    torch.save(tiny_networks.plain(3).state_dict(), root / "my_classifier.pth")
    _write_ham10000(root / "data" / "ham10000")


def respell(text: str) -> str:
    """A command with the small things in the place of the large."""
    for large, small in SPELLINGS.items():
        text = text.replace(large, small)
    return text


def shrink(path: Path, target: Path) -> None:
    """Write a run's TOML file to ``target`` for a run of seconds."""
    config = read_config(path)
    network, train = config.network, config.train
    small = replace(
        config,
        seeds=config.seeds[:2],
        data=replace(
            config.data, source=respell(config.data.source), framing=Framing(height=SIZE, width=SIZE), workers=0
        ),
        network=replace(
            network,
            backbone=network.backbone if ":" in network.backbone else "tiny_networks:plain",
            weights="none" if network.weights in ("timm", "lite") else network.weights,
            image_size=SIZE,
            embedding=8,
        ),
        train=replace(train, epochs=1, batch_size=16, accelerator="cpu", precision="32-true"),
        evaluate=replace(config.evaluate, bootstrap=min(20, config.evaluate.bootstrap)),
    )
    assert isinstance(small, Config)
    target.write_text(config_text(small, target.parent), encoding="utf-8")


def write_table(path: Path, text: str) -> None:
    """A page's table of images, repeated, and the images that it names."""
    rows = list(csv.DictReader(io.StringIO(text)))
    labels = sorted({row["label"] for row in rows})
    lines = [",".join(rows[0])]
    for copy in range(REPEATS):
        for number, row in enumerate(rows):
            image = f"{copy:02d}".join(row["image"].rsplit("/", 1)) if copy else row["image"]
            changed = {**row, "image": image, "group": f"{row['group']}-{copy}" if copy else row["group"]}
            _picture(path.parent / changed["image"], labels.index(row["label"]), 100 * copy + number)
            lines.append(",".join(changed.values()))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _picture(path: Path, colour: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    base = np.array([[200, 120, 40], [60, 60, 180], [60, 180, 180], [180, 60, 90], [90, 160, 60]])[colour % 5]
    noise = np.random.default_rng(seed).normal(0, 40, (SIZE, SIZE, 3))
    Image.fromarray((base + noise).clip(0, 255).astype(np.uint8)).save(path)


def _write_csv_outputs(path: Path, named: dict[str, Any]) -> None:
    columns = {f"p_{i}": column for i, column in enumerate(named["p"].T)}
    columns |= {f"z_{i}": column for i, column in enumerate(named["z"].T)}
    columns |= {"y": named["y"], "split": named["split"], "group": named["lesion"]}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _write_ham10000(root: Path) -> None:
    lines = ["lesion_id,image_id,dx,dx_type,age,sex,localization"]
    for number in range(len(HAM_CLASSES) * HAM_LESIONS * 3 // 2):  # two photographs of every other lesion
        lesion = number * 2 // 3
        dx = lesion % len(HAM_CLASSES)
        lines.append(f"HAM_{lesion:04d},ISIC_{number:04d},{HAM_CLASSES[dx]},histo,50.0,female,back")
        _picture(root / "HAM10000_images_part_1" / f"ISIC_{number:04d}.jpg", dx, number)
    (root / "HAM10000_metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
