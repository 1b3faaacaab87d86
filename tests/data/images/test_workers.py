from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch

from tdumpra.data.images import workers
from tdumpra.data.images.workers import CHUNK, CRASHED, Died, Worker, in_order, most_ahead, run_tasks, scan
from tdumpra.data.manifest import Record
from tdumpra.errors import BrokenImageError, MissingExtraError


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


def test_a_task_whose_process_was_killed_from_outside_is_done_again(tmp_path):
    def square_once_killed(x: int) -> int:
        try:
            (tmp_path / str(x)).touch(exist_ok=False)
        except FileExistsError:
            return x * x
        if x in {3, 70}:
            os.kill(os.getpid(), signal.SIGKILL)
        return x * x

    results = [result for chunk in run_tasks(square_once_killed, range(CHUNK * 4), workers=2) for result in chunk]
    assert sorted(results, key=str) == sorted((x * x for x in range(CHUNK * 4)), key=str)


def spin(x: int) -> int:
    while x == 3:
        pass
    return x


def swell(x: int) -> int:
    return len(np.ones(2**29 if x == 3 else 8, dtype=np.uint8)) and x


def swell_torch(x: int) -> int:
    return len(torch.ones(2**29 if x == 3 else 8, dtype=torch.uint8)) and x


@pytest.mark.skipif(sys.platform != "linux", reason="limits of processes are Linux's")
@pytest.mark.parametrize(
    ("work", "limit", "reason"),
    [
        (spin, "image_seconds=0.2", "more than 0.2 s"),
        (swell, "image_memory=300e6", "more than 286 MiB"),
        (swell_torch, "image_memory=300e6", "more than 286 MiB"),
        (square_or_die, "image_seconds=5", CRASHED),
    ],
)
def test_a_task_that_asks_for_too_much_is_left_out(monkeypatch, work, limit, reason):
    monkeypatch.setenv("TDUMPRA_LIMITS", limit)
    results = list(in_order(work, range(10), limited=True))
    assert [i for i, result in enumerate(results) if isinstance(result, Died)] == [3]
    (died,) = (result for result in results if isinstance(result, Died))
    assert died.task == 3
    assert reason in died.reason
    assert [result for result in results if not isinstance(result, Died)] == [work(x) for x in range(10) if x != 3]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("killers", [{3}, set(range(8)), {3, 20, 40, 90}, {99}])
def test_tasks_that_kill_are_found_however_close_they_are_and_few_processes_die(count, killers, monkeypatch):
    started = []

    class Counted(Worker[int, int]):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            started.append(self)

    def work(x: int) -> int:
        if x in killers:
            os.kill(os.getpid(), signal.SIGKILL)
        return x * x

    monkeypatch.setattr(workers, "Worker", Counted)
    found = list(in_order(work, range(100), limited=True, workers=count))
    assert [i for i, result in enumerate(found) if isinstance(result, Died)] == sorted(killers)
    assert [result for result in found if not isinstance(result, Died)] == [
        i * i for i in range(100) if i not in killers
    ]
    assert len(started) <= count + 2 * len(killers)  # each kills two


def test_results_before_an_exception_are_not_lost():
    found: list[Any] = []

    def fail_at_seven(x: int) -> int:
        if x == 7:
            raise RuntimeError("no seven")
        return x

    def collect() -> None:
        for results in run_tasks(fail_at_seven, range(CHUNK), workers=1):
            found.extend(results)

    with pytest.raises(RuntimeError, match="no seven"):
        collect()
    assert found == list(range(7))


@pytest.mark.parametrize("limited", [True, False])
def test_results_come_in_order_however_long_each_takes(limited):
    def slow_first(x: int) -> int:
        time.sleep(0.3 if x == 0 else 0)
        return x

    assert list(in_order(slow_first, range(200), limited=limited)) == list(range(200))
    assert list(in_order(slow_first, [], limited=limited)) == []


@pytest.mark.parametrize(("limited", "count"), [(True, None), (True, 9), (False, None)])
def test_no_task_is_begun_further_ahead_than_said(limited, count, monkeypatch):
    monkeypatch.setattr(workers, "available_cores", lambda: 3)
    begun = mmap.mmap(-1, 1000)  # shared with the workers

    def slow_at_times(x: int) -> int:
        begun[x] = 1
        time.sleep(0.2 if x in (0, 150) else 0)
        return x

    results = in_order(slow_at_times, range(400), limited=limited, workers=count)
    furthest = [begun[:].rfind(b"\x01") - i for i, _ in enumerate(results)]
    assert len(furthest) == 400
    assert 0 < max(furthest) < most_ahead(count)


def test_leaving_early_ends_the_processes():
    results = in_order(square, range(1000), limited=True)
    assert next(results) == 0
    results.close()
    assert not multiprocessing.active_children()


def test_a_scan_tells_broken_images_from_other_troubles(tmp_path):
    records = [Record(id=str(i), path=tmp_path / str(i), label=0, group=str(i)) for i in range(6)]

    def look(record: Record) -> str:
        if record.id == "2":
            raise BrokenImageError("torn")
        if record.id == "4":
            os.kill(os.getpid(), signal.SIGKILL)
        return record.id

    steps: list[None] = []
    found = scan(records, look, on_step=lambda: steps.append(None))
    assert [str(each) for each in found] == ["0", "1", "torn", "3", CRASHED, "5"]
    assert [isinstance(each, BrokenImageError) for each in found] == [False, False, True, False, True, False]
    assert len(steps) == 6

    def lack(record: Record) -> str:
        raise MissingExtraError("pydicom", "dicom", "reading DICOM files")

    with pytest.raises(MissingExtraError):
        scan(records, lack)


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
