"""Seeds of one model together: their means, and what may differ between them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tdumpra.errors import TdumpraError
from tdumpra.evaluation.over_seeds import (
    Figure,
    SeedResult,
    SeedRows,
    mean_and_deviation,
    mean_of_trees,
    notes_apart,
    over_seeds,
    refuse_another_kind,
    refuse_other_test_rows,
    with_holm,
)
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs

APART = "seeds of one model must share their test rows; give them different names to evaluate them apart"


def seed(name: str = "one.npz", **changes: Any) -> SeedRows:
    rows = SeedRows(
        name=name,
        n_classes=3,
        class_names=("a", "b", "c"),
        y=np.array([0, 1, 1, 2]),
        groups=np.array(["k", "l", "l", "m"]),
        ids=np.array(["1", "2", "3", "4"]),
    )
    return rows._replace(**changes)


def refuse(first: SeedRows, other: SeedRows) -> None:
    refuse_another_kind(first, other)
    refuse_other_test_rows(first, other)


def shuffled(rows: SeedRows, order: tuple[int, ...] = (3, 1, 0, 2)) -> SeedRows:
    return rows._replace(
        y=rows.y[[*order]],
        groups=None if rows.groups is None else rows.groups[[*order]],
        ids=None if rows.ids is None else rows.ids[[*order]],
    )


@pytest.mark.parametrize(
    "rows", [seed(), seed(ids=None), seed(groups=None), seed(class_names=()), seed(ids=np.array(["1", "1", "2", "2"]))]
)
def test_the_order_of_rows_may_differ(rows):
    refuse(rows, rows)
    refuse(rows, shuffled(rows))


def test_names_of_classes_and_ids_may_be_given_by_one_alone():
    refuse(seed(), seed(class_names=()))
    refuse(seed(), shuffled(seed(ids=None)))


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"n_classes": 4}, "two.npz has 4 classes and one.npz has 3"),
        (
            {"class_names": ("a", "c", "b")},
            "two.npz has the classes a, c, b, and one.npz has a, b, c, in this order",
        ),
        ({"groups": None}, "one.npz has groups and two.npz has none"),
    ],
)
def test_another_kind_of_seed(changes, difference):
    with pytest.raises(TdumpraError, match=f"^{re.escape(difference)}: seeds of one model must agree$"):
        refuse(seed(), seed("two.npz", **changes))


@pytest.mark.parametrize(
    ("common", "changes", "difference"),
    [
        ({}, {"y": np.array([0, 1, 2, 2])}, "the labels of test rows"),
        ({}, {"groups": np.array(["k", "k", "l", "m"])}, "the groups of test rows"),
        ({}, {"ids": np.array(["1", "2", "3", "5"])}, "the ids of test rows"),
        ({"ids": None}, {"y": np.array([1, 0, 1, 2])}, "the labels of test rows"),
        ({"groups": None}, {"ids": None}, "whether test rows have ids"),
        (
            {"groups": None, "ids": None},
            {"y": np.array([1, 0, 1, 2])},
            "the labels of test rows, which have neither id nor group",
        ),
    ],
)
def test_other_test_rows(common, changes, difference):
    with pytest.raises(TdumpraError, match=f"^two.npz and one.npz differ in {difference}: {APART}$"):
        refuse(seed(**common), seed("two.npz", **{**common, **changes}))


def test_one_row_less():
    fewer = shuffled(seed("two.npz"), (0, 1, 2))
    with pytest.raises(TdumpraError, match=r"differ in the number of test rows \(3 and 4\): seeds of one model must"):
        refuse(seed(), fewer)


@pytest.mark.parametrize(("ids", "known"), [(["b", "a", "c", "d"], True), (["a", "a", "c", "d"], False), (None, False)])
def test_rows_are_known_by_ids_that_name_one_each(ids, known):
    """Where ids repeat, figures know rows by their place, and another order is another set of rows."""
    p, z, y = np.full((4, 2), 0.5), np.eye(4), np.array([0, 1, 1, 1])
    test = TestOutputs.check(p, z, y, ids=ids)
    train, validation = TrainOutputs.check(z, y), ValidationOutputs.check(p, z, y)
    splits = SplitOutputs(train=train, validation=validation, test=test, n_classes=2, fingerprint="", class_names=())
    rows = SeedRows.of("one.npz", splits)
    assert (rows.ids is not None) == known
    if known:
        refuse(rows, shuffled(rows))
        return
    with pytest.raises(TdumpraError, match="the labels of test rows, which have neither id nor group"):
        refuse(rows, shuffled(rows))


class TestFigures:
    def test_mean_and_sample_deviation(self):
        assert mean_and_deviation([0.8, 0.9]) == pytest.approx((0.85, np.std([0.8, 0.9], ddof=1)))
        assert str(mean_and_deviation([0.8, 0.9])) == "0.8500 ± 0.0707"

    def test_one_seed_has_no_deviation(self):
        assert mean_and_deviation([0.8]) == Figure(0.8, None)
        assert str(Figure(0.8)) == "0.8000"

    @pytest.mark.parametrize("values", [[], [None], [0.8, None], [float("nan")]])
    def test_undefined_is_never_zero(self, values):
        assert mean_and_deviation(values) == Figure(None)
        assert str(mean_and_deviation(values)) == "undefined"


class TestOverSeeds:
    @staticmethod
    def result(accuracy: float, opened: int = 3, **gained: int) -> SeedResult:
        gate = {
            "n": 10, "opened": opened, "flipped": 2, "fixed": 2, "broken": 0, "mcnemar_p": 0.5,
            "harm_upper": accuracy, "guarantees_similarity": opened == 3, "thresholds": {"theta": accuracy},
        }  # fmt: skip
        scores = {"student": {"accuracy": 0.5, "macro_auroc": None}, "gate": {"accuracy": accuracy}}
        evaluation = {
            "rows": {"test": 10}, "grouped": True, "tuning": f"opened {opened}", "notes": ["few rows"],
            "comparators": scores, "gate": gate, "undefined": [],
        }  # fmt: skip
        return SeedResult(evaluation, gained)

    def test_one_seed_is_its_own_evaluation(self):
        one = self.result(0.6)
        assert over_seeds({4: one}) == {**one.document, "seeds": [4]}

    def test_means_sums_and_the_worst(self):
        seeds = {0: self.result(0.6, a=1, b=1), 2: self.result(0.8, 5, a=1)}
        found = over_seeds(seeds)
        assert found["seeds"] == [0, 2]
        assert found["comparators"]["gate"]["accuracy"] == pytest.approx(0.7)
        assert found["comparators_std"]["gate"]["accuracy"] == pytest.approx(np.std([0.6, 0.8], ddof=1))
        assert found["comparators"]["student"]["macro_auroc"] is None
        assert (found["gate"]["opened"], found["gate"]["n"]) == (8, 20)
        assert found["gate"]["harm_upper"] == 0.8
        assert found["gate"]["guarantees_similarity"] is False
        assert found["gate"]["sign_flip_p"] == 0.5  # lesions of 2 and 1: two of the four flips are as far out
        assert found["notes"] == ["few rows"]
        assert list(found["by_seed"]) == ["0", "2"]
        assert "paired" not in found  # unless every seed was compared

    def test_a_comparator_that_one_seed_lacks_is_left_out(self):
        less = self.result(0.8)
        del less.document["comparators"]["student"]
        assert list(over_seeds({0: self.result(0.6), 1: less})["comparators"]) == ["gate"]

    def test_one_choice_for_all_seeds_is_told_once(self):
        apart, together = (over_seeds({0: self.result(0.6), 1: self.result(0.8, n)})["tuning"] for n in (5, 3))
        assert (apart.count("opened"), together.count("opened")) == (2, 1)


class TestHolm:
    @staticmethod
    def model(p: float, test_set: str | None = "one") -> dict[str, Any]:
        return {"test_set": test_set, "paired": {"student": {"sign_flip_p": p}, "average": {"sign_flip_p": p}}}

    def test_models_that_share_their_test_rows(self):
        models = {"a": self.model(0.01), "b": self.model(0.04), "c": self.model(0.03), "d": self.model(0.02, "two")}
        found = with_holm(models)
        assert [found[name]["paired"]["student"]["holm_p"] for name in "abc"] == pytest.approx([0.03, 0.06, 0.06])
        assert "holm_p" not in found["d"]["paired"]["student"]  # alone on its rows
        assert "holm_p" not in found["a"]["paired"]["average"]
        assert "holm_p" not in models["a"]["paired"]["student"]  # what was given is left alone

    def test_documents_that_say_nothing_of_their_rows(self):
        models = {"a": self.model(0.01, None), "b": self.model(0.04, None), "c": {"gate": {}}}
        assert with_holm(models) == models


def test_trees_are_averaged_figure_by_figure():
    trees = [{"a": 1.0, "b": {"c": [1, 2], "d": None}}, {"a": 2.0, "b": {"c": [3, 4], "d": {"e": 1}}}]
    assert mean_of_trees(trees) == {"a": 1.5, "b": {"c": [2.0, 3.0], "d": None}}
    assert mean_of_trees([trees[1]["b"], trees[0]["b"]]) == {"c": [2.0, 3.0], "d": None}


def test_a_note_of_some_seeds_names_them():
    notes = {"0": ["of all", "of one"], "1": ["of all"], "2": ["of all", "of one"]}
    assert notes_apart("seed", notes) == ["of all", "seed 0: of one", "seed 2: of one"]
