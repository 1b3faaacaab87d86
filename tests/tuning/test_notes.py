from __future__ import annotations

import torch

from tdumpra.tuning.notes import validation_notes


def labels(*counts: int) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def test_enough_is_not_noted():
    assert validation_notes(labels(95, 5), 2, 20) == ()
    assert validation_notes(labels(95, 5), 2, 0) == ()  # that the paths never disagree, the verdict itself says


def test_all_that_is_scarce_is_one_note():
    assert validation_notes(labels(60, 4, 1), 3, 19) == (
        "validation is small (65 rows; class 1 has 4, class 2 has 1; the paths disagree on 19): what was chosen on it "
        "may be luck",
    )
    assert validation_notes(labels(200, 200), 2, 7) == (
        "validation is small (the paths disagree on 7): what was chosen on it may be luck",
    )


def test_absent_classes_have_a_note_of_their_own():
    absent = "validation has no row of classes 1, 3, which therefore had no say in the choice"
    assert validation_notes(labels(60, 0, 60), 4, 30) == (absent,)
