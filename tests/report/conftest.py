from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import save_problem


@pytest.fixture(scope="session")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of attached outputs on which the gate has something to win, with its report."""
    from tdumpra import DualPathClassifier
    from tdumpra.report.runs import write_report
    from tdumpra.runs.attach import attach

    folder = tmp_path_factory.mktemp("attached")
    save_problem(folder / "mine.npz")
    attach(folder / "mine.npz", folder / "run", DualPathClassifier())
    write_report(folder / "run")
    return folder / "run"
