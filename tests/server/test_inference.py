"""Networks on a few threads, and a bounded number of images that wait."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from served import free_port
from server_world import picture

from tdumpra.data.images.new import Framed
from tdumpra.errors import InputFileError
from tdumpra.runtime.prediction import Prediction
from tdumpra.server.inference import Inference
from tdumpra.server.refusals import RefusedError
from tdumpra.server.settings import Settings

FRAMED = Framed(np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8, 3), np.uint8), None)


def stand_in(sizes: list[int], *, hold: threading.Event | None = None) -> Any:
    """A predictor that notes the sizes of its batches, and may wait."""

    def decide(framed: list[Framed], *, evidence: bool, groups: list[str | None]) -> list[Prediction]:
        if hold is not None:
            hold.wait(10)
        sizes.append(len(framed))
        return [Prediction("", str(group), {}, evidence, None, None) for group in groups]

    return SimpleNamespace(decide=decide, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("batch", "evidence", "largest"), [(1, False, 1), (4, False, 4), (4, True, 1)]
)  # what is recorded is computed alone
def test_what_waits_is_joined_up_to_a_batch(batch, evidence, largest):
    inference, hold = Inference(threads=1, waiting=20, batch=batch), threading.Event()
    sizes: list[int] = []
    predictor = stand_in(sizes, hold=hold)

    def ask(pool: ThreadPoolExecutor, i: int) -> Any:
        return pool.submit(inference.predict, predictor, FRAMED, group=str(i), evidence=evidence)

    def wait_for(waiting: int) -> None:
        deadline = time.monotonic() + 8
        while inference._jobs.qsize() != waiting and time.monotonic() < deadline:
            time.sleep(0.01)

    with ThreadPoolExecutor(12) as pool:
        asked = [ask(pool, 0)]
        time.sleep(0.2)
        wait_for(0)  # the first one is being decided, alone
        asked += [ask(pool, i) for i in range(1, 12)]
        wait_for(11)
        hold.set()
        assert [each.result().label for each in asked] == [str(i) for i in range(12)]  # each gets its own
    inference.close()
    assert sum(sizes) == 12
    assert max(sizes) == largest


def test_a_failure_belongs_to_whoever_asked(monkeypatch):
    inference = Inference(threads=1, waiting=1, batch=1)
    with pytest.raises(AttributeError):
        inference.predict(SimpleNamespace(), FRAMED, group=None, evidence=False)  # type: ignore[arg-type]
    assert inference.predict(stand_in([]), FRAMED, group="a", evidence=False).label == "a"
    inference.close()


def test_one_more_than_there_is_room_for_is_turned_away():
    inference = Inference(threads=1, waiting=1, batch=1)
    with inference.place(), inference.place():
        with pytest.raises(RefusedError) as refused, inference.place():
            pass
        assert (refused.value.status, refused.value.retry_after) == (503, 1)
    with inference.place():
        assert inference.under_way == 1
    inference.close()


def test_a_full_server_says_when_to_come_again_and_stores_nothing(make_world):
    world = make_world(waiting=1)
    with world.service.inference.place(), world.service.inference.place():
        for path in ("/v1/predict", "/v1/cases"):
            answer = world.client("sam").post(path, content=picture())
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
        assert world.client("sam").get("/v1/models").status_code == 200  # what needs no network is answered
    assert world.client("sam").post("/v1/predict", content=picture()).status_code == 200


def test_many_at_once_get_the_answers_that_one_alone_gets(make_world, tmp_path: Path):
    world = make_world(threads=2, waiting=30)
    images = [picture(colour, seed) for seed in range(5) for colour in ("amber", "blue", "cyan")]
    alone = [world.client("sam").post("/v1/predict", content=each).json()["probabilities"] for each in images]
    with ThreadPoolExecutor(8) as pool:
        together = list(
            pool.map(lambda each: world.client("sam").post("/v1/predict", content=each).json()["probabilities"], images)
        )
    assert together == alone


@pytest.mark.parametrize(("threads", "joined"), [(1, [2]), (2, [1, 1])])
def test_the_last_free_thread_waits_for_what_is_being_decoded(threads, joined, monkeypatch):
    """Where another thread is free, nobody waits for company."""
    monkeypatch.setattr("tdumpra.server.inference._MOMENT", 5.0)
    inference, sizes, first = Inference(threads=threads, waiting=20, batch=2), list[int](), threading.Event()
    predictor = stand_in(sizes)

    def decoded_late() -> None:
        with inference.place():
            first.wait(5)
            time.sleep(0.1)
            inference.predict(predictor, FRAMED, group=None, evidence=False)

    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(decoded_late)
        while not inference.under_way:
            time.sleep(0.01)
        with inference.place():
            first.set()
            inference.predict(predictor, FRAMED, group=None, evidence=False)
        late.result()
    inference.close()
    assert sizes == joined


def test_images_in_company_get_the_answers_that_one_alone_gets(make_world):
    world = make_world(threads=1, waiting=30, batch=4)
    images = [picture(colour, seed) for seed in range(4) for colour in ("amber", "blue")]
    alone = [world.client("sam").post("/v1/predict", content=each).json() for each in images]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: world.client("sam").post("/v1/predict", content=each).json(), images))
    for one, other in zip(alone, together, strict=True):
        assert (one["label"], one["gate"]) == (other["label"], other["gate"])
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


@pytest.mark.parametrize(
    ("has_gpu", "words", "threads", "batch"), [(True, (), 1, 16), (True, ("--device", "cpu"), 3, 4), (False, (), 3, 4)]
)
def test_more_images_are_joined_on_a_gpu(tdumpra, tmp_path, monkeypatch, model_files, has_gpu, words, threads, batch):
    seen: list[Settings] = []

    def stop(settings: Settings, *_: object, **__: object) -> None:
        seen.append(settings)
        raise InputFileError("enough")

    monkeypatch.setattr("tdumpra.server.service.open_service", stop)
    monkeypatch.setattr("tdumpra.data.images.workers.available_cores", lambda: 3)
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    assert tdumpra("serve", model_files[0], "--folder", tmp_path / "s", "--port", free_port(), *words).code == 2
    assert (seen[0].threads, seen[0].batch) == (threads, batch)
