from __future__ import annotations

import os
import signal
import time

import pytest

from tdumpra.data.images.workers import CHUNK, Died, run_tasks


def square(x: int) -> int:
    return x * x


def square_or_die(x: int) -> int:
    if x in {3, 70}:
        os.kill(os.getpid(), signal.SIGKILL)
    return x * x


def square_or_raise(x: int) -> int:
    if x == 40:
        raise ArithmeticError("forty")
    return x * x


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_task_is_done_once(workers):
    results = [result for chunk in run_tasks(square, range(CHUNK * 5 + 3), workers=workers) for result in chunk]
    assert sorted(results, key=str) == sorted((x * x for x in range(CHUNK * 5 + 3)), key=str)


def test_nothing_to_do_starts_nothing():
    assert list(run_tasks(square, [], workers=2)) == []


def test_a_task_that_kills_its_process_is_found_and_the_rest_goes_on():
    results = [result for chunk in run_tasks(square_or_die, range(CHUNK * 8), workers=2) for result in chunk]
    died = [result.task for result in results if isinstance(result, Died)]
    survived = [result for result in results if not isinstance(result, Died)]
    assert sorted(died) == [3, 70]
    assert sorted(survived) == [x * x for x in range(CHUNK * 8) if x not in {3, 70}]


class PickyError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def refuse(x: int) -> int:
    raise PickyError("no ", "thanks")


def test_an_exception_that_cannot_travel_is_told_in_words():
    with pytest.raises(RuntimeError, match="PickyError: no thanks"):
        list(run_tasks(refuse, [1], workers=1))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_comes_out(workers):
    with pytest.raises(ArithmeticError, match="forty"):
        list(run_tasks(square_or_raise, range(CHUNK * 3), workers=workers))


def test_workers_do_not_outlive_a_killed_parent():
    parent = os.fork()
    if parent == 0:  # pragma: no cover
        os.setpgid(0, 0)
        for _ in run_tasks(time.sleep, [0.05] * 10_000, workers=2):
            pass
        os._exit(0)
    time.sleep(1.0)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(parent, 0)  # asks whether the group still has a member
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(parent, signal.SIGKILL)
    pytest.fail("worker processes were left behind")
