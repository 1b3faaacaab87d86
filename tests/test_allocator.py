"""Freed memory is kept where a network asks for it again, and given back where memory is limited."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Faults of pages while a block of 64 MiB is taken, filled and freed, again and again.
COUNT = """
import resource, sys
import numpy as np
from tdumpra import allocator
for name in sys.argv[1:]:
    print(getattr(allocator, name)())
np.full(2**26, 1, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.full(2**26, 1, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count(*names: str, **environment: str) -> list[str]:
    settings = {key: value for key, value in os.environ.items() if "MALLOC" not in key}
    done = subprocess.run(
        [sys.executable, "-c", COUNT, *names], capture_output=True, text=True, check=True,
        env={**settings, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the switches are glibc's")
def test_freed_memory_is_kept_until_it_is_to_be_given_back():
    done, kept = count("keep_freed_memory")
    assert done == "True"
    *_, returned = count("keep_freed_memory", "return_freed_memory")
    assert int(kept) < int(returned) / 4  # a block has 16,384 pages, or 32 large ones


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the switches are glibc's")
def test_who_chose_otherwise_is_obeyed():
    assert count("keep_freed_memory", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
