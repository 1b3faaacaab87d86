"""A small trained run, its model and its test images, made once for all tests of networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from tiny_models import decide, make_model
from tiny_runs import colour_of, colours, embed_run, settings

from tdumpra.data.dataset import Dataset
from tdumpra.networks.model_file import Model
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder


@pytest.fixture(scope="session")
def data() -> Dataset:
    return colours(90)


@pytest.fixture(scope="session")
def config() -> Config:
    return settings(epochs=2)


@pytest.fixture(scope="session")
def folder(tmp_path_factory, config, data) -> RunFolder:
    run = embed_run(config, tmp_path_factory.mktemp("run"), data)
    torch.use_deterministic_algorithms(False)
    return run


@pytest.fixture(scope="session")
def model(config, data, folder) -> Model:
    return make_model(config, data, folder, decide(config, folder, temperature=1.3, kappa=5.0))


@pytest.fixture(scope="session")
def images(tmp_path_factory, data) -> list[Path]:
    """The test images as files, pixel for pixel."""
    root = tmp_path_factory.mktemp("images")
    paths = []
    for row in data.rows("test"):
        record = data.manifest.records[row]
        Image.fromarray(colour_of(record)).save(root / f"{record.id}.png")
        paths.append(root / f"{record.id}.png")
    return paths
