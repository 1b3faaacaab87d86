"""A small trained model, and images that it can look at, made once for all tests of integrations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_models import decide, make_model
from tiny_runs import colour_of, colours, embed_run, settings

from tdumpra.networks.model_file import Model


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Model:
    config, data = settings(epochs=2), colours(90)
    folder = embed_run(config, tmp_path_factory.mktemp("run"), data)
    torch.use_deterministic_algorithms(False)
    return make_model(config, data, folder, decide(config, folder, temperature=1.3, kappa=5.0))


@pytest.fixture(scope="session")
def model_path(tmp_path_factory, model) -> Path:
    path: Path = tmp_path_factory.mktemp("model") / "model.safetensors"
    model.write(path)
    return path


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> list[Path]:
    """Two images in each of two folders, of the same names."""
    root, paths = tmp_path_factory.mktemp("images"), []
    for record in colours(24).manifest.records[:4]:
        path = root / str(record.label) / f"{int(record.id[5:]) % 2}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(colour_of(record)).save(path)
        paths.append(path)
    return paths
