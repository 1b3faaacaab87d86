"""Small exported models, made once for all tests of a process."""

from __future__ import annotations

import pytest
from exported_models import Made, exported_once


@pytest.fixture(scope="session")
def one(tmp_path_factory) -> Made:
    return exported_once(tmp_path_factory.mktemp("exported"), two=False)


@pytest.fixture(scope="session")
def two(tmp_path_factory) -> Made:
    return exported_once(tmp_path_factory.mktemp("exported"), two=True)
