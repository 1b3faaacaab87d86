"""Adapting on arrays: what wins, what the estimate rests on, and that the numbers are those of the decision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from two_places import NAMES, arrays, home_model, kept

from tdumpra.core.groups import group_folds, lesion_numbers
from tdumpra.core.metrics import classification_metrics
from tdumpra.models.adapt import FOLDS, Adaptation, Interval, Part, adapt, choose, nested
from tdumpra.models.dose import dose_curve, out_of_fold, sizes_of
from tdumpra.models.ways import TILTS, WAYS, Adapted, Plan, Workbench, reading_plans
from tdumpra.tuning.goal import Goal

pytestmark = [
    pytest.mark.filterwarnings("ignore:n_prototypes"),
    pytest.mark.filterwarnings("ignore:.*validation"),
]
GOAL = Goal("accuracy")


def bench_of(n: int = 160, *, there: bool = True, seed: int = 3) -> Workbench:
    model, record = home_model()
    return Workbench(model.decision_, record, NAMES, kept(arrays(n, there=there, seed=seed)))


@pytest.fixture(scope="module")
def bench() -> Workbench:
    return bench_of()


@pytest.fixture(scope="module")
def adaptation(bench: Workbench) -> Adaptation:
    return adapt(bench, GOAL)


def test_a_place_that_differs_is_won(adaptation):
    assert adaptation.survives
    assert adaptation.adapted is not None
    assert set(adaptation.figures) == {*WAYS, "chosen"}
    gain = adaptation.gains["keep"]["accuracy"]
    assert 0.05 < gain.low < gain.value < gain.high
    assert WAYS[adaptation.choice.winner] in adaptation.verdict()


def test_the_estimate_holds_on_fresh_lesions(adaptation):
    fresh = kept(arrays(4000, there=True, seed=77))
    truth = classification_metrics(np.asarray(adaptation.adapted.decide(fresh).p), fresh.y)
    told = adaptation.figures["chosen"]["accuracy"]
    assert told.low < truth["accuracy"] < told.high


def test_more_of_the_same_place_is_no_reason_to_change():
    unchanged = adapt(bench_of(100, there=False), GOAL)
    assert unchanged.adapted is None
    assert not unchanged.to_json()["wins"]
    assert unchanged.to_json()["way"] == "keep"
    assert unchanged.verdict().startswith("nothing wins")
    # one way is spoken of, the one that came nearest
    assert unchanged.choice.shown != "keep"
    assert WAYS[unchanged.choice.shown] in unchanged.verdict()
    assert unchanged.to_json()["shown"] == unchanged.choice.shown


@pytest.mark.parametrize(
    ("gain", "accuracy", "kept"),
    [
        (Interval(0.05, 0.01, 0.09), 0.0, True),
        (Interval(0.05, -0.01, 0.11), 0.02, False),  # may be chance
        (Interval(0.05, 0.01, 0.09), -0.001, False),  # at a price in accuracy
        (Interval(-0.05, -0.09, -0.01), 0.0, False),
    ],
)
@pytest.mark.parametrize("objective", ["balanced_accuracy", "nll"])
def test_what_is_kept_gains_for_sure_and_costs_no_accuracy(adaptation, objective, gain, accuracy, kept):
    if objective == "nll":  # less is better
        gain = Interval(-gain.value, -gain.high, -gain.low)
    gains = {
        **adaptation.gains["keep"],
        objective: gain,
        "accuracy": Interval(accuracy, accuracy - 0.1, accuracy + 0.1),
    }
    found = replace(adaptation, goal=Goal(objective), gains={"keep": gains})
    assert found.survives == kept
    assert found.verdict().startswith("nothing wins") != kept
    assert WAYS[adaptation.choice.winner] in found.verdict()


def test_labels_of_a_fold_have_no_say_in_what_is_applied_to_it(bench):
    fold = group_folds(bench.local.groups, bench.local.y, FOLDS, seed=0)
    y = np.where(fold == 2, (bench.local.y + 1) % 4, bench.local.y)
    other = replace(bench, local=replace(bench.local, y=y), _kept={})
    first, second = (nested(each, GOAL, fold) for each in (bench, other))
    for way in first[1]:
        assert np.array_equal(first[1][way][fold == 2], second[1][way][fold == 2])
    assert any(not np.array_equal(first[1][way], second[1][way]) for way in first[1])
    assert first[0][2] == second[0][2]


def test_labels_of_a_fold_have_no_say_in_its_dose_curve(bench, adaptation):
    """Neither in dials, nor in what is fitted: others' labels have."""
    member, order = lesion_numbers(bench.local.kin, len(bench.local)), np.arange(80)
    y = np.where(adaptation.fold == 2, (bench.local.y + 1) % 4, bench.local.y)
    other = replace(bench, local=replace(bench.local, y=y), _kept={})
    chosen = replace(adaptation, by_fold=nested(other, adaptation.goal, adaptation.fold)[0])
    first, second = (out_of_fold(*each, member, order, 50) for each in ((bench, adaptation), (other, chosen)))
    for way in first:
        assert np.array_equal(first[way][adaptation.fold == 2], second[way][adaptation.fold == 2])
    assert not np.array_equal(first["head"], second["head"])


def test_copies_under_other_names_do_not_judge_what_was_fitted_on_them():
    """Labels that mean nothing: only who has seen a row's copy could be right about it."""
    bench = bench_of(60)
    rng = np.random.default_rng(0)
    noise = replace(
        bench.local, y=rng.integers(4, size=60), z=rng.normal(size=(60, 6)).astype(np.float32),
        features=rng.normal(size=(60, 12)).astype(np.float32),
    )  # fmt: skip
    twice = noise.joined(
        replace(noise, ids=np.char.add("again ", noise.ids), groups=np.char.add("again ", noise.groups))
    )
    assert len(np.unique(twice.kin)) == 30
    done = adapt(replace(bench, local=twice, _kept={}), GOAL)
    assert done.figures["head"]["accuracy"].value < 0.45
    assert done.adapted is None


def test_the_choice_is_the_best_harmless_score(bench):
    fold = group_folds(bench.local.groups, bench.local.y, FOLDS, seed=0)
    choice = choose(bench, [Part(fold != i, np.flatnonzero(fold == i)) for i in range(FOLDS)], GOAL)
    harmless = {w: s for w, s in choice.scores.items() if s.accuracy >= choice.scores["keep"].accuracy}
    assert choice.winner in harmless
    assert choice.scores[choice.winner].objective == max(score.objective for score in harmless.values())
    assert all(plan.way == way for way, plan in choice.plans.items())


@pytest.mark.parametrize(
    "plan",
    [
        Plan(), Plan("bias", 0.5), Plan("head", 0.5, 1.0, 1e-3), Plan(bank_weight=8.0, say=0.5),
        Plan("head", 0.0, 0.3, 1e-3, 1.0, 0.3), Plan("bias", 0.0, bank_weight=1.0),
    ],
    ids=lambda plan: plan.way,
)  # fmt: skip
def test_predictions_are_those_of_the_decision(bench, plan):
    train = np.arange(len(bench.local)) < 100
    rows = np.flatnonzero(~train)
    decided = bench.fit(train, plan).decide(bench.local.rows(rows))
    np.testing.assert_allclose(bench.predict(train, plan, rows), decided.p, atol=1e-12)


def test_shares_are_tilted_where_the_objective_asks_for_it():
    assert {plan.tilt for plan in reading_plans("head", "accuracy")} == {0.0}
    assert {plan.tilt for plan in reading_plans("bias", "balanced_accuracy")} == set(TILTS)
    bench = bench_of(60)
    train = np.ones(60, bool)
    plain, tilted = (bench.fit(train, Plan("bias", tilt)).decision.class_bias for tilt in (0.0, 1.0))
    shares = np.bincount(bench.local.y, minlength=4).clip(1)
    np.testing.assert_allclose(np.subtract(plain, tilted), np.log(shares / shares.sum()), atol=1e-12)


def test_without_features_no_head_is_tried():
    bench = bench_of(60)
    bare = replace(bench, local=replace(bench.local, features=None, has_features=np.zeros(60, bool)), _kept={})
    assert bare.readings == ("keep", "bias")
    assert "head" in bench.readings
    other_width = replace(bench.local, features=np.zeros((60, 5)))
    assert "head" not in replace(bench, local=other_width, _kept={}).readings


def test_a_bank_behind_a_shut_gate_gets_a_say_of_its_own(bench):
    adapted = bench.fit(np.ones(len(bench.local), bool), Plan(bank_weight=8.0, say=0.5))
    assert adapted.decision.thresholds.alpha == 0.5
    assert adapted.decision.rule == "log-linear"
    moved = adapted.decide(bench.local).p.argmax(1) != Adapted(bench.decision).decide(bench.local).p.argmax(1)
    assert moved.any()


class TestRefused:
    def test_one_class_only(self, bench):
        rows = bench.local.rows(bench.local.y == 1)
        with pytest.raises(ValueError, match=r"all .* are 'blue'"):
            adapt(replace(bench, local=rows, _kept={}), GOAL)

    def test_fewer_lesions_than_folds(self, bench):
        with pytest.raises(ValueError, match="5 folds, and the source has 4"):
            adapt(replace(bench, local=bench.local.rows(np.arange(8)), _kept={}), GOAL)

    def test_rows_without_labels(self, bench):
        rows = replace(bench.local, y=np.where(np.arange(160) < 3, -1, bench.local.y))
        with pytest.raises(ValueError, match="3 of 160"):
            adapt(replace(bench, local=rows, _kept={}), GOAL)


class TestDose:
    def test_sizes_double_and_leave_lesions_to_predict(self):
        assert sizes_of(700) == [50, 100, 200, 400]
        assert sizes_of(63) == [50]
        assert sizes_of(60) == []

    def test_each_way_at_each_size(self, bench, adaptation):
        (dose,) = dose_curve(bench, adaptation)  # 80 lesions
        assert dose.lesions == 50
        assert list(dose.gains) == [way for way in WAYS if way != "keep"]
        head = dose.gains["head"]["accuracy"]
        assert head.low < head.value < head.high
        assert head.value > 0
        assert dose.to_json()["gains"]["head"]["accuracy"]["value"] == head.value
