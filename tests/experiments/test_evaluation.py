from __future__ import annotations

from tdumpra.experiments.evaluation import undefined_notes


def test_what_is_undefined_is_told_in_words_once_for_each_reason():
    undefined = [
        {"where": f"per_class.{who}.keratosis.precision", "reason": "never predicted"} for who in ("student", "gate")
    ] + [{"where": "gate.headroom_taken", "reason": "there is no headroom"}]
    assert undefined_notes(undefined) == [
        "Undefined: precision of keratosis for student, and 1 more (never predicted).",
        "Undefined: headroom taken of the gate (there is no headroom).",
    ]
