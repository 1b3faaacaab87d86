"""Run a model's two networks over a stream of framed images, in batches of few sizes.

The second network is lazy: the clause ``top probability < theta`` needs the classifier alone, so only rows below theta
get a second pass. Their number differs from batch to batch, and a GPU plans its convolutions anew for each batch size
that it has not seen, which takes longer than the pass. So rows below theta are collected across batches until they fill
one, and what is left over is padded to one of few sizes.

Results come in order, and the next passes of both networks are under way while the caller looks at the last ones: on a
GPU behind it, on a CPU in lanes, each a batch on a core of its own (:mod:`tdumpra.networks.passes`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from tdumpra.allocator import keep_freed_memory
from tdumpra.data.images.new import Framed
from tdumpra.lanes import Lanes
from tdumpra.method.decision import Decided, Decision
from tdumpra.networks.asked import MOST_WAITING, AskedRows, Waiting
from tdumpra.networks.build import Encoding
from tdumpra.networks.passes import Launched, NetworkPass, Pass, Recordings, Started, open_lanes

T = TypeVar("T")
R = TypeVar("R")

_BATCH, _GPU_BATCH = 16, 64  # rows: on a CPU larger ones are no faster, and take more memory
_SMALL = (1, 8)  # sizes of batches that are not full
_UNDER_WAY = 2  # batches of the classifier whose results nobody has looked at yet, beside those in lanes

_keep_freed_memory = cache(keep_freed_memory)  # each call tidies the whole heap, and a server makes engines all day


def usual_batch_size(device: torch.device) -> int:
    """Return the number of rows that suits a device."""
    return _GPU_BATCH if device.type == "cuda" else _BATCH


class Batch(NamedTuple):
    """A decided batch. ``decided`` and ``z`` hold only the rows about which the bank was asked."""

    p: Tensor
    opened: Tensor
    finite: Tensor  # whether the networks gave finite numbers
    place: dict[int, int]  # from a row of the batch to its row in ``decided`` and ``z``
    decided: Decided | None
    z: Tensor | None
    features: Tensor | None  # the classifier's, of every row, where they are wanted


class _Seen(NamedTuple):
    """A batch on its way through the classifier."""

    started: Started
    second: Tensor | None  # the framed images for the second network, on the device


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
        lanes: how many passes run at a time, in threads of their own; 0 runs each where it is asked for, as on a GPU,
            which goes on by itself.
        recordings: of passes on a GPU; full batches are replayed from them. Without, each kernel is launched.
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
        lanes: int = 0,
        recordings: Recordings | None = None,
    ) -> None:
        self.decision, self.classifier, self.retrieval = decision, classifier, retrieval
        self.device, self.batch_size, self.eager, self.features = device, batch_size, eager, features
        self.lanes, self.recordings = lanes, recordings
        self.rows_seen = 0
        self._open: Lanes | None = None
        self._small: Lanes | None = None
        self._asked = AskedRows(self._match, batch_size)
        self._sizes = sorted({min(size, batch_size) for size in (*_SMALL, batch_size)})
        if device.type == "cpu":
            _keep_freed_memory()

    @property
    def rows_matched(self) -> int:
        """Return how many rows the second network has seen."""
        return self._asked.rows_matched

    def decide(self, batches: Iterable[list[Framed]]) -> Iterator[Batch]:
        """Yield each batch as it is decided, in order."""
        seen: deque[_Seen] = deque()
        waiting: deque[Waiting] = deque()
        with self._running():
            for framed in batches:
                seen.append(self._look(framed))
                if len(seen) == _UNDER_WAY + self.lanes:
                    waiting.append(self._settle(seen.popleft()))
                    self._asked.match()
                    self._asked.collect(wait=len(waiting) > MOST_WAITING)
                while waiting and not waiting[0].missing:
                    yield self._aside(self._finish, waiting.popleft())
            for each in seen:  # in this way, so that the same rows go together however many were ahead
                waiting.append(self._settle(each))
                self._asked.match()
            self._asked.match(all_rows=True)
            self._asked.collect(wait=True)
            for decided in waiting:
                yield self._aside(self._finish, decided)

    def encode(self, batches: Iterable[list[Framed]]) -> Iterator[Encoding]:
        """Yield what the networks give before any decision: the classifier's logits and features, the bank's z.

        Features come from an engine that keeps them.
        """
        started: deque[list[Started]] = deque()
        with self._running():
            for framed in batches:
                started.append(self._start_both(framed))
                if len(started) == _UNDER_WAY + self.lanes:
                    yield self._encoding(started.popleft())
            for each in started:
                yield self._encoding(each)

    @torch.inference_mode()
    def _start_both(self, framed: list[Framed]) -> list[Started]:
        started = [self._start(self.classifier, self._on_device([each.first for each in framed]))]
        if self.retrieval is not None:
            started.append(self._start(self.retrieval, self._on_device([each.second for each in framed])))
        return started

    @staticmethod
    @torch.inference_mode()
    def _encoding(started: list[Started]) -> Encoding:
        first, last = started[0].result(), started[-1].result()
        return Encoding(*(column.float() for column in (first.logits, last.z, first.features)))

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Open lanes, and borrow recorded passes, for as long as batches come."""
        with ExitStack() as stack:
            if self.lanes:
                self._open = stack.enter_context(open_lanes(self.lanes))
                stack.callback(setattr, self, "_open", None)
            if self.lanes or self.recordings is not None:  # there are many batches
                self._small = stack.enter_context(open_lanes(1, threads=1))
                stack.callback(setattr, self, "_small", None)
            if self.recordings is not None:
                for name in ("classifier", "retrieval"):
                    if isinstance(plain := getattr(self, name), NetworkPass):
                        setattr(self, name, stack.enter_context(self.recordings.lent(plain, self.batch_size)))
                        stack.callback(setattr, self, name, plain)
            yield

    def _aside(self, function: Callable[[T], R], argument: T) -> R:
        """Call a function where PyTorch has one thread.

        Others would be woken for each of its small tensors, and have it wait while they wait for cores that decode.
        """
        return function(argument) if self._small is None else self._small.submit(function, argument).result()

    @torch.inference_mode()
    def _look(self, framed: list[Framed]) -> _Seen:
        first = self._on_device([each.first for each in framed])
        second = None
        if self.retrieval is not None:
            same = all(each.first is each.second for each in framed)
            second = first if same else self._on_device([each.second for each in framed])
        self.rows_seen += len(framed)
        return _Seen(self._start(self.classifier, first), second)

    @torch.inference_mode()
    def _settle(self, seen: _Seen) -> Waiting:
        """Wait for the classifier's results, and queue the rows that the second network must see."""
        batch = self._aside(self._after_classifier, seen.started.result())
        if seen.second is not None:
            rows = batch.rows
            self._asked.add(batch, seen.second[self._sent(rows)] if len(rows) else seen.second[:0])
        return batch

    @torch.inference_mode()
    def _after_classifier(self, encoding: Encoding) -> Waiting:
        logits, z, features = encoding
        n, p, finite = len(logits), logits.double().softmax(1), logits.isfinite().all(1)
        kept = features if self.features else None
        if self.retrieval is None:
            return Waiting(p, finite, kept, torch.arange(n), z, 0)
        asked = torch.ones(n, dtype=torch.bool)
        if not self.eager:
            asked = self.decision.classifier(p).amax(1) < self.decision.thresholds.theta
        rows = asked.nonzero().flatten()
        return Waiting(p, finite, kept, rows, torch.empty(len(rows), self.decision.bank.width), len(rows))

    @torch.inference_mode()
    def _match(self, pixels: Tensor) -> Started:
        assert self.retrieval is not None
        return self._start(self.retrieval, pixels)

    @torch.inference_mode()
    def _finish(self, batch: Waiting) -> Batch:
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
        rows = torch.empty(len(framed), *framed[0].shape, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        np.stack(framed, out=rows.numpy())
        return self._sent(rows)

    def _sent(self, rows: Tensor) -> Tensor:
        """Return rows on the device. A GPU fetches them by itself: to wait for it would end the work ahead of it."""
        if self.device.type != "cuda":
            return rows.to(self.device)
        return rows.pin_memory().to(self.device, non_blocking=True)

    def _start(self, which: Pass, framed: Tensor) -> Started:
        """Start a network. On a GPU what it gives is copied to the host behind it, and an event tells when."""
        if self._open is not None:
            return self._open.submit(self._run, which, framed)
        logits, z, features = self._run(which, framed)
        if self.device.type != "cuda":
            return Launched(Encoding(logits.cpu(), z.cpu(), features.cpu()), None)
        wanted = Encoding(logits, z, features if self.features else features[:0])
        on_host = Encoding(*(column.to("cpu", non_blocking=True) for column in wanted))
        return Launched(on_host, torch.cuda.current_stream(self.device).record_event())

    @torch.inference_mode()
    def _run(self, which: Pass, framed: Tensor) -> Encoding:
        """Run a network; on a GPU in a batch of one of few sizes."""
        n = len(framed)
        if self.device.type == "cuda":
            size = next(size for size in self._sizes if size >= n)
            framed = torch.cat([framed, framed[:1].expand(size - n, *framed.shape[1:])]) if size > n else framed
        encoding = which(framed)
        return Encoding(encoding.logits[:n], encoding.z[:n].float(), encoding.features[:n])
