from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from tdumpra.locks import exclusive

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes of these tests are forked")


def hold(path: Path, queue: Any) -> None:
    with exclusive(path, on_wait=lambda: queue.put("waiting")):
        queue.put("held")


def start(path: Path) -> tuple[Any, Any]:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=hold, args=(path, queue))
    process.start()
    return process, queue


def test_a_second_process_waits_until_the_lock_is_released(tmp_path):
    with exclusive(tmp_path / "lock", inherited=False):
        process, queue = start(tmp_path / "lock")
        assert queue.get(timeout=30) == "waiting"
        assert process.is_alive()
    assert queue.get(timeout=30) == "held"
    process.join(30)
    assert process.exitcode == 0


def test_a_lock_can_be_taken_again_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "lock"):
        raise ZeroDivisionError
    process, queue = start(tmp_path / "lock")
    assert queue.get(timeout=30) == "held"
    process.join(30)
