"""MONAI's ``metadata.json`` for a model: what goes in, what comes out, and with which versions it was made.

The keys are those that the schema of MONAI's bundles requires. MONAI itself is neither needed nor imported: tdumpra's
networks are plain PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tdumpra import __version__
from tdumpra.errors import InputFileError
from tdumpra.networks.model_file import Model
from tdumpra.writing import write_bytes

# The address by which MONAI's own tools find the rules; nothing is fetched here.
SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
_MONAI = "1.4.0"  # whose schema this is


def metadata(model: Model, *, authors: str = "not stated", copyright: str = "not stated") -> dict[str, Any]:
    """Return the contents of ``metadata.json`` for an exported model.

    Args:
        model: what was exported.
        authors: of the model; a file cannot know them.
        copyright: of the model, with its licence.
    """
    framing, names = model.classifier.transform.framing, model.class_names
    retrieval = model.retrieval
    others = [] if retrieval is None else [f"and {retrieval.network.backbone} for retrieval"]
    image = _tensor(
        "image", "magnitude", 3, [framing.height, framing.width], "uint8", [0, 255], ("red", "green", "blue")
    )
    inputs = {"pixels": {**image, "modality": "RGB photograph"}}
    return {
        "schema": SCHEMA,
        "version": __version__,
        "changelog": {__version__: "made with this version of tdumpra"},
        "monai_version": _MONAI,
        "pytorch_version": torch.__version__.split("+")[0],
        "numpy_version": np.__version__,
        "required_packages_version": {"tdumpra": __version__},
        "optional_packages_version": {"onnxruntime": "1.21"},
        "task": f"Classification of images into {len(names)} classes",
        "description": (
            f"{model.classifier.network.backbone} {' '.join(others)}".strip()
            + ", a bank of class prototypes, and a gate that lets retrieval change a prediction where the classifier "
            "is unsure"
        ),
        "authors": authors,
        "copyright": copyright,
        "data_type": "image",
        "image_classes": "three channels, red, green and blue, as bytes",
        "label_classes": ", ".join(names),
        "pred_classes": ", ".join(names),
        "intended_use": "Research. Not a medical device; not for decisions about a person.",
        "network_data_format": {
            "inputs": inputs,
            "outputs": {"p": _tensor("probabilities", "classes", len(names), [], "float32", [0, 1], names)},
        },
    }


def metadata_path(folder: Path) -> Path:
    """Return where ``metadata.json`` of an export goes; one that is no bundle's is never written over."""
    path = folder / "metadata.json"
    if path.exists() and SCHEMA not in path.read_text(encoding="utf-8", errors="replace"):
        raise InputFileError(f"{path} is there already, and describes something else: export to another folder")
    return path


def write_metadata(model: Model, folder: Path) -> Path:
    """Write ``metadata.json`` into the folder of an export."""
    path = metadata_path(folder)
    write_bytes(path, (json.dumps(metadata(model), indent=2) + "\n").encode())
    return path


def _tensor(
    kind: str, form: str, channels: int, shape: list[int], dtype: str, values: list[int], meaning: tuple[str, ...]
) -> Mapping[str, Any]:
    return {
        "type": kind,
        "format": form,
        "num_channels": channels,
        "spatial_shape": shape,
        "dtype": dtype,
        "value_range": values,
        "is_patch_data": False,
        "channel_def": {str(number): words for number, words in enumerate(meaning)},
    }
