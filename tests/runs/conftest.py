"""A small trained run, for the tests of stages and tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_runs import colours, embed_run, settings

from tdumpra.data.dataset import Dataset
from tdumpra.runs.folder import RunFolder


@pytest.fixture(autouse=True)
def _leave_no_global_state() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _stages_as_users_meet_them(plain_charts: None, without_shape_checks: None) -> None:
    """Charts are drawn by the tests of reports, and shapes are checked by those of the functions."""


@pytest.fixture(scope="session")
def data() -> Dataset:
    return colours()


@pytest.fixture
def run(tmp_path: Path, data: Dataset) -> RunFolder:
    return embed_run(settings(epochs=1), tmp_path / "run", data)
