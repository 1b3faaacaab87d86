"""Tell the C library whether to keep memory that was freed, or to give it back to the system.

A network on a CPU frees its activations after each batch and asks for the same again. glibc maps blocks of that size
anew each time, and the system fills them with zeros, page by page, which takes as long as the network.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT = 2**30  # bytes: more than the activations of a batch
_USUAL = 2**17  # glibc's own
_CHOSEN_OUTSIDE = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def keep_freed_memory() -> bool:
    """Let this process keep up to a gibibyte of freed memory; whether that could be arranged.

    Who chose otherwise in the environment (``MALLOC_TRIM_THRESHOLD_``, say) is obeyed.
    """
    return not any(name in os.environ for name in _CHOSEN_OUTSIDE) and _set_thresholds(_KEPT)


def return_freed_memory() -> bool:
    """Let this process give large blocks back at once, for one whose memory is limited."""
    return _set_thresholds(_USUAL)


def _set_thresholds(size: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all([mallopt(_TRIM_THRESHOLD, size), mallopt(_MMAP_THRESHOLD, size)])
