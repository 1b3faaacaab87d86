"""Write the tables of one or two runs as one file of saved outputs, small enough to carry from where they were trained.

    python -m benchmarks.saved_outputs OUT.npz CLASSIFIER_FOLDER [SECOND_FOLDER]

Probabilities are the first run's student's and the second run's teacher's, embeddings the second run's teacher's in
half precision; pooled features of both are kept as their first 128 principal components of the training rows. Of one
run alone, both of its spaces are kept. ``tdumpra attach`` and configurations with ``outputs`` read the file. Where the
split is by image, lesions that cross it are no groups: each image counts by itself.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tdumpra.data.leakage import audit_leakage
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.tables import OutputsTable, read_tables
from tdumpra.writing import make_folder, write_bytes

PARTS, WIDTH = ("train", "val", "test"), 128
Tables = Mapping[str, OutputsTable]


def column(tables: Tables, name: str, order: Tensor) -> Tensor:
    """Return a column of all parts, in an order."""
    return torch.cat([getattr(tables[part], name).float() for part in PARTS])[order]


def components(features: Tensor, n_train: int, width: int = WIDTH) -> np.ndarray:
    """Return the first principal components of the training rows' features, for all rows."""
    centred = features - features[:n_train].mean(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    directions = torch.linalg.svd(centred[:n_train].to(device), full_matrices=False)[2].cpu()
    return np.asarray((centred @ directions[:width].T).half().numpy())


def arrays_of(classifier: Path, second: Path | None) -> dict[str, np.ndarray]:
    """Return the arrays of the file."""
    own = read_tables(RunFolder(classifier))
    ids, n_train = [name for part in PARTS for name in own[part].ids], len(own["train"])
    here = torch.arange(len(ids))
    found = {
        "id": np.array(ids),
        "group": np.array([group for part in PARTS for group in own[part].groups]),
        "y": torch.cat([own[part].labels for part in PARTS]).to(torch.int8).numpy(),
        "split": np.concatenate([np.full(len(own[part]), i, np.int8) for i, part in enumerate(PARTS)]),
        "classes": np.array(own["train"].class_names),
        "p": column(own, "logits", here).softmax(1).numpy(),
        "pt": column(own, "logits_teacher", here).softmax(1).numpy(),
        "features": components(column(own, "features", here), n_train),
    }
    for name in own["test"].metadata:
        found[name] = np.array([value for part in PARTS for value in own[part].metadata[name]])
    if audit_leakage(found["split"], found["group"])["crossing_groups"]:
        del found["group"]
    if second is None:
        spaces = {"z": "z_student", "zt": "z_teacher"}
        return found | {name: column(own, space, here).half().numpy() for name, space in spaces.items()}
    other = read_tables(RunFolder(second))
    place = {name: i for i, name in enumerate(name for part in PARTS for name in other[part].ids)}
    if [set(own[part].ids) for part in PARTS] != [set(other[part].ids) for part in PARTS]:
        raise SystemExit(f"{classifier} and {second} were trained on other images")
    there = torch.tensor([place[name] for name in ids])
    return found | {
        "p_second": column(other, "logits_teacher", there).softmax(1).numpy(),
        "z": column(other, "z_teacher", there).half().numpy(),
        "features_second": components(column(other, "features_teacher", there), n_train),
    }


def write(out: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an archive that is at every moment whole or absent."""
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    make_folder(out.parent)
    write_bytes(out, packed.getvalue())


def main(out: Path, classifier: Path, second: Path | None = None) -> None:
    """Write the file."""
    write(out, arrays_of(classifier, second))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
