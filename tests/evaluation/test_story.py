from __future__ import annotations

from typing import Any

from tdumpra.evaluation.story import NO_GROUPS, gate_story, without_groups


def gate(**changes: Any) -> dict[str, Any]:
    counts = {"n": 1879, "opened": 1200, "flipped": 108, "fixed": 95, "broken": 12, "mcnemar_p": 1e-5}
    return {"gate": {**counts, "harm_upper": 0.0104, **changes}}


def test_every_moved_label_is_accounted_for():
    assert "on 1,200 of 1,879 rows and moved 108 labels: 95 fixed, 12 broken, 1 neither (wrong before and after) (" in (
        gate_story(gate())
    )


def test_nothing_is_said_of_what_did_not_happen():
    assert "108 labels: 95 fixed, 13 broken (exact McNemar p = 1e-05)" in gate_story(gate(broken=13))
    assert gate_story(gate(opened=0)) == "on test the gate never opened."


def test_seeds_have_a_test_each_and_lesions_one_for_all():
    story = gate_story(gate(mcnemar_p=None, sign_flip_p=0.25))
    assert "(McNemar: see each seed, sign-flip over lesions p = 0.25)" in story


def test_who_has_no_groups():
    assert without_groups({"a": True, "b": True}) == []
    assert without_groups({"a": False, "b": False}) == [NO_GROUPS]
    assert without_groups({"a": False, "b": True}) == [f"a: {NO_GROUPS}"]
