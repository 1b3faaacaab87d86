"""A model of images and one of arrays, made once for all tests of finished models."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_models import model_of_arrays, model_of_images

from tdumpra.models.opened import OpenedModel, open_model


@pytest.fixture(scope="session")
def image_model(tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    return open_model(model_of_images(tmp_path_factory.mktemp("images")))


@pytest.fixture(scope="session")
def array_model(tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    return open_model(model_of_arrays(tmp_path_factory.mktemp("arrays")))


@pytest.fixture(scope="session")
def away(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images that the model has not seen."""
    from local_models import local_folder

    return local_folder(tmp_path_factory.mktemp("away"), [i % 3 for i in range(30)])
