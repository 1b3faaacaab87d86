"""Run a model's two networks over a stream of framed images, in batches of few sizes.

The second network is lazy: the clause ``top probability < theta`` needs the classifier alone, so only rows below theta
get a second pass. Their number differs from batch to batch, and a GPU plans its convolutions anew for each batch size
that it has not seen, which takes longer than the pass. So rows below theta are collected across batches until they fill
one, and what is left over is padded to one of few sizes.

Results come in order. On a GPU the next passes of both networks are under way while the host looks at the last ones.

A network is anything that maps framed images to an :class:`~tdumpra.networks.build.Encoding` (:class:`Pass`), so that
another runtime can stand in PyTorch's place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from tdumpra.allocator import keep_freed_memory
from tdumpra.data.images.framing import EvalTransform
from tdumpra.data.images.new import Framed
from tdumpra.method.decision import Decided, Decision
from tdumpra.networks.build import Encoding, arithmetic
from tdumpra.networks.settings import Precision

_BATCH, _GPU_BATCH = 16, 64  # rows: on a CPU larger ones are no faster, and take more memory
_SMALL = (1, 8)  # sizes of batches that are not full
_UNDER_WAY = 2  # batches of the classifier whose results nobody has looked at yet
_MOST_WAITING = 8  # batches that wait for the second network, before it runs on fewer rows than a batch


def usual_batch_size(device: torch.device) -> int:
    """Return the number of rows that suits a device."""
    return _GPU_BATCH if device.type == "cuda" else _BATCH


class Pass(Protocol):
    """One network, ready to run: framed images on the engine's device in, logits and embeddings out, row by row."""

    def __call__(self, framed: UInt8[Tensor, "n h w 3"], /) -> Encoding:
        """Return the encoding of each image, on the same device."""


class NetworkPass(NamedTuple):
    """A PyTorch network with the preprocessing that it expects and the precision in which it computes."""

    network: nn.Module
    transform: EvalTransform
    precision: Precision | None  # None: as the caller has it
    channels_last: bool = False  # a layout that is faster on a GPU, once its convolutions are planned

    def __call__(self, framed: UInt8[Tensor, "n h w 3"]) -> Encoding:
        """Transform framed images where they are, and run the network."""
        return self.encode(self.transform(framed))

    def encode(self, images: Float[Tensor, "n 3 s s"]) -> Encoding:
        """Run the network on transformed images."""
        if self.channels_last:
            images = images.to(memory_format=torch.channels_last)
        elif images.is_cuda:  # which plans convolutions with the channels last for seconds, for each new batch size
            images = images.contiguous()
        with nullcontext() if self.precision is None else arithmetic(self.precision, images.device):
            encoding: Encoding = self.network(images)
        return encoding


class Batch(NamedTuple):
    """A decided batch. ``decided`` and ``z`` hold only the rows about which the bank was asked."""

    p: Tensor
    opened: Tensor
    finite: Tensor  # whether the networks gave finite numbers
    place: dict[int, int]  # from a row of the batch to its row in ``decided`` and ``z``
    decided: Decided | None
    z: Tensor | None
    features: Tensor | None  # the classifier's, of every row, where they are wanted


@dataclass(slots=True, eq=False)
class _Launched:
    """A batch on its way through the classifier."""

    n: int
    logits: Tensor
    z: Tensor
    features: Tensor | None
    second: Tensor | None  # the framed images for the second network, on the device
    done: torch.cuda.Event | None


@dataclass(slots=True, eq=False)
class _Waiting:
    """A batch after the classifier, with the embeddings of its asked rows as far as they are known."""

    p: Tensor
    finite: Tensor
    features: Tensor | None
    rows: Tensor  # about which the bank is asked
    z: Tensor
    missing: int


class _Part(NamedTuple):
    """Asked rows of one batch that the second network has not seen."""

    batch: _Waiting
    start: int  # of its asked rows
    pixels: Tensor


class _Matching(NamedTuple):
    """Rows on their way through the second network."""

    parts: list[_Part]
    z: Tensor
    done: Any  # torch.cuda.Event or None; its type stubs lack the parts


class Engine:
    """The classifier, the network that matches prototypes, and the decision between them.

    Args:
        decision: what was fitted.
        classifier: gives probabilities, and embeddings too where there is no other network.
        retrieval: the second network; ``None`` where the classifier's own embeddings are matched.
        device: where both compute.
        batch_size: rows of a full batch.
        eager: ask the bank about every row.
        features: keep the classifier's pooled features.
    """

    def __init__(
        self,
        decision: Decision,
        classifier: Pass,
        retrieval: Pass | None,
        *,
        device: torch.device,
        batch_size: int,
        eager: bool,
        features: bool = False,
    ) -> None:
        self.decision, self.classifier, self.retrieval = decision, classifier, retrieval
        self.device, self.batch_size, self.eager, self.features = device, batch_size, eager, features
        self.rows_seen = self.rows_matched = 0
        self._parts: deque[_Part] = deque()
        self._matching: deque[_Matching] = deque()
        self._sizes = sorted({min(size, batch_size) for size in (*_SMALL, batch_size)})
        if device.type == "cpu":
            keep_freed_memory()

    def decide(self, batches: Iterable[list[Framed]]) -> Iterator[Batch]:
        """Yield each batch as it is decided, in order."""
        launched: deque[_Launched] = deque()
        waiting: deque[_Waiting] = deque()
        for framed in batches:
            launched.append(self._launch(framed))
            if len(launched) == _UNDER_WAY:
                waiting.append(self._settle(launched.popleft()))
                hurry = len(waiting) > _MOST_WAITING
                self._match(all_rows=hurry)
                self._collect(wait=hurry)
            while waiting and not waiting[0].missing:
                yield self._finish(waiting.popleft())
        waiting.extend(self._settle(each) for each in launched)
        self._match(all_rows=True)
        self._collect(wait=True)
        for each in waiting:
            yield self._finish(each)

    @torch.inference_mode()
    def outputs(self, framed: list[Framed]) -> Encoding:
        """Return what the networks give before any decision: the classifier's logits and features, the bank's z."""
        seen = self._run(self.classifier, self._on_device([each.first for each in framed]))
        z = seen.z
        if self.retrieval is not None:
            z = self._run(self.retrieval, self._on_device([each.second for each in framed])).z
        return Encoding(*(column.float().cpu() for column in (seen.logits, z, seen.features)))

    @torch.inference_mode()
    def _launch(self, framed: list[Framed]) -> _Launched:
        first = self._on_device([each.first for each in framed])
        second = None
        if self.retrieval is not None:
            same = all(each.first is each.second for each in framed)
            second = first if same else self._on_device([each.second for each in framed])
        encoding = self._run(self.classifier, first)
        self.rows_seen += len(framed)
        logits, z = (self._to_host(column) for column in (encoding.logits, encoding.z.float()))
        features = self._to_host(encoding.features) if self.features else None
        return _Launched(len(framed), logits, z, features, second, self._event())

    def _to_host(self, column: Tensor) -> Tensor:
        """Copy to the host, behind it where an event tells when that is done."""
        return column.to("cpu", non_blocking=self.device.type == "cuda")

    @torch.inference_mode()
    def _settle(self, launched: _Launched) -> _Waiting:
        """Look at the classifier's results, and queue the rows that the second network must see."""
        if launched.done is not None:
            launched.done.synchronize()
        p = launched.logits.double().softmax(1)
        finite = launched.logits.isfinite().all(1)
        if self.retrieval is None:
            every = torch.arange(launched.n)
            return _Waiting(p, finite, launched.features, every, launched.z, 0)
        asked = torch.ones(launched.n, dtype=torch.bool)
        if not self.eager:
            asked = self.decision.classifier(p).amax(1) < self.decision.thresholds.theta
        rows = asked.nonzero().flatten()
        z = torch.empty(len(rows), self.decision.bank.width)
        batch = _Waiting(p, finite, launched.features, rows, z, len(rows))
        if len(rows) and launched.second is not None:
            self._parts.append(_Part(batch, 0, launched.second[rows.to(self.device)]))
        return batch

    @torch.inference_mode()
    def _match(self, *, all_rows: bool) -> None:
        """Start the second network on full batches of the rows that wait for it, or on all of them."""
        while (n := sum(len(part.pixels) for part in self._parts)) >= self.batch_size or (all_rows and n):
            assert self.retrieval is not None
            taken = self._take(min(n, self.batch_size))
            z = self._run(self.retrieval, torch.cat([part.pixels for part in taken])).z.float()
            self._matching.append(_Matching(taken, self._to_host(z), self._event()))
            self.rows_matched += len(z)

    @torch.inference_mode()
    def _collect(self, *, wait: bool) -> None:
        """Hand the embeddings that are ready, or all of them, to the batches that wait."""
        while self._matching:
            parts, z, done = self._matching[0]
            if done is not None and not wait and not done.query():
                return
            if done is not None:
                done.synchronize()
            self._matching.popleft()
            start = 0
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
                self._parts.appendleft(_Part(part.batch, part.start + n, part.pixels[n:]))
                part = part._replace(pixels=part.pixels[:n])
            taken.append(part)
            n -= len(part.pixels)
        return taken

    @torch.inference_mode()
    def _finish(self, batch: _Waiting) -> Batch:
        final = self.decision.classifier(batch.p).clone()
        rows, opened = batch.rows, torch.zeros(len(final), dtype=torch.bool)
        if not len(rows):
            return Batch(final, opened, batch.finite, {}, None, None, batch.features)
        batch.finite[rows] &= batch.z.isfinite().all(1)
        decided = self.decision.decide(batch.p[rows], batch.z)
        final[rows], opened[rows] = decided.p, decided.opened
        place = {row: j for j, row in enumerate(rows.tolist())}
        return Batch(final, opened, batch.finite, place, decided, batch.z, batch.features)

    def _on_device(self, framed: list[np.ndarray]) -> Tensor:
        if self.device.type != "cuda":
            return torch.from_numpy(np.stack(framed)).to(self.device)
        pinned = torch.empty(len(framed), *framed[0].shape, dtype=torch.uint8, pin_memory=True)
        np.stack(framed, out=pinned.numpy())
        return pinned.to(self.device, non_blocking=True)

    def _run(self, which: Pass, framed: Tensor) -> Encoding:
        """Run a network; on a GPU in a batch of one of few sizes."""
        n = len(framed)
        if self.device.type == "cuda":
            size = next(size for size in self._sizes if size >= n)
            framed = torch.cat([framed, framed[:1].expand(size - n, *framed.shape[1:])]) if size > n else framed
        encoding = which(framed)
        return Encoding(*(column[:n] for column in encoding))

    def _event(self) -> torch.cuda.Event | None:
        """Mark what the GPU has been told to do so far."""
        return torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None
