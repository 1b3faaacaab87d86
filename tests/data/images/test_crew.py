from __future__ import annotations

import os
import signal

import pytest

from tdumpra.data.images.crew import Crew
from tdumpra.data.images.workers import Died
from tdumpra.errors import BrokenImageError


def act(task: str) -> str:
    """Work that may end its process; in a module, as a process that is not forked must find it."""
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "raise":
        raise BrokenImageError("broken")
    return f"{task} {os.getpid()}"


@pytest.fixture(scope="module")
def crew():
    crew = Crew(act, 1)
    yield crew
    crew.close()


class TestCrew:
    def test_a_process_stays_for_many_tasks(self, crew):
        assert crew.do("a").split()[1] == crew.do("b").split()[1] != str(os.getpid())

    def test_a_task_that_kills_is_named_and_the_next_is_done(self, crew):
        found = crew.do("die")
        assert isinstance(found, Died)
        assert found.task == "die"
        assert crew.do("a").startswith("a ")

    def test_a_process_that_was_killed_while_it_waited_costs_no_task(self, crew):
        os.kill(int(crew.do("a").split()[1]), signal.SIGKILL)
        assert crew.do("b").startswith("b ")

    def test_exceptions_come_out_and_the_next_is_done(self, crew):
        with pytest.raises(BrokenImageError, match="broken"):
            crew.do("raise")
        assert crew.do("a").startswith("a ")
