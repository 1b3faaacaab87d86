from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import save_problem


@pytest.fixture(scope="session")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of attached outputs on which the gate has something to win, with its report."""
    from tdumpra.cli.experiments import saved_run
    from tdumpra.runs.attach import attach_config

    folder = tmp_path_factory.mktemp("attached")
    saved_run(attach_config(save_problem(folder / "mine.npz"), folder / "run", {}, {}), as_json=True)
    return folder / "run"
