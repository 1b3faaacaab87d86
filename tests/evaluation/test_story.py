from __future__ import annotations

from typing import Any

import pytest

from tdumpra.evaluation.story import NO_GROUPS, gate_story, without_groups


def story(**changes: Any) -> str:
    counts = {"n": 1879, "opened": 1200, "flipped": 108, "fixed": 95, "broken": 12, "mcnemar_p": 1e-5}
    return gate_story({"gate": {**counts, "harm_upper": 0.0104, **changes}})


def test_every_moved_label_is_accounted_for():
    assert "1,200 of 1,879 rows and moved 108 labels: 95 fixed, 12 broken, 1 wrong before and after" in story()
    assert "neither" not in story(broken=13)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, {"McNemar p = 1e-05"}),
        ({"sign_flip_p": 0.25}, {"McNemar p = 1e-05", "sign-flip over lesions p = 0.25"}),
        ({"mcnemar_p": None, "sign_flip_p": 0.25}, {"McNemar: see each seed", "sign-flip over lesions p = 0.25"}),
    ],
)
def test_the_tests_that_there_are_and_no_others(changes, told):
    every = {"McNemar p = 1e-05", "McNemar: see each seed", "sign-flip over lesions p = 0.25"}
    assert {each for each in every if each in story(**changes)} == told


def test_a_gate_that_stayed_shut_has_no_figures():
    assert not any(character.isdigit() for character in story(opened=0))


def test_who_has_no_groups():
    assert without_groups({"a": True, "b": True}) == []
    assert without_groups({"a": False, "b": False}) == [NO_GROUPS]
    assert without_groups({"a": False, "b": True}) == [f"a: {NO_GROUPS}"]
