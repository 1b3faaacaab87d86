"""Let all processes of a training go on from the same files, also where each machine has a folder of its own.

The first process writes checkpoints and tables. On a shared folder the others see them. Elsewhere they would start from
nothing while the first one resumes, and all would wait for each other for ever. So before each stage every process
compares what it sees with what the first one has, and gets what it lacks.
"""

from __future__ import annotations

from pathlib import Path

import torch
from lightning_fabric import Fabric

from tdumpra.networks.checkpoint import RunFolderError
from tdumpra.runs.folder import RunFolder, file_digest
from tdumpra.writing import make_folder, write_bytes


def share_state(folder: RunFolder, fabric: Fabric) -> None:
    """Give every process the checkpoints and tables of the first one.

    Raises:
        RunFolderError: in every process, if one of them has a checkpoint or a table and the first one has none. It may
            hold more training than the first one would go on from.
    """
    if fabric.world_size == 1:
        return
    own = _digests(folder)
    first: dict[str, str] = fabric.broadcast(own)
    surplus = sorted(own.keys() - first.keys())
    if _any(bool(surplus), fabric):
        names = ", ".join(surplus) or "files that the first process does not see"
        raise RunFolderError(
            f"the machines of this training do not go on from the same files: {folder.root} holds {names} on one of "
            "them and not on the first: start with that machine as the first one, or remove them there"
        )
    for name, digest in first.items():
        lacking = own.get(name) != digest
        if _any(lacking, fabric):
            data: bytes = fabric.broadcast((folder.root / name).read_bytes() if fabric.is_global_zero else b"")
            if lacking:
                make_folder((folder.root / name).parent)
                write_bytes(folder.root / name, data)


def _digests(folder: RunFolder) -> dict[str, str]:
    """Name the contents of the files that decide what a stage does."""
    files: list[Path] = [folder.checkpoint("last"), folder.checkpoint("best"), *map(folder.outputs, folder.parts)]
    return {str(path.relative_to(folder.root)): file_digest(path) for path in dict.fromkeys(files) if path.exists()}


def _any(mine: bool, fabric: Fabric) -> bool:
    """Return whether it is true in one process at least."""
    found = fabric.all_reduce(torch.tensor(float(mine), device=fabric.device), reduce_op="sum")
    return bool(torch.as_tensor(found) > 0)
