from __future__ import annotations

import json
import pickle
from typing import Any

import torch

from tdumpra.artifacts import jsonable
from tdumpra.tuning.notes import Note, validation_notes


def labels(*counts: int) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def noted(y: torch.Tensor, n_classes: int, n_disagreements: int) -> dict[str, dict[str, Any]]:
    return {note.kind: note.values for note in validation_notes(y, n_classes, n_disagreements)}


def test_enough_is_not_noted():
    assert noted(labels(95, 5), 2, 20) == {}
    assert noted(labels(95, 5), 2, 0) == {}  # that the paths never disagree, the verdict itself says


def test_all_that_is_scarce_is_one_note():
    scarce = {"rows": 65, "classes": [(1, 4), (2, 1)], "disagreements": 19}
    assert noted(labels(60, 4, 1), 3, 19) == {"small validation": scarce}
    only: dict[str, Any] = {"rows": None, "classes": [], "disagreements": 7}
    assert noted(labels(200, 200), 2, 7) == {"small validation": only}


def test_absent_classes_have_a_note_of_their_own():
    assert noted(labels(60, 0, 60), 4, 30) == {"absent classes": {"classes": [1, 3]}}


def test_a_note_is_its_sentence_wherever_text_is_wanted():
    (note,) = validation_notes(labels(60, 4, 1), 3, 19)
    sentence = str(note)
    assert all(figure in sentence for figure in ("65", "class 1 has 4", "class 2 has 1", "19"))
    assert json.loads(json.dumps(jsonable({"notes": (note,)}))) == {"notes": [sentence]}
    again = pickle.loads(pickle.dumps(note))
    assert (again, again.kind, again.values) == (note, note.kind, note.values)


def test_a_note_comes_back_from_plain_values():
    for note in (*validation_notes(labels(60, 0, 1), 4, 3), Note("shared lesions", {})):
        kind, values = json.loads(json.dumps([note.kind, note.values]))
        assert Note(kind, values) == note
