from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.support import BANK, Problem, make_problem, splits_of, with_own_lesions

from tdumpra import DualPathClassifier, PrototypeBank
from tdumpra.core.gate import GateThresholds
from tdumpra.method.decision import Decision
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs
from tdumpra.tuning.crossfit import cross_fit, estimate
from tdumpra.tuning.fit import fit
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import Preset
from tdumpra.tuning.search import Search
from tdumpra.tuning.settings import TuneConfig

PRESET = Preset(kappa=(10.0,), theta=(0.6, 0.9), beta=(0.3,), margin=(0.0,), delta=(0.05,), alpha=(0.1,))


def outputs(problem: Problem, *, p_train: Any = None) -> tuple[TrainOutputs, ValidationOutputs]:
    train, val = problem.train, problem.val
    return (
        TrainOutputs.check(train.z, train.y, train.groups, ids=train.ids, p=p_train, n_classes=4),
        ValidationOutputs.check(*val[:4], ids=val.ids),
    )


def make_bank(train: TrainOutputs) -> PrototypeBank:
    return PrototypeBank.fit(train.z, train.y, 2, train.groups, 4, ids=train.ids)


def test_no_row_is_judged_by_its_own_lesion():
    """Each bank but the last is built without a fold; together they leave out every group exactly once."""
    problem = make_problem(dtype=np.float64)
    seen: list[set[str]] = []

    def spy(train: TrainOutputs) -> PrototypeBank:
        assert train.groups is not None
        seen.append(set(train.groups))
        return make_bank(train)

    tuning, estimate = cross_fit(*outputs(problem), spy, Search(PRESET), folds=4)
    everything = {*problem.train.groups, *problem.val.groups}
    assert seen[-1] == everything  # the bank that goes into use
    left_out = [everything - groups for groups in seen[:-1]]
    assert len(left_out) == 4
    assert set().union(*left_out) == everything
    assert sum(map(len, left_out)) == len(everything)
    assert tuning.n_rows == estimate.rows == len(problem.val.y)
    assert tuning.decision.bank.exemplars  # train and validation ids alike
    assert "out of fold, 200 rows" in estimate.sentence()


def test_the_estimate_is_counted_row_by_row():
    _, estimate = cross_fit(*outputs(make_problem(dtype=np.float64)), make_bank, Search(PRESET, Goal("accuracy")))
    gained = (estimate.fixed - estimate.broken) / estimate.rows
    assert estimate.accuracy - estimate.base_accuracy == pytest.approx(gained, abs=1e-12)
    assert estimate.opened >= estimate.fixed + estimate.broken
    assert estimate.objective == estimate.accuracy


class TestPlainClassifier:
    """Where the prior is adjusted, what changed is counted against the classifier as it came."""

    def test_counts_and_accuracy(self):
        plain, p_cls, p = (torch.eye(3, dtype=torch.float64)[labels] for labels in ([0, 1, 2], [0, 0, 1], [1, 0, 0]))
        rows = Decision(bank=PrototypeBank.fit(np.eye(3), np.arange(3), 1), thresholds=GateThresholds.shut(),
                        prior=torch.full((3,), 1 / 3)).decide_posteriors(plain, plain)  # fmt: skip
        found = estimate([rows._replace(p_cls=p_cls, p=p)], plain, torch.tensor([0, 0, 0]), Goal("balanced_accuracy"))
        assert found.base_accuracy == pytest.approx(1 / 3)
        assert (found.fixed, found.broken) == (2, 1)
        assert found.by_class == ((2, 1, 0), (0, 0, 1), (0, 0, 0))
        assert found.base_objective == pytest.approx(2 / 3)  # the adjusted classifier's
        assert not found._replace(accuracy=0.3, objective=1.0).survives

    @pytest.mark.parametrize("how", ["folds", "crossfit", "seeds"])
    def test_whoever_estimates(self, how):
        splits = [with_own_lesions(splits_of(seed), seed) for seed in (0, 1)]
        settings = TuneConfig(adjust_prior=True, folds=5 if how == "crossfit" else 0)
        others = splits[1:] if how == "seeds" else []
        found = fit(splits[0], BANK, settings, preset=PRESET, others=others)
        assert found.tuning.decision.prior_exponent > 0
        assert found.estimate is not None
        rows = [each.validation for each in [splits[0], *others]]
        right = torch.cat([each.p.argmax(1) == each.y for each in rows]).double().mean().item()
        assert found.estimate.base_accuracy == pytest.approx(right)
        lead = found.estimate.accuracy - found.estimate.base_accuracy
        assert found.estimate.fixed - found.estimate.broken == pytest.approx(lead * found.estimate.rows)


def test_training_rows_may_take_part_if_predicted_out_of_fold():
    problem = make_problem(dtype=np.float64)
    tuning, _ = cross_fit(*outputs(problem, p_train=problem.train.p), make_bank, Search(PRESET), training_rows=True)
    assert tuning.n_rows == len(problem.train.y) + len(problem.val.y)


class TestRefusals:
    def test_training_rows_that_were_trained_on(self):
        problem = make_problem(dtype=np.float64)
        sure = np.eye(4)[problem.train.y]
        with pytest.raises(ValueError, match=r"right on 100.0% of the training rows and .* leave training_rows off"):
            cross_fit(*outputs(problem, p_train=sure), make_bank, Search(PRESET), training_rows=True)

    def test_training_rows_without_probabilities(self):
        with pytest.raises(ValueError, match="out-of-fold probabilities of the training rows"):
            cross_fit(*outputs(make_problem()), make_bank, Search(PRESET), training_rows=True)

    def test_groups_on_one_side_only(self):
        train, val = outputs(make_problem())
        bare = ValidationOutputs(p=val.p, z=val.z, y=val.y)
        with pytest.raises(ValueError, match="or for neither"):
            cross_fit(train, bare, make_bank, Search(PRESET))

    def test_test_outputs(self):
        train, val = outputs(make_problem())
        with pytest.raises(TypeError, match="tuning needs validation outputs, not TestOutputs"):
            cross_fit(train, TestOutputs(p=val.p, z=val.z, y=val.y), make_bank)  # type: ignore[arg-type]

    def test_one_fold(self):
        with pytest.raises(ValueError, match="folds must be at least 2, not 1"):
            cross_fit(*outputs(make_problem()), make_bank, folds=1)


def test_the_estimator_cross_fits_and_its_file_comes_back(tmp_path):
    problem = make_problem(dtype=np.float64)
    classifier = DualPathClassifier(n_prototypes=2, preset=PRESET, selection="crossfit", folds=3).fit(
        *problem.train[1:4]
    )
    before = classifier.bank_
    classifier.tune(*problem.val[:4])
    assert classifier.bank_ is before
    assert classifier.decision_.bank is not before  # it holds the validation rows too
    assert classifier.estimate_ is not None
    assert classifier.estimate_.rows == 200
    classifier.save(tmp_path / "model.safetensors")
    loaded = DualPathClassifier.load(tmp_path / "model.safetensors")
    test = problem.test
    assert (loaded.predict_proba(test.p, test.z) == classifier.predict_proba(test.p, test.z)).all()
    assert torch.equal(loaded.decision_.bank.prototypes, classifier.decision_.bank.prototypes)
    assert torch.equal(loaded.bank_.prototypes, before.prototypes)
    with pytest.raises(ValueError, match="needs the training rows"):
        loaded.tune(*problem.val[:4])
