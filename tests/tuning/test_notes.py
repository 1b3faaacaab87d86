from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch

from tdumpra.artifacts import jsonable
from tdumpra.tuning.notes import Note, validation_notes


def labels(*counts: int) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def noted(y: torch.Tensor, n_classes: int, n_disagreements: int) -> dict[str, dict[str, Any]]:
    return {note.kind: note.values for note in validation_notes(y, n_classes, n_disagreements, 22_830)}


def test_enough_is_not_noted():
    assert noted(labels(495, 5), 2, 50) == {}
    assert noted(labels(495, 5), 2, 0) == {}  # that the paths never disagree, the verdict itself says


@pytest.mark.parametrize(
    ("counts", "disagreements"), [((495, 4), 80), ((499,), 80), ((500,), 49), ((302,), 60), ((60, 4, 1), 19)]
)
def test_what_is_scarce_is_one_note_with_all_numbers(counts, disagreements):
    rare = [(c, count) for c, count in enumerate(counts) if count < 5]
    numbers = {"rows": sum(counts), "classes": rare, "disagreements": disagreements, "tried": 22_830}
    assert noted(labels(*counts), len(counts), disagreements) == {"small validation": numbers}


def test_absent_classes_have_a_note_of_their_own():
    assert noted(labels(300, 0, 300), 4, 60) == {"absent classes": {"classes": [1, 3]}}


def test_a_note_is_its_sentence_wherever_text_is_wanted():
    (note,) = validation_notes(labels(60, 4, 1), 3, 19, 22_830)
    sentence = str(note)
    assert all(figure in sentence for figure in ("65", "class 1 has 4", "class 2 has 1", "19", "22,830"))
    assert json.loads(json.dumps(jsonable({"notes": (note,)}))) == {"notes": [sentence]}
    again = pickle.loads(pickle.dumps(note))
    assert (again, again.kind, again.values) == (note, note.kind, note.values)


def test_a_note_comes_back_from_plain_values():
    own = (Note("shared lesions", {}), Note("not survived", {"gain": "less"}), Note("not kept up", {"gain": "less"}))
    few = Note("too few disagreements", {"lesions": 3, "needed": 20})
    for note in (*validation_notes(labels(60, 0, 1), 4, 3, 9), *own, few):
        kind, values = json.loads(json.dumps([note.kind, note.values]))
        assert Note(kind, values) == note


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("small validation", {"rows": None, "classes": [], "disagreements": 7}),
        ("lost on other seeds", {"before": 0.8, "after": 0.7}),
    ],
)
def test_notes_of_older_files_can_be_read(kind, values):
    assert Note(kind, values).kind == kind
