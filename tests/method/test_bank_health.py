"""The bank's health on made-up data, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tdumpra.method.bank import PrototypeBank
from tdumpra.method.bank_health import bank_health

NAMES = ("a", "b", "c")


def unit(degrees: float) -> list[float]:
    angle = math.radians(degrees)
    return [math.cos(angle), math.sin(angle)]


@pytest.fixture
def bank() -> PrototypeBank:
    """Class a: three rows at 0° and one at 90°. Class b: two at 95°. Class c: none."""
    z = torch.tensor([unit(0)] * 3 + [unit(90)] + [unit(95)] * 2)
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    with pytest.warns(UserWarning, match="more than the distinct groups"):
        return PrototypeBank.fit(z, labels, 2, groups=["g0", "g1", "g2", "g3", "g4", "g4"], n_classes=3)


ROWS = torch.tensor([unit(0)] * 3 + [unit(90)] + [unit(95)] * 2)
LABELS = torch.tensor([0, 0, 0, 0, 1, 1])


def test_figures_by_hand(bank):
    health = bank_health(bank, NAMES, ROWS, LABELS)
    a, b, c = health.classes
    assert (a.live, b.live, c.live) == (2, 1, 0)
    # weights 3/4 and 1/4: exp(-(3/4 ln 3/4 + 1/4 ln 1/4)) = 1.7548
    assert a.effective == pytest.approx(1.7548, abs=1e-4)
    assert b.effective == pytest.approx(1.0)
    assert c.effective == 0.0
    assert a.cohesion == pytest.approx(1.0, abs=1e-6)
    # a's prototype at 90° and b's at 95°
    assert a.nearest_other == pytest.approx(math.cos(math.radians(5)), abs=1e-6)
    assert b.nearest_other == a.nearest_other
    assert math.isnan(c.nearest_other)
    assert math.isnan(c.cohesion)
    assert health.purity == {}


def test_notes_name_empty_and_touching_classes(bank):
    notes = bank_health(bank, NAMES, ROWS, LABELS).notes
    assert notes == (
        "classes without a prototype, which can never be retrieved: c",
        "prototypes that nearly touch one of another class (cosine): a 0.996, b 0.996",
    )


def test_merged_prototypes_are_counted():
    z = torch.tensor([unit(0), unit(0.5), unit(90), unit(180), unit(181)])
    bank = PrototypeBank.fit(z, [0, 0, 0, 1, 1], 2, merge_above=0.999)
    health = bank_health(bank, ("a", "b"), z, torch.tensor([0, 0, 0, 1, 1]))
    assert [each.merged for each in health.classes] == [0, 1]
    assert "near-duplicate prototypes that were merged: b 1" in health.notes


def test_purity_by_source_by_hand(bank):
    sources = ["clinic", "clinic", "camera", "camera", "camera", "camera"]
    health = bank_health(bank, NAMES, ROWS, LABELS, sources)
    # a's first prototype: two of three from the clinic; its second one row of the camera; b's both of the camera
    (first, share), second = health.purity["a"]
    assert (first, second) == ("clinic", ("camera", 1.0))
    assert share == pytest.approx(2 / 3)
    assert health.purity["b"] == (("camera", 1.0),)
    assert health.purity["c"] == ()
    assert "prototypes almost wholly from 'camera', 67% of the data: a (1), b (0)" in health.notes
    assert not any("clinic" in note for note in health.notes)


def test_a_single_source_is_no_reason_to_worry(bank):
    health = bank_health(bank, NAMES, ROWS, LABELS, ["clinic"] * 6)
    assert not any("clinic" in note for note in health.notes)
