"""Tell the C library how much memory to keep that was freed, before it gives some back to the system.

A network on a CPU frees its activations after each batch and asks for the same again. glibc maps blocks of that size
anew each time, and the system fills them with zeros, page by page, which takes as long as the network. So do the pixels
of decoded images.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # glibc's malloc.h
_KEPT = 2**30  # bytes: more than the activations of a batch
_LITTLE = 2**25  # bytes: a photograph as it is decoded, and little beside the memory that decoding one may take
_CHOSEN_OUTSIDE = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")


def keep_freed_memory() -> bool:
    """Let this process keep up to a gibibyte of freed memory; whether that could be arranged.

    Its threads share one heap from now on: what they free on heaps of their own is given back whatever is asked for.
    Who chose otherwise in the environment (``MALLOC_TRIM_THRESHOLD_``, say) is obeyed.
    """
    return not any(name in os.environ for name in _CHOSEN_OUTSIDE) and _set(_KEPT, (_ARENA_MAX, 1))


def keep_little_freed_memory() -> bool:
    """Let this process keep so much that a photograph fits into it, for one whose memory is limited."""
    return _set(_LITTLE)


def _set(kept: int, *more: tuple[int, int]) -> bool:
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    done = [mallopt(*each) for each in ((_TRIM_THRESHOLD, kept), (_MMAP_THRESHOLD, kept), *more)]
    return all(done)
