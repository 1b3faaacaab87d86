from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_runs import SIZE, settings
from torch import Tensor, nn

from tdumpra import GateThresholds, PrototypeBank
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.errors import MissingExtraError
from tdumpra.method.decision import Decision
from tdumpra.method.evidence import Match
from tdumpra.networks.build import Encoding, build_network
from tdumpra.networks.model_file import Encoder, Model
from tdumpra.networks.predict import Predictor
from tdumpra.networks.saliency import Saliency, occlusion_saliency
from tdumpra.report.evidence_page import heatmap

MATCH = Match(label=0, name="blob", prototype=0, cosine=1.0, share=1.0, weight=1.0, exemplars=(), own=0)


class Corner(nn.Module):
    """Its embedding turns from the first axis to the second as the upper left quarter gets darker."""

    def forward(self, images: Tensor) -> Encoding:
        bright = images[:, 0, : SIZE // 2, : SIZE // 2].mean((1, 2))
        z = torch.stack([bright, torch.full_like(bright, 0.5)], 1)
        return Encoding(z, nn.functional.normalize(z), z)


@pytest.fixture
def predictor() -> Predictor:
    bank = PrototypeBank.fit(np.eye(2), [0, 1], 1)
    decision = Decision(bank=bank, thresholds=GateThresholds.shut(), prior=torch.ones(2) / 2)
    network = replace(settings().network, embedding=2)
    transform = EvalTransform(
        framing=Framing(height=SIZE, width=SIZE), size=SIZE, mean=(0.0, 0.1, 0.2), std=(1.0, 0.5, 0.25)
    )
    encoder = Encoder(network=network, transform=transform, state=build_network(network, 2).network.state_dict())
    made = Predictor(
        Model(
            decision=decision, class_names=("blob", "none"), classifier=encoder, retrieval=None, thumbnails={},
            identity={},
        ),
        device="cpu",
    )  # fmt: skip
    made._classifier = Corner()
    return made


@pytest.fixture
def pixels():
    """White in the upper left quarter, black elsewhere, with a stripe of colour."""
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
    pixels[: SIZE // 2, : SIZE // 2] = 255
    pixels[-1] = (10, 20, 30)
    return pixels


def test_what_the_match_rests_on_stands_out(predictor, pixels):
    found = occlusion_saliency(predictor, pixels, MATCH)
    assert np.array_equal(found.pixels, pixels)  # normalisation undone
    assert found.drop.shape == (SIZE, SIZE)
    assert found.cosine == pytest.approx(1 / np.hypot(1, 0.5), abs=1e-6)
    half = SIZE // 2
    inside, outside = found.drop[:half, :half], found.drop[half + 1 :, half + 1 :]
    assert inside.min() > 0
    assert np.abs(outside).max() < 1e-6


def test_one_window_by_hand(predictor, pixels):
    """The window in the corner hides 2 x 2 of 8 x 8 white pixels behind the mean, 0.25 of white and a little stripe."""
    found = occlusion_saliency(predictor, pixels, MATCH)
    mean = (64 * 255 + 16 * 10) / 256 / 255
    bright = (60 + 4 * mean) / 64
    expected = 1 / np.hypot(1, 0.5) - bright / np.hypot(bright, 0.5)
    assert found.drop[0, 0] == pytest.approx(expected, abs=1e-6)


def test_against_the_other_prototype_it_is_the_other_way_round(predictor, pixels):
    found = occlusion_saliency(predictor, pixels, replace(MATCH, label=1))
    assert found.drop[: SIZE // 2, : SIZE // 2].max() < 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_network_is_asked_in_the_precision_of_its_tuning(predictor, pixels, precision):
    seen: set[bool] = set()

    class Watched(Corner):
        def forward(self, images: Tensor) -> Encoding:
            seen.add(torch.is_autocast_enabled("cpu"))
            return super().forward(images)

    predictor._classifier = Watched()
    predictor.model = replace(predictor.model, classifier=replace(predictor.model.classifier, precision=precision))
    occlusion_saliency(predictor, pixels, MATCH)
    assert seen == {precision == "bfloat16"}


class TestHeatmap:
    def test_orange_where_the_cosine_falls(self):
        drop = np.zeros((4, 4), np.float32)
        drop[0, 0], drop[0, 1], drop[3, 3] = 0.4, 0.2, -0.3
        drawn = heatmap(Saliency(np.full((4, 4, 3), 100, np.uint8), drop, 0.9), MATCH)
        picture = np.asarray(drawn.picture).astype(int)
        assert (picture[1, 1] == 100).all()  # nothing lost: grey
        assert (picture[3, 3] == 100).all()  # gained by hiding: not shown
        warmth = picture[..., 0] - picture[..., 2]
        assert warmth[0, 0] > warmth[0, 1] > 0
        assert "lower the cosine by up to 0.400 from 0.900" in drawn.sentence

    def test_nothing_stands_out(self):
        drawn = heatmap(Saliency(np.full((4, 4, 3), 100, np.uint8), np.full((4, 4), 0.001, np.float32), 0.9), MATCH)
        assert (np.asarray(drawn.picture) == 100).all()
        assert "rests on the picture as a whole" in drawn.sentence


def test_without_captum_the_extra_is_named(predictor, pixels, monkeypatch):
    for name in ("captum", "captum.attr"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"saliency needs captum: .*pip install 'tdumpra\[saliency\]'"):
        occlusion_saliency(predictor, pixels, MATCH)
