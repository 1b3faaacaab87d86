from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import make_problem

from tdumpra.method import outputs
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs, check_rows

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
Z = np.array([[1.0, 0.0], [0.6, 0.8]])


def check(**changes: Any) -> ValidationOutputs:
    return ValidationOutputs.check(**{"p": P, "z": Z, "y": [0, 2], "suffix": "_val", **changes})


def test_checked_rows_are_kept_as_they_are():
    outputs = check(groups=[7, 8], ids=["a", "b"], p_teacher=P[::-1])
    assert len(outputs) == 2
    assert outputs.n_classes == 3
    assert torch.equal(outputs.p, torch.from_numpy(P))
    assert torch.equal(outputs.z, torch.from_numpy(Z))
    assert outputs.y.tolist() == [0, 2]
    assert outputs.groups is not None
    assert outputs.groups.tolist() == ["7", "8"]
    assert outputs.ids is not None
    assert outputs.ids.tolist() == ["a", "b"]
    assert outputs.p_teacher is not None
    assert torch.equal(outputs.p_teacher, torch.from_numpy(P[::-1].copy()))
    assert (check().groups, check().ids, check().p_teacher) == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"p": P - 0.15}, ValueError, "p_val holds -0.05 in row 0, and a probability lies between 0 and 1"),
        ({"p": P * np.nan}, ValueError, "p_val has NaN or infinite values in 2 rows"),
        ({"p": P * 1.01}, ValueError, "p_val must sum to one in each row .* row 0 sums to 1.0100, and 2 of 2"),
        ({"p": np.log(P) + 4}, ValueError, "these look like logits"),
        ({"p": P[0]}, ValueError, "p_val must be two-dimensional"),
        ({"p": P[:, :1]}, ValueError, "at least two classes"),
        ({"p": [["a", "b"]]}, TypeError, "p_val must be an array of numbers"),
        ({"p": P[:0], "z": Z[:0], "y": []}, ValueError, "p_val is empty: there is nothing to work on"),
        ({"p": P[:1]}, ValueError, "p_val has 1 rows and z_val has 2"),
        ({"n_classes": 4}, ValueError, "p_val has 3 classes where 4 are expected"),
        ({"z": Z * [[0], [1]]}, ValueError, r"z_val has all-zero rows, which have no direction: 1 row \(0\)"),
        ({"z": Z * [[np.nan], [1]]}, ValueError, r"z_val has NaN or infinite values in 1 row \(0\)"),
        ({"width": 5}, ValueError, "z_val has width 2, and the bank was built on embeddings of width 5"),
        ({"y": [0, 3]}, ValueError, "y_val must be in the range 0 to 2; row 1 holds 3"),
        ({"y": ["nv", "mel"]}, TypeError, "y_val must be integers that number the classes from 0"),
        ({"y": [0.0, 1.0]}, TypeError, "y_val must be integers"),
        ({"y": [0]}, ValueError, "y_val has 1 entries for 2 rows"),
        ({"groups": ["a"]}, ValueError, "groups_val needs one entry per row: 2"),
        ({"ids": ["a", None]}, ValueError, r"ids_val has empty entries in 1 row \(1\)"),
        ({"p_teacher": P * 2}, ValueError, "pt_val holds 1.4"),
        ({"p_teacher": P[:1]}, ValueError, "p_val has 2 rows and pt_val has 1"),
        ({"p_teacher": P[:, :2] / P[:, :2].sum(1, keepdims=True)}, ValueError, "pt_val has 2 classes where 3"),
    ],
)
def test_refusals_name_the_argument(changes, error, message):
    with pytest.raises(error, match=message):
        check(**changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"z": Z[:0], "y": []}, ValueError, "z_train is empty: a bank needs training embeddings"),
        ({"z": Z * 0}, ValueError, "z_train has all-zero rows"),
        ({"y": [0, 2], "n_classes": 2}, ValueError, "y_train must be in the range 0 to 1; row 1 holds 2"),
        ({"n_classes": "3"}, TypeError, "n_classes must be a whole number, not '3'"),
        ({"n_classes": 1}, ValueError, "n_classes must be at least 2, not 1"),
        ({"groups": ["a"]}, ValueError, "groups_train needs one entry per row"),
        ({"ids": ["a"]}, ValueError, "ids_train needs one entry per row"),
    ],
)
def test_training_refusals(changes, error, message):
    with pytest.raises(error, match=message):
        TrainOutputs.check(**{"z": Z, "y": [0, 1], **changes})


def test_training_outputs():
    outputs = TrainOutputs.check(Z, [0, 1], ["a", "a"], ids=["x", "y"])
    assert len(outputs) == 2
    assert outputs.groups is not None
    assert outputs.groups.tolist() == ["a", "a"]


def test_the_split_is_the_type():
    assert not issubclass(TestOutputs, ValidationOutputs)
    assert not issubclass(ValidationOutputs, TestOutputs)
    assert type(TestOutputs.check(P, Z, [0, 2])) is TestOutputs


def test_they_are_frozen():
    with pytest.raises(FrozenInstanceError):
        check().y = torch.zeros(2)  # type: ignore[misc]


def test_saved_half_precision_sums_closely_enough():
    problem = make_problem(dtype=np.float16)
    p, z = check_rows(problem.test.p, problem.test.z)
    assert p.dtype == z.dtype == torch.float16


def test_what_a_row_counts_towards():
    p, z, y = np.full((2, 2), 0.5), np.eye(2), [0, 1]
    assert TestOutputs.check(p, z, y, ["l", "k"], ids=["b", "a"]).lesions().tolist() == ["l", "k"]
    assert TestOutputs.check(p, z, y, ids=["b", "a"]).lesions().tolist() == ["b", "a"]
    assert TestOutputs.check(p, z, y).lesions().tolist() == ["0", "1"]


def test_ids_that_repeat_name_no_rows():
    """Perhaps they name patients, but nobody said so: then rows count for themselves, as everywhere else."""
    p, z, y = np.full((4, 2), 0.5), np.eye(4), [0, 1, 0, 1]
    assert TestOutputs.check(p, z, y, ids=["a", "a", "b", "c"]).lesions().tolist() == ["0", "1", "2", "3"]
    assert TestOutputs.check(p, z, y, ids=["d", "a", "b", "c"]).lesions().tolist() == ["d", "a", "b", "c"]


def test_rows_of_many_classes_are_searched_in_part(monkeypatch):
    n_classes = 50
    p, z, y = np.full((40, n_classes), 1 / n_classes), np.ones((40, 2)), np.arange(40)
    rows = ValidationOutputs.check(p, z, y, np.arange(40) // 2)
    assert rows.searched() is rows
    monkeypatch.setattr(outputs, "SEARCHED_ENTRIES", 12 * n_classes)
    part = rows.searched()
    assert len(part) == 12
    assert part.groups is not None
    assert set(np.unique(part.groups, return_counts=True)[1]) == {2}  # groups stay whole
