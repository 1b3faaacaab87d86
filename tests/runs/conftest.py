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


@pytest.fixture(scope="session")
def data() -> Dataset:
    return colours()


@pytest.fixture
def run(tmp_path: Path, data: Dataset) -> RunFolder:
    return embed_run(settings(epochs=1), tmp_path / "run", data)
