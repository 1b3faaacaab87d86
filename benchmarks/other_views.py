"""Outputs of trained networks on other views of the same images, for a run of one fold or without folds.

    python -m benchmarks.other_views OUT.npz CLASSIFIER_FOLDER SECOND_FOLDER

The classifier is the student of the first run, the second network the teacher of the other. Views: ``eight`` (mirrored
and turned, averaged), ``grey`` (colours scaled so that their means are equal), ``zoom`` (the middle three quarters),
``lesion`` (the mask's box with a margin; left out where the data have no masks). Of a classifier in blocks, pooled
features of two middle stages are written too, as their first 64 principal components. Training rows are embedded for
the views that need a bank of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.saved_outputs import components, write
from tdumpra.data.dataset import Dataset, open_data
from tdumpra.networks.build import Encoding, arithmetic
from tdumpra.networks.model_file import Encoder
from tdumpra.runs.config import Config, read_config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.pixel_stages import read_encoders

PARTS, BATCH, WIDTH, STAGES = ("train", "val", "test"), 256, 64, (3, 5)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def grey(pixels: Tensor) -> Tensor:
    """Scale the colours of each picture so that their means are equal."""
    means = pixels.float().mean((1, 2), keepdim=True)
    return (pixels * (means.mean(3, keepdim=True) / means.clamp(min=1.0))).clamp(0, 255).to(torch.uint8)


def zoom(pixels: Tensor) -> Tensor:
    """Return the middle three quarters of each side."""
    height, width = pixels.shape[1:3]
    return pixels[:, height // 8 : -(height // 8), width // 8 : -(width // 8)]


def outputs(
    encoder: Encoder, data: Dataset, rows: np.ndarray, view: Callable[[Tensor], Tensor], stages: dict[int, list[Tensor]]
) -> Encoding:
    """Run a network over a view of the images ``rows``; ``stages`` collects pooled features of its middle stages."""
    network = encoder.build(len(data.manifest.class_names), DEVICE, trusted=[encoder.network.backbone]).eval()
    blocks: Any = dict(network.named_modules()).get("backbone.blocks", ())
    hooks = [_pool(blocks[stage], kept) for stage, kept in stages.items() if stage < len(blocks)]
    found = []
    with torch.no_grad(), arithmetic("float32", DEVICE):
        for start in range(0, len(rows), BATCH):
            pixels = torch.from_numpy(data.prepared.images.read(rows[start : start + BATCH])).to(DEVICE)
            found.append(network(encoder.transform(view(pixels))))
    for hook in hooks:
        hook.remove()
    return Encoding(*(torch.cat(column).cpu() for column in zip(*found, strict=True)))


def lesions_of(config: Config, seed: int) -> Dataset:
    """Open the same images, cut out along their masks."""
    return open_data(replace(config.data, framing=replace(config.data.framing, lesion_margin=0.2)), seed)


def _pool(block: nn.Module, kept: list[Tensor]) -> Any:
    return block.register_forward_hook(lambda _m, _i, output: kept.append(output.mean((2, 3)).float().cpu()))


def main(out: Path, *folders: Path) -> None:
    """Write the archive."""
    found: dict[str, np.ndarray] = {}
    for who, folder in zip(("classifier", "second"), map(RunFolder, folders), strict=True):
        config = read_config(folder.config)
        seed = config.seeds[0]
        data = open_data(config.data, seed)
        networks = read_encoders(config, folder, len(data.manifest.class_names))
        encoder = networks.student if who == "classifier" or networks.teacher is None else networks.teacher
        rows = np.concatenate([data.rows(part) for part in PARTS])
        n_train = len(data.rows("train"))
        found["id"] = np.array([data.manifest.records[row].id for row in rows])
        views: list[tuple[str, Callable[[Tensor], Tensor], Dataset, int]] = [
            ("eight", lambda x: x, data, 8), ("grey", grey, data, 1), ("zoom", zoom, data, 1),
        ]  # fmt: skip
        if any(record.mask is not None for record in data.manifest.records):
            views.append(("lesion", lambda x: x, lesions_of(config, seed), 1))
        for name, view, source, n_views in views:
            stages: dict[int, list[Tensor]] = {}
            asked = rows if name in ("grey", "lesion") else rows[n_train:]
            encoding = outputs(replace(encoder, views=n_views), source, asked, view, stages)
            found[f"{name}_{who}_logits"] = encoding.logits[-(len(rows) - n_train) :].numpy()
            found[f"{name}_{who}_z"] = encoding.z.half().numpy()
        if who == "classifier":
            stages = {stage: [] for stage in STAGES}
            outputs(encoder, data, rows, lambda x: x, stages)
            of_stages = {f"stage{stage}": torch.cat(kept) for stage, kept in stages.items() if kept}
            found |= {name: components(features, n_train, WIDTH) for name, features in of_stages.items()}
    write(out, found)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
