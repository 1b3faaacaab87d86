"""The runs that are damaged, made once."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from plain_charts import drawn_plainly
from tests.campaigns.world import command, save_arrays, write_images_config


class World(NamedTuple):
    """A finished run of images and one of arrays."""

    config: Path
    images: Path  # the run's folder
    arrays: Path


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("world")
    config = write_images_config(root)
    patched = pytest.MonkeyPatch.context()
    with patched as patch, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        patch.setattr("tdumpra.report.drawing.Chart._saved", drawn_plainly)
        assert command("run", config, "--out", root / "images") == 0
        saved = save_arrays(root / "saved.npz")
        assert command("attach", saved, "--out", root / "arrays", "--preset", "paper", "--no-report") == 0
    torch.use_deterministic_algorithms(False)
    return World(config, root / "images", root / "arrays")
