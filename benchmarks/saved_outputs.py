"""Write the tables of two runs as one file of saved outputs, small enough to carry from the machine that trained them.

    python -m benchmarks.saved_outputs OUT.npz CLASSIFIER_FOLDER SECOND_FOLDER

Probabilities are the first run's student's and the second run's teacher's, embeddings the second run's teacher's in
half precision; pooled features of both are kept as their first 128 principal components of the training rows. ``tdumpra
attach`` and configurations with ``outputs`` read the file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tdumpra.runs.folder import RunFolder
from tdumpra.runs.tables import OutputsTable, read_tables

PARTS, WIDTH = ("train", "val", "test"), 128


def column(tables: dict[str, OutputsTable], name: str, order: Tensor) -> Tensor:
    """Return a column of all parts, in an order."""
    return torch.cat([getattr(tables[part], name).float() for part in PARTS])[order]


def components(features: Tensor, n_train: int) -> np.ndarray:
    """Return the first principal components of the training rows' features, for all rows."""
    centred = features - features[:n_train].mean(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    directions = torch.linalg.svd(centred[:n_train].to(device), full_matrices=False)[2].cpu()
    return np.asarray((centred @ directions[:WIDTH].T).half().numpy())


def main(out: Path, classifier: Path, second: Path) -> None:
    """Write the file."""
    own, other = (read_tables(RunFolder(folder)) for folder in (classifier, second))
    ids, n_train = [name for part in PARTS for name in own[part].ids], len(own["train"])
    place = {name: i for i, name in enumerate(name for part in PARTS for name in other[part].ids)}
    if len(other["train"]) != n_train or {place[name] < n_train for name in own["train"].ids} != {True}:
        raise SystemExit(f"{classifier} and {second} were trained on other images")
    here, there = torch.arange(len(ids)), torch.tensor([place[name] for name in ids])
    found = {
        "id": np.array(ids),
        "group": np.array([group for part in PARTS for group in own[part].groups]),
        "y": torch.cat([own[part].labels for part in PARTS]).to(torch.int8).numpy(),
        "split": np.concatenate([np.full(len(own[part]), i, np.int8) for i, part in enumerate(PARTS)]),
        "classes": np.array(own["train"].class_names),
        "p": column(own, "logits", here).softmax(1).numpy(),
        "pt": column(own, "logits_teacher", here).softmax(1).numpy(),
        "p_second": column(other, "logits_teacher", there).softmax(1).numpy(),
        "z": column(other, "z_teacher", there).half().numpy(),
        "features": components(column(own, "features", here), n_train),
        "features_second": components(column(other, "features_teacher", there), n_train),
    }
    for name in own["test"].metadata:
        found[name] = np.array([value for part in PARTS for value in own[part].metadata[name]])
    np.savez(out, allow_pickle=False, **found)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
