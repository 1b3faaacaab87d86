"""Run networks for requests: a few threads, a bounded number of images that wait, and a clear no beyond it.

On a CPU each thread takes one image at a time: batches of several bring nothing there. On a GPU one thread takes what
waits, up to a batch.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple

import torch

from tdumpra.data.images.new import Framed
from tdumpra.networks.predict import Predictor
from tdumpra.runtime.prediction import Prediction
from tdumpra.server.refusals import RefusedError


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
        while (job := self._jobs.get()) is not None:
            jobs, last = self._joined(job)
            try:
                predictions = job.predictor.decide(
                    [each.framed for each in jobs], evidence=job.evidence, groups=[each.group for each in jobs]
                )
            except Exception as error:
                for each in jobs:
                    each.result.set_exception(error)
            else:
                for each, prediction in zip(jobs, predictions, strict=True):
                    each.result.set_result(prediction)
            if last:
                return

    def _joined(self, job: _Job) -> tuple[list[_Job], bool]:
        """Return the job with those that wait and go with it, and whether the end was among them."""
        jobs = [job]
        while len(jobs) < self._batch:
            try:
                other = self._jobs.get_nowait()
            except queue.Empty:
                break
            if other is None:
                return jobs, True
            if other.predictor is not job.predictor or other.evidence != job.evidence:
                self._jobs.put(other)
                break
            jobs.append(other)
        return jobs, False
