"""What the table says of its figures. The command itself is tried in ``test_commands_experiments``."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.support import save_problem

from tdumpra.config import Config
from tdumpra.experiments import ablate


def notes_of(config: Config) -> str:
    results: Any = defaultdict(lambda: defaultdict(float))
    return "\n".join(ablate.table(config, results).notes)


def test_what_is_not_known_of_files_is_not_claimed(tmp_path) -> None:
    notes = notes_of(Config(outputs=(str(save_problem(tmp_path / "mine.npz")),)))
    assert "Protocol grouped" not in notes
    assert notes.startswith("Preset default")
    assert "The protocol of saved outputs is not known" in notes
    assert "taken as joint (mine.npz)" in notes
    assert "are the student's (mine.npz)" in notes


def test_a_runs_own_protocol_is_named() -> None:
    assert notes_of(Config()).startswith("Protocol grouped; preset default")
    assert "not known" not in notes_of(Config())
