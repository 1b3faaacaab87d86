"""Which training image an image is: told by its content, in the classifier's framing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_runs import SIZE, colour_of

from tdumpra.data.images import new
from tdumpra.data.images.decode import decode_file
from tdumpra.method.bank import Exemplar
from tdumpra.networks.model_file import Encoder, Model
from tdumpra.networks.predict import Predictor
from tdumpra.networks.training_images import TrainingImages, alike, find_originals, thumbnail
from tdumpra.runtime.prediction import Prediction


def explained(model: Model, path: Path, **options: Any) -> tuple[Prediction, Predictor]:
    predictor = Predictor(model, device="cpu")
    training = TrainingImages.of(predictor, None)
    (found,) = predictor.predict([path], evidence=True, recognise=training.find, **options)
    return found, predictor


@pytest.fixture
def exemplar(model) -> Exemplar:
    found: Exemplar = model.decision.bank.exemplars[0][0][0]
    return found


@pytest.fixture
def training_image(exemplar, data, tmp_path) -> Path:
    """The exemplar as a file of another name."""
    record = next(each for each in data.manifest.records if each.id == exemplar.id)
    path: Path = tmp_path / "renamed.png"
    Image.fromarray(colour_of(record)).save(path)
    return path


def test_a_training_image_is_left_out_of_its_own_evidence_in_one_pass(model, exemplar, training_image, monkeypatch):
    log = training_image.with_suffix(".log")

    def decode(path: Path) -> np.ndarray:  # in another process
        with log.open("a") as file:
            file.write(f"{path}\n")
        return decode_file(path)

    monkeypatch.setattr(new, "decode_file", decode)
    found, predictor = explained(model, training_image)
    assert found.exemplar == exemplar
    assert found.evidence is not None
    assert found.evidence.group == exemplar.group
    assert exemplar.group not in {e.group for match in found.evidence.shown for e in match.exemplars}
    assert log.read_text().splitlines() == [str(training_image)]
    assert (predictor.rows_seen, predictor.rows_matched) == (1, 1)


def test_a_named_group_comes_before_that_of_the_training_image(model, exemplar, training_image):
    found, _ = explained(model, training_image, groups=["another"])
    assert found.exemplar == exemplar
    assert found.evidence is not None
    assert found.evidence.group == "another"


def test_a_new_image_is_none_of_them(model, images):
    found, _ = explained(model, images[0])
    assert found.exemplar is None
    assert found.evidence is not None
    assert found.evidence.group is None


def test_thumbnails_are_compared_in_the_framing_of_the_classifier(model, exemplar, training_image):
    def framed(encoder: Encoder, **changes: Any) -> Encoder:
        transform = encoder.transform
        return replace(encoder, transform=replace(transform, framing=replace(transform.framing, **changes)))

    other = replace(model, retrieval=framed(model.retrieval, height=2 * SIZE, width=2 * SIZE))
    found, _ = explained(other, training_image)
    assert found.exemplar == exemplar
    assert found.pixels is not None
    assert found.pixels.shape == (2 * SIZE, 2 * SIZE, 3)


def test_the_picture_is_the_decoded_image_scaled_down_if_it_is_large(model, images, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 50, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "small.png")
    Image.fromarray(pixels).resize((2048, 1228)).save(tmp_path / "large.png")
    predictor = Predictor(model, device="cpu")
    small, large = predictor.predict([tmp_path / "small.png", tmp_path / "large.png"], evidence=True)
    assert small.picture is not None
    assert large.picture is not None
    assert np.array_equal(small.picture, pixels)
    assert large.picture.shape == (614, 1024, 3)
    (plain,) = predictor.predict([tmp_path / "small.png"])
    assert plain.picture is None


def test_originals_by_place_then_by_a_name_that_is_given_once(tmp_path):
    for place in ("a/9.png", "b/9.png", "a/7.JPG", "x.y.png", "text.txt"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(b"")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    ids = ["a/9.png", "b/9", "a\\9.png", "9", "c/9.png", "c/7.png", "x.y", "../a/9.png", "text", "gone"]
    found = {name: path.relative_to(tmp_path).as_posix() for name, path in find_originals(tmp_path, ids).items()}
    assert found == {
        "a/9.png": "a/9.png",
        "b/9": "b/9.png",
        "a\\9.png": "a/9.png",
        "c/7.png": "a/7.JPG",
        "x.y": "x.y.png",
    }


def test_a_picture_that_was_saved_anew_is_the_same(tmp_path):
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize(
        (600, 450), Image.Resampling.BICUBIC
    )
    smooth.save(tmp_path / "a.jpg", quality=80)
    held = thumbnail(np.asarray(smooth))
    assert alike(thumbnail(np.asarray(Image.open(tmp_path / "a.jpg"))).short(), held)
    assert not alike(thumbnail(np.asarray(smooth)[:, ::-1].copy()).short(), held)
    grey = thumbnail(np.full((450, 600, 3), 7, np.uint8))
    assert alike(grey.short(), grey)
    assert not alike(grey.short() + 1, grey)  # one colour is like another
