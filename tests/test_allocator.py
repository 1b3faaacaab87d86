"""Freed memory is kept where it is asked for again, and little of it where memory is limited."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Faults of pages while a block is taken, filled and freed, again and again.
COUNT = """
import resource, sys
import numpy as np
from tdumpra import allocator
from tdumpra.lanes import Lanes
size, *names = sys.argv[1:]
for name in names:
    print(getattr(allocator, name)())

def take():
    return np.full(int(size), 1, np.uint8).size

def faults(run):
    run(take).result()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        run(take).result()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with Lanes(1) as lanes:
    print(faults(lanes.submit))
"""


BLOCK, PHOTOGRAPH = 2**26, 2**20  # bytes


def count(size: int, *names: str, **environment: str) -> list[str]:
    settings = {key: value for key, value in os.environ.items() if "MALLOC" not in key}
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(size), *names], capture_output=True, text=True, check=True,
        env={**settings, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the switches are glibc's")
def test_freed_memory_is_kept_until_it_is_to_be_given_back():
    """By a thread, as networks run in some; on a heap of its own it would keep nothing."""
    done, kept = count(BLOCK, "keep_freed_memory")
    assert done == "True"
    *_, returned = count(BLOCK, "keep_freed_memory", "keep_little_freed_memory")
    assert int(kept) < int(returned) / 4  # a block has 16,384 pages, or 32 large ones


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the switches are glibc's")
def test_a_process_whose_memory_is_limited_keeps_room_for_a_photograph():
    *_, kept = count(PHOTOGRAPH, "keep_freed_memory", "keep_little_freed_memory")
    assert int(kept) < PHOTOGRAPH / 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the switches are glibc's")
def test_who_chose_otherwise_is_obeyed():
    assert count(BLOCK, "keep_freed_memory", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
