"""Run networks for requests: a few threads, a bounded number of images that wait, and a clear no beyond it.

A thread takes what waits, up to a batch. On a CPU a batch of four saves between a tenth and a half of the time of each
image, the more the smaller the network: what waits is shared out among the threads that are free, and the last free one
waits a moment for images that are being decoded. What a record keeps is computed alone there, so that it comes out to
the bit when it is replayed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from math import ceil
from typing import NamedTuple

import torch

from tdumpra.data.images.new import Framed
from tdumpra.networks.predict import Predictor
from tdumpra.runtime.prediction import Prediction
from tdumpra.server.refusals import RefusedError

_MOMENT = 0.01  # seconds that a thread waits for images which are being decoded, while all others are busy


class _Job(NamedTuple):
    predictor: Predictor
    framed: Framed
    group: str | None
    evidence: bool
    result: Future[Prediction]


class Inference:
    """The threads that run networks."""

    def __init__(self, *, threads: int, waiting: int, batch: int) -> None:
        self._batch, self._jobs = batch, queue.SimpleQueue[_Job | None]()
        self._lock, self._most, self.under_way = threading.Lock(), threads + waiting, 0
        self._turn = threading.Lock()  # to take jobs
        self._busy = self._running = 0  # threads, and the jobs that they have taken
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one of the places for images under way, or raise ``RefusedError`` if all are taken."""
        with self._lock:
            if self.under_way >= self._most:
                raise RefusedError(503, f"{self._most} images are under way already: try again", retry_after=1)
            self.under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self.under_way -= 1

    def predict(self, predictor: Predictor, framed: Framed, *, group: str | None, evidence: bool) -> Prediction:
        """Predict one image, on one of the threads."""
        job = _Job(predictor, framed, group, evidence, Future())
        self._jobs.put(job)
        prediction = job.result.result()
        if prediction.error is not None:
            raise RefusedError(422, prediction.error)
        return prediction

    def close(self) -> None:
        """End the threads once nothing waits."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        torch.set_num_threads(1)  # of this thread: the others keep the other cores busy
        while jobs := self._next():
            try:
                predictions = jobs[0].predictor.decide(
                    [each.framed for each in jobs], evidence=jobs[0].evidence, groups=[each.group for each in jobs]
                )
            except Exception as error:
                for each in jobs:
                    each.result.set_exception(error)
            else:
                for each, prediction in zip(jobs, predictions, strict=True):
                    each.result.set_result(prediction)
            with self._lock:
                self._busy -= 1
                self._running -= len(jobs)

    def _next(self) -> list[_Job]:
        """Wait for a job, and return it with those that go with it; none at the end. One thread looks at a time."""
        with self._turn:
            job = self._jobs.get()
            if job is None:
                return []
            with self._lock:
                self._busy += 1
            jobs = self._joined(job)
            with self._lock:
                self._running += len(jobs)
            return jobs

    def _joined(self, job: _Job) -> list[_Job]:
        jobs, most, until = [job], self._most_joined(job), time.monotonic() + _MOMENT
        while len(jobs) < most:
            decoding = self.under_way - self._running - len(jobs) - self._jobs.qsize()
            try:
                other = self._jobs.get(timeout=max(0.0, until - time.monotonic()) if decoding > 0 else 0.0)
            except queue.Empty:
                break
            if other is None or other.predictor is not job.predictor or other.evidence != job.evidence:
                self._jobs.put(other)
                break
            jobs.append(other)
        return jobs

    def _most_joined(self, job: _Job) -> int:
        if job.evidence and job.predictor.device.type == "cpu":
            return 1
        free = len(self._threads) - self._busy  # threads for which to leave some
        return self._batch if not free else min(self._batch, ceil((1 + self._jobs.qsize()) / (1 + free)))
