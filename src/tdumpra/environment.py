"""Record what results were computed with: versions, machine, command."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path

import torch

from tdumpra.writing import write_bytes

_PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "lightning-fabric",
    "numpy",
    "scipy",
    "scikit-learn",
    "safetensors",
    "pillow",
)


def write_environment(folder: Path) -> None:
    """Write ``environment.json`` beside the results."""
    write_bytes(folder / "environment.json", _environment().encode())


def _environment() -> str:
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES if _installed(name)}
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return json.dumps(
        {
            "python": platform.python_version(),
            "system": platform.platform(),
            "device": cuda or platform.processor() or "cpu",
            "cores": os.cpu_count(),
            "command": sys.argv[1:],
            "packages": versions,
        },
        indent=2,
    )


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
