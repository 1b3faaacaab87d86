"""Rows about which the second network is asked: collected across batches until they fill one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tdumpra.networks.passes import Started

MOST_WAITING = 8  # batches that wait for the second network, before it runs on fewer rows than a batch


@dataclass(slots=True, eq=False)
class Waiting:
    """A batch after the classifier, with the embeddings of its asked rows as far as they are known."""

    p: Tensor
    finite: Tensor
    features: Tensor | None
    rows: Tensor  # about which the bank is asked
    z: Tensor
    missing: int


class _Part(NamedTuple):
    """Asked rows of one batch that the second network has not seen."""

    batch: Waiting
    number: int  # of the batch
    start: int  # of its asked rows
    pixels: Tensor


class _Matching(NamedTuple):
    """Rows on their way through the second network."""

    parts: list[_Part]
    started: Started


class AskedRows:
    """Rows that wait for the second network, or are on their way through it.

    Args:
        start: starts the network on the pixels of some rows.
        batch_size: rows of a full batch.
    """

    def __init__(self, start: Callable[[Tensor], Started], batch_size: int) -> None:
        self.start, self.batch_size = start, batch_size
        self.rows_matched = 0
        self._n_batches = 0
        self._parts: deque[_Part] = deque()
        self._matching: deque[_Matching] = deque()

    def add(self, batch: Waiting, pixels: Tensor) -> None:
        """Queue the asked rows of the next batch, of which there may be none."""
        self._n_batches += 1
        if len(pixels):
            self._parts.append(_Part(batch, self._n_batches, 0, pixels))

    @torch.inference_mode()
    def match(self, *, all_rows: bool = False) -> None:
        """Start the second network on full batches, or on all rows: if asked to, or if the first have waited long.

        How long counts batches, so that each run goes alike.
        """
        all_rows |= bool(self._parts) and self._n_batches - self._parts[0].number >= MOST_WAITING
        while (n := sum(len(part.pixels) for part in self._parts)) >= self.batch_size or (all_rows and n):
            taken = self._take(min(n, self.batch_size))
            pixels = torch.cat([part.pixels for part in taken])
            self._matching.append(_Matching(taken, self.start(pixels)))
            self.rows_matched += len(pixels)

    @torch.inference_mode()
    def collect(self, *, wait: bool) -> None:
        """Hand the embeddings that are ready, or all of them, to the batches that wait."""
        while self._matching and (wait or self._matching[0].started.done()):
            parts, started = self._matching.popleft()
            z, start = started.result().z, 0
            for part in parts:
                n = len(part.pixels)
                part.batch.z[part.start : part.start + n] = z[start : start + n]
                part.batch.missing -= n
                start += n

    def _take(self, n: int) -> list[_Part]:
        taken = []
        while n:
            part = self._parts.popleft()
            if len(part.pixels) > n:
                self._parts.appendleft(part._replace(start=part.start + n, pixels=part.pixels[n:]))
                part = part._replace(pixels=part.pixels[:n])
            taken.append(part)
            n -= len(part.pixels)
        return taken
