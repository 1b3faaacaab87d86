from __future__ import annotations

import copy
import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from tdumpra import DualPathClassifier, GateThresholds, PrototypeBank
from tdumpra.artifacts import jsonable, write_artifact
from tdumpra.errors import ArtifactError
from tdumpra.estimator_file import KIND, SCHEMA, read_made_from
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.method import outputs
from tdumpra.tuning.presets import PRESETS, Preset
from tests.support import Array, Problem, alter_byte, equal_tensors, fit_and_tune, make_problem

NAMES = np.array(["mel", "nv", "df", "bkl"])


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem()


@pytest.fixture(scope="module")
def fitted(problem: Problem) -> DualPathClassifier:
    return fit_and_tune(problem)


@pytest.fixture
def own(fitted: DualPathClassifier) -> DualPathClassifier:
    """The same, for a test that asks for another bank or another tuning."""
    return copy.deepcopy(fitted)


@pytest.fixture
def saved(fitted: DualPathClassifier, tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    return path


def behind(classifier: DualPathClassifier, thresholds: GateThresholds, **changes: Any) -> DualPathClassifier:
    """The same fitted classifier with another gate."""
    other = copy.copy(classifier)
    decision = replace(classifier.decision_, thresholds=thresholds, **changes)
    other.tuning_ = replace(classifier.tuning_, decision=decision)
    return other


class TestConventions:
    PARAMS: ClassVar[dict[str, Any]] = {
        "n_prototypes": 2,
        "objective": "macro_f1",
        "preset": "paper",
        "n_classes": 5,
        "adjust_prior": True,
        "seed": 9,
        "costs": None,
        "selection": "certified",
        "folds": 3,
        "max_asked": 0.5,
        "tolerance": 0.01,
    }

    def test_the_constructor_stores_and_nothing_else(self):
        nonsense = DualPathClassifier(n_prototypes="many", objective="luck", preset=object())  # type: ignore[arg-type]
        assert vars(nonsense).keys() == self.PARAMS.keys()
        assert vars(DualPathClassifier()) == {
            "n_prototypes": 5,
            "objective": "balanced_accuracy",
            "preset": "default",
            "n_classes": None,
            "adjust_prior": False,
            "seed": 0,
            "costs": None,
            "selection": "validation",
            "folds": 5,
            "max_asked": 1.0,
            "tolerance": 0.0,
        }

    def test_params_clone_and_repr(self, fitted):
        classifier = DualPathClassifier(**self.PARAMS)
        assert classifier.get_params() == self.PARAMS
        assert clone(classifier).get_params() == self.PARAMS
        assert classifier.set_params(seed=1, preset="default") is classifier
        assert (classifier.seed, classifier.preset) == (1, "default")
        with pytest.raises(ValueError, match="Invalid parameter 'kappa'"):
            classifier.set_params(kappa=3)
        assert repr(DualPathClassifier(n_prototypes=3)) == "DualPathClassifier(n_prototypes=3)"
        assert not hasattr(clone(fitted), "bank_")
        assert clone(DualPathClassifier(preset=Preset(kappa=(9.0,)))).preset == Preset(kappa=(9.0,))

    @pytest.mark.parametrize("method", ["tune", "predict_proba", "predict", "explain", "report", "save"])
    def test_nothing_works_before_fit(self, problem, tmp_path, method):
        arguments = {"save": [tmp_path / "x"], "tune": problem.val[:3], "report": problem.test[:3]}
        with pytest.raises(NotFittedError, match=r"call fit\(z_train, y_train\)"):
            getattr(DualPathClassifier(), method)(*arguments.get(method, problem.test[:2]))
        assert not (tmp_path / "x").exists()

    @pytest.mark.parametrize("method", ["predict_proba", "predict", "explain", "report", "save"])
    def test_little_works_before_tune(self, problem, tmp_path, method):
        classifier = DualPathClassifier(3).fit(problem.train.z, problem.train.y)
        arguments = {"save": [tmp_path / "x"], "report": problem.test[:3]}
        with pytest.raises(NotFittedError, match=r"call tune\(p_val, z_val, y_val\) first"):
            getattr(classifier, method)(*arguments.get(method, problem.test[:2]))

    def test_fit_and_tune_return_the_classifier(self, problem):
        classifier = DualPathClassifier(3)
        assert classifier.fit(problem.train.z, problem.train.y) is classifier
        assert classifier.tune(*problem.val[:3]) is classifier
        assert classifier.classes_.tolist() == [0, 1, 2, 3]
        assert classifier.decision_ is classifier.tuning_.decision

    def test_scikit_learn_knows_what_it_is_and_when_it_is_ready(self, problem):
        classifier = DualPathClassifier(3)
        assert is_classifier(classifier)
        for step in (lambda: None, lambda: classifier.fit(problem.train.z, problem.train.y)):
            step()
            with pytest.raises(NotFittedError):
                check_is_fitted(classifier)
        check_is_fitted(classifier.tune(*problem.val[:3]))

    def test_score_is_the_accuracy(self, fitted, problem):
        p, z, y = problem.test[:3]
        expected = pytest.approx((fitted.predict(p, z) == y).mean())
        assert fitted.score(p, z, y) == expected
        assert fitted.score(torch.from_numpy(p), z, torch.from_numpy(y)) == expected

    @pytest.mark.parametrize("given", [None, ("nv", "df", "mel", "bkl")])
    def test_labels_may_be_names(self, problem, fitted, given, tmp_path):
        """Whatever their order: the columns of p follow it, and so does everything else."""
        names = np.array(given or sorted(NAMES))
        column = np.array([NAMES.tolist().index(name) for name in names])
        train, val, test = (part._replace(p=part.p[:, column]) for part in problem)
        classifier = DualPathClassifier(3).fit(train.z, NAMES[train.y], train.groups, ids=train.ids, class_names=given)
        classifier.tune(val.p, val.z, NAMES[val.y].astype(object), val.groups).save(tmp_path / "model.safetensors")
        labels = NAMES[fitted.predict(*problem.test[:2])]
        for each in (classifier, DualPathClassifier.load(tmp_path / "model.safetensors")):
            assert each.classes_.tolist() == list(each.class_names_ or ()) == names.tolist()
            assert each.predict(test.p, test.z).tolist() == labels.tolist()
            assert each.predict(torch.from_numpy(test.p), torch.from_numpy(test.z)).tolist() == labels.tolist()
            assert each.score(test.p, test.z, NAMES[test.y]) == fitted.score(*problem.test[:3])
            report = each.report(test.p, test.z, NAMES[test.y], test.groups)
            assert list(report["per_class"]["gate"]) == names.tolist()
            assert report["gate"]["fixed"] == fitted.report(*problem.test[:4])["gate"]["fixed"]

    def test_a_new_bank_needs_new_thresholds(self, problem, own):
        own.fit(problem.train.z, problem.train.y)
        with pytest.raises(NotFittedError, match="call tune"):
            own.predict(*problem.test[:2])

    def test_parameters_reach_the_bank_and_the_tuner(self, problem):
        classifier = fit_and_tune(problem, objective="nll", preset=Preset(kappa=(7.0,)), seed=4, n_classes=4)
        train = problem.train
        expected = PrototypeBank.fit(train.z, train.y, 3, train.groups, seed=4, ids=train.ids)
        assert torch.equal(classifier.bank_.prototypes, expected.prototypes)
        assert classifier.bank_.exemplars == expected.exemplars
        assert classifier.bank_.prototypes.shape == (4, 3, 8)
        assert classifier.tuning_.objective == "nll"
        assert classifier.decision_.kappa == 7.0
        assert fit_and_tune(problem, adjust_prior=True).decision_.prior_exponent > 0
        shares = np.bincount(problem.train.y) / len(problem.train.y)
        np.testing.assert_allclose(classifier.decision_.prior, shares)

    @pytest.mark.parametrize(("preset", "merged"), [("default", (1, 0)), ("paper", (0, 0)), ("paper-swapped", (0, 0))])
    def test_the_papers_presets_merge_no_prototypes(self, preset, merged):
        z = np.array([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0], [0.5, 1.0]])  # the first two are 0.6 degrees apart
        assert DualPathClassifier(2, preset=preset).fit(z, [0, 0, 1, 1]).bank_.merged == merged

    def test_the_preset_rebalancing_gives_rare_classes_their_due(self, tmp_path):
        problem = make_problem(1, dtype=np.float64)
        classifier = fit_and_tune(problem, preset="rebalancing")
        decision = classifier.decision_
        assert decision.rule == "log-linear"
        assert decision.fused_exponent in PRESETS["rebalancing"].fused_exponent
        assert decision.fused_exponent > 0
        assert not decision.guarantees_similarity
        p, opened = (
            classifier.predict_proba(*problem.test[:2]),
            decision.decide(*map(torch.from_numpy, problem.test[:2])),
        )
        shut = ~opened.opened.numpy()
        assert np.array_equal(p[shut], opened.p_cls.numpy()[shut])
        classifier.save(tmp_path / "model.safetensors")
        loaded = DualPathClassifier.load(tmp_path / "model.safetensors")
        assert (loaded.preset, loaded.decision_.fused_exponent) == ("rebalancing", decision.fused_exponent)
        assert np.array_equal(loaded.predict_proba(*problem.test[:2]), p)

    def test_deterministic_by_seed(self, problem):
        first, again = (fit_and_tune(problem, seed=3).predict_proba(*problem.test[:2]) for _ in range(2))
        assert np.array_equal(first, again)

    def test_inputs_are_left_alone(self, problem):
        arrays = [array.copy() for split in problem for array in split]
        classifier = fit_and_tune(problem)
        classifier.predict_proba(*problem.test[:2])
        classifier.report(*problem.test[:4])
        assert all(np.array_equal(a, b) for a, b in zip(arrays, (a for split in problem for a in split), strict=True))


class TestShutRows:
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_are_the_calibrated_classifiers_to_the_bit_with_the_raw_label(self, dtype):
        problem = make_problem(dtype=dtype)
        classifier = fit_and_tune(problem)
        p, z = problem.test[:2]
        decision = classifier.decision_
        assert decision.temperature != 1
        wide = torch.from_numpy(p.astype(np.float32) if dtype == np.float16 else p)
        opened = decision.decide(wide, torch.from_numpy(z)).opened.numpy()
        assert 0 < opened.sum() < len(p)
        calibrated = decision.classifier(wide).numpy().astype(dtype)
        final = classifier.predict_proba(p, z)
        assert final.dtype == dtype
        assert np.array_equal(final[~opened], calibrated[~opened])
        assert np.array_equal(classifier.predict(p, z)[~opened], p.argmax(1)[~opened])
        assert (final[opened] != calibrated[opened]).any(1).all()

    def test_without_a_temperature_they_are_the_very_rows(self, problem):
        classifier = behind(fit_and_tune(problem, preset="paper"), GateThresholds.shut())
        assert np.array_equal(classifier.predict_proba(*problem.test[:2]), problem.test.p)

    def test_a_shut_gate_changes_no_label(self, fitted, problem):
        shut = behind(fitted, GateThresholds.shut())
        assert np.array_equal(shut.predict(*problem.test[:2]), problem.test.p.argmax(1))

    @pytest.mark.parametrize("kind", [np.float16, torch.float16, torch.bfloat16])
    def test_half_precision_cannot_tie_a_label_away(self, fitted, problem, kind):
        """A hot temperature brings 0.248 and 0.252 so close that half precision cannot tell them apart."""
        hot = behind(fitted, GateThresholds.shut(), temperature=20.0)
        rows = np.array([[0.248, 0.252, 0.25, 0.25], [0.25, 0.248, 0.25, 0.252], [0.252, 0.248, 0.25, 0.25]])
        p: Any = torch.tensor(rows).to(kind) if isinstance(kind, torch.dtype) else rows.astype(kind)
        z = problem.test.z[:3]
        labels = p.argmax(1).tolist()
        assert labels[:2] == [1, 3]
        final = hot.predict_proba(p, z)
        assert final.dtype == kind
        assert final.argmax(1).tolist() == hot.predict(p, z).tolist() == labels
        np.testing.assert_allclose(torch.as_tensor(final).double(), 0.25, atol=4e-3)


class TestKinds:
    def test_predict_is_the_most_probable(self, fitted, problem):
        p, z = problem.test[:2]
        assert np.array_equal(fitted.predict(p, z), fitted.predict_proba(p, z).argmax(1))
        np.testing.assert_allclose(fitted.predict_proba(p, z).sum(1), 1, atol=1e-5)

    def test_numpy_torch_lists_and_strides_agree(self, fitted, problem):
        p, z = problem.test[:2]
        expected = fitted.predict_proba(p, z)
        assert isinstance(expected, np.ndarray)
        as_torch = fitted.predict_proba(torch.from_numpy(p), torch.from_numpy(z))
        assert isinstance(as_torch, torch.Tensor)
        assert torch.equal(as_torch, torch.from_numpy(expected))
        assert isinstance(fitted.predict(torch.from_numpy(p), z), torch.Tensor)
        np.testing.assert_allclose(fitted.predict_proba(p.tolist(), z.tolist()), expected, atol=1e-6)
        frozen = p.copy()
        frozen.flags.writeable = False
        assert np.array_equal(fitted.predict_proba(frozen, z), expected)
        np.testing.assert_allclose(fitted.predict_proba(p[::-1], z[::-1])[::-1], expected, atol=1e-6)

    def test_kinds_may_be_mixed_between_calls(self, problem):
        train, val, test = problem
        classifier = DualPathClassifier(3).fit(torch.from_numpy(train.z), torch.from_numpy(train.y))
        classifier.tune(val.p.astype(np.float64), val.z.astype(np.float16), val.y.astype(np.int8))
        p = classifier.predict_proba(test.p.astype(np.float16), test.z.astype(np.float64))
        assert p.dtype == np.float16
        assert classifier.report(test.p.astype(np.float16), test.z.astype(np.float64), test.y)["gate"]["n"] == 160

    def test_no_rows_give_no_rows(self, fitted):
        assert fitted.predict_proba(np.zeros((0, 4)), np.ones((0, 8))).shape == (0, 4)
        assert fitted.predict(np.zeros((0, 4)), np.ones((0, 8))).shape == (0,)

    def test_many_rows_go_in_pieces(self, fitted, problem):
        p, z = (np.tile(array, (60, 1)) for array in problem.test[:2])
        np.testing.assert_allclose(
            fitted.predict_proba(p, z), np.tile(fitted.predict_proba(*problem.test[:2]), (60, 1)), atol=1e-6
        )

    def test_the_banks_space_may_be_another_encoders(self, problem):
        turned = np.random.default_rng(0).normal(size=(8, 19))
        wide = Problem(*(split._replace(z=(split.z @ turned).astype(np.float32)) for split in problem))
        classifier = fit_and_tune(wide)
        assert classifier.bank_.width == 19
        assert classifier.report(*wide.test[:4])["comparators"]["similarity"]["accuracy"] > 0.6
        with pytest.raises(ValueError, match="z has width 8, and the bank was built on embeddings of width 19"):
            classifier.predict(*problem.test[:2])

    def test_two_classes(self):
        problem = make_problem(n_classes=2)
        classifier = fit_and_tune(problem)
        report = classifier.report(*problem.test[:4])
        assert not classifier.tuning_.is_shut
        assert (
            report["comparators"]["gate"]["balanced_accuracy"] > report["comparators"]["student"]["balanced_accuracy"]
        )
        assert set(classifier.predict(*problem.test[:2])) == {0, 1}
        assert len(classifier.explain(problem.test.p[0], problem.test.z[0]).p) == 2

    def test_a_class_that_is_never_retrieved(self, problem):
        train, val, test = problem
        kept = train.y != 2
        classifier = DualPathClassifier(3, n_classes=4).fit(train.z[kept], train.y[kept])
        classifier.tune(val.p, val.z, val.y)
        report = classifier.report(test.p, test.z, test.y)
        assert (np.isfinite(list(report["comparators"]["gate"].values()))).all()
        assert (classifier.bank_.posterior(test.z)[:, 2] == 0).all()


def bad_posteriors() -> dict[str, tuple[Array, str]]:
    p = make_problem().test.p[:6].astype(np.float64)
    negative, off = p.copy(), p.copy()
    negative[2, 0] -= 1
    negative[2, 1] += 1
    off[3] *= 0.99
    return {
        "negative": (negative, "in row 2, and a probability lies between 0 and 1"),
        "NaN": (np.where(np.arange(6)[:, None] == 4, np.nan, p), r"has NaN or infinite values in 1 row \(4\)"),
        "sums off": (off, r"must sum to one in each row \(within 0.001\); row 3 sums to 0.9900, and 1 of 6 rows"),
        "logits": (3 * np.log(p) + 5, "these look like logits: take their softmax first"),
        "classes": (p[:, :3] / p[:, :3].sum(1, keepdims=True), "has 3 classes where 4 are expected"),
        "flat": (p[0], "must be two-dimensional"),
        "rows": (p[:5], "has 5 rows and z.* has 6"),
    }


def bad_embeddings() -> dict[str, tuple[Array, str]]:
    z = make_problem().test.z[:6]
    row = np.arange(6)[:, None]
    return {
        "zero": (np.where(row == 1, 0, z), r"has all-zero rows, which have no direction: 1 row \(1\)"),
        "NaN": (np.where(row == 1, np.nan, z), r"has NaN or infinite values in 1 row \(1\)"),
        "infinite": (np.where(row == 5, np.inf, z), r"has NaN or infinite values in 1 row \(5\)"),
        "width": (z[:, :5], "has width 5, and the bank was built on embeddings of width 8"),
        "flat": (z[0], "must be two-dimensional"),
    }


class TestRefusals:
    """One clear sentence that names the argument, and nothing half-done."""

    @pytest.mark.parametrize("case", bad_posteriors())
    def test_posteriors(self, problem, own, case):
        p, message = bad_posteriors()[case]
        _, z, y, *_ = problem.test
        with pytest.raises(ValueError, match=f"^p .*{message}|^p {message}"):
            own.predict_proba(p, z[:6])
        with pytest.raises(ValueError, match=f"^p_val .*{message}|^p_val {message}"):
            own.tune(p, z[:6], y[:6])
        with pytest.raises(ValueError, match=f"^p_test .*{message}|^p_test {message}"):
            own.report(p, z[:6], y[:6])
        assert own.tuning_.n_rows == 200  # the earlier tuning stands

    @pytest.mark.parametrize("case", bad_embeddings())
    def test_embeddings(self, problem, own, case):
        z, message = bad_embeddings()[case]
        p, _, y, *_ = problem.test
        with pytest.raises(ValueError, match=f"^z {message}"):
            own.predict_proba(p[:6], z)
        with pytest.raises(ValueError, match=f"^z_val {message}"):
            own.tune(p[:6], z, y[:6])
        with pytest.raises(ValueError, match=f"^z_test {message}"):
            own.report(p[:6], z, y[:6])
        if case != "width":  # any width is a bank's
            with pytest.raises(ValueError, match=f"^z_train {message}"):
                DualPathClassifier().fit(z, y[:6])

    @pytest.mark.parametrize(
        ("labels", "error", "message"),
        [
            ([0, 1, 2, 3, 4, 0], ValueError, "in the range 0 to 3; row 4 holds 4"),
            ([0, 1, 2, 3, -1, 0], ValueError, "row 4 holds -1"),
            ([0.0, 1.5, 0, 0, 0, 0], TypeError, "must be integers"),
            ([[0]] * 6, ValueError, "must be one-dimensional"),
            ([0, 1, 2], ValueError, "has 3 entries for 6 rows"),
        ],
    )
    def test_labels(self, problem, own, labels, error, message):
        p, z = problem.test.p[:6], problem.test.z[:6]
        with pytest.raises(error, match=f"y_train .*{message}"):
            clone(own).set_params(n_classes=4).fit(z, labels)
        with pytest.raises(error, match=f"y_val .*{message}"):
            own.tune(p, z, labels)
        with pytest.raises(error, match=f"y_test .*{message}"):
            own.report(p, z, labels)

    def test_names_that_the_classifier_does_not_know(self, problem):
        train, val, _ = problem
        classifier = DualPathClassifier(3).fit(train.z, train.y)
        with pytest.raises(TypeError, match="y_val must be integers that number the classes from 0; it holds names"):
            classifier.tune(val.p, val.z, NAMES[val.y])
        classifier.fit(train.z, NAMES[train.y])
        with pytest.raises(ValueError, match="y_val holds 'wart', which is none of the classes of p: bkl, df, mel, nv"):
            classifier.tune(val.p, val.z, np.where(val.y == 1, "wart", NAMES[val.y]))
        with pytest.raises(ValueError, match="y_train holds 'bkl'"):
            classifier.fit(train.z, NAMES[train.y], class_names=("mel", "nv", "df", "wart"))

    def test_a_class_with_no_training_row(self, problem):
        train = problem.train
        kept = train.y != 1
        with pytest.raises(ValueError, match="class 1 has no training row; pass n_classes=4"):
            DualPathClassifier(3).fit(train.z[kept], train.y[kept])

    def test_nothing_to_work_on(self, fitted, problem):
        empty = np.zeros((0, 4)), np.zeros((0, 8)), np.zeros(0, int)
        with pytest.raises(ValueError, match="p_val is empty"):
            fitted.tune(*empty)
        with pytest.raises(ValueError, match="p_test is empty"):
            fitted.report(*empty)
        with pytest.raises(ValueError, match="z_train is empty: a bank needs training embeddings"):
            DualPathClassifier().fit(*empty[1:])

    def test_groups_that_cross(self, problem):
        train, val, test = problem
        classifier = DualPathClassifier(3).fit(train.z, train.y, train.groups)
        crossing = val.groups.copy()
        crossing[:2] = train.groups[[0, 3]]
        with pytest.raises(ValueError, match=r"2 groups are in both the training and the validation data, .*'train-0'"):
            classifier.tune(val.p, val.z, val.y, crossing)
        classifier.tune(*val[:4])
        for other, where in ((train.groups, "training"), (val.groups, "validation")):
            crossing = test.groups.copy()
            crossing[7] = other[5]
            with pytest.raises(ValueError, match=f"1 groups are in both the {where} and the test data"):
                classifier.report(test.p, test.z, test.y, crossing)
        classifier.report(*test[:4])

    def test_groups_that_some_parts_lack(self, problem):
        train, val, test = problem
        without, with_groups = (DualPathClassifier(3).fit(*of_train) for of_train in ((train.z, train.y), train[1:4]))
        with pytest.warns(UserWarning, match="the validation data came with groups and the training data without: les"):
            without.tune(*val[:4])
        with pytest.warns(UserWarning, match="the training data came with groups and the validation data without"):
            with_groups.tune(*val[:3])
        with_groups.tune(*val[:4])
        with pytest.warns(UserWarning, match="the training and validation data came with groups and the test data"):
            with_groups.report(*test[:3])
        without.tune(*val[:3]).report(*test[:3])

    def test_a_small_validation_set_is_noted(self, problem):
        train, val, _ = problem
        classifier = DualPathClassifier(3).fit(train.z, train.y)
        with (
            pytest.warns(UserWarning, match=r"validation is small"),
            pytest.warns(UserWarning, match="judged on no fewer"),
        ):
            classifier.tune(*(part[:40] for part in val[:3]))
        assert {note.kind for note in classifier.tuning_.notes} == {"small validation", "too few disagreements"}

    @pytest.mark.parametrize(
        ("params", "error", "message"),
        [
            (
                {"preset": "papre"},
                ValueError,
                "preset must be one of default, free, paper.*, not 'papre'",
            ),
            ({"preset": ["default"]}, ValueError, "preset must be one of"),
            ({"objective": "auc"}, ValueError, r"objective must be one of balanced_accuracy, .*, not 'auc'"),
            ({"n_prototypes": 0}, ValueError, "n_prototypes must be at least 1, not 0"),
            ({"n_prototypes": "3"}, TypeError, "n_prototypes must be a whole number, not '3'"),
            ({"n_classes": "4"}, TypeError, "n_classes must be a whole number, not '4'"),
            ({"n_classes": 3}, ValueError, "y_train must be in the range 0 to 2"),
            ({"seed": "a"}, TypeError, "seed must be a whole number, not 'a'"),
            ({"selection": "luck"}, ValueError, "selection must be one of validation, certified, crossfit, not 'luck'"),
            ({"selection": "crossfit", "folds": 1}, ValueError, "folds must be at least 2, not 1"),
        ],
    )
    def test_parameters(self, problem, params, error, message):
        with pytest.raises(error, match=message):
            DualPathClassifier(**params).fit(problem.train.z, problem.train.y).tune(*problem.val[:3])

    def test_thresholds_out_of_range(self):
        with pytest.raises(ValueError, match=r"theta must lie between 0 and 1, not 1.5"):
            GateThresholds(theta=1.5, beta=0.5, margin=0.2, delta=0.05, alpha=0.5)

    def test_explain(self, fitted, problem):
        p, z = problem.test[:2]
        with pytest.raises(ValueError, match="explain takes one case at a time, not 2"):
            fitted.explain(p[:2], z[:2])
        with pytest.raises(ValueError, match="class_names has 2 entries for 4 classes"):
            fitted.explain(p[0], z[0], class_names=["a", "b"])
        with pytest.raises(ValueError, match="z has width 3"):
            fitted.explain(p[0], z[0, :3])
        with pytest.raises(ValueError, match="p must be two-dimensional"):
            fitted.explain(0.5, z[0])


class TestExplain:
    def test_says_what_predict_does(self, fitted, problem):
        p, z = problem.test[:2]
        final = fitted.predict_proba(p, z)
        moved = 0
        for i in range(40):
            found = fitted.explain(p[i], z[i], class_names=list("abcd"))
            np.testing.assert_allclose(found.p, final[i], atol=1e-6)
            assert found.label == final[i].argmax()
            assert found.label_classifier == p[i].argmax()
            assert found.opened == all(clause.holds for clause in found.clauses)
            moved += "moved from" in found.sentence
        assert moved > 3

    def test_names_that_fit_was_given_are_shown_and_saved(self, problem, tmp_path):
        train, val, test = problem
        classifier = DualPathClassifier(3).fit(train.z, train.y, class_names=("nv", "mel", "bkl", "df"))
        classifier.tune(*val[:3])
        classifier.save(tmp_path / "model.safetensors")
        for each in (classifier, DualPathClassifier.load(tmp_path / "model.safetensors")):
            assert each.class_names_ == ("nv", "mel", "bkl", "df")
            assert each.explain(test.p[0], test.z[0]).class_names == ("nv", "mel", "bkl", "df")
            assert each.explain(test.p[0], test.z[0], class_names=list("abcd")).class_names == tuple("abcd")
            assert list(each.report(*test[:3])["per_class"]["gate"]) == ["nv", "mel", "bkl", "df"]
        with pytest.raises(ValueError, match="class_names has 2 entries for 4 classes"):
            classifier.fit(train.z, train.y, class_names=("nv", "mel"))

    def test_rows_matrices_and_lists_are_all_one_case(self, fitted, problem):
        p, z = problem.test[:2]
        expected = fitted.explain(p[3], z[3])
        assert fitted.explain(p[3:4], z[3:4]) == expected
        assert fitted.explain(torch.from_numpy(p[3]), torch.from_numpy(z[3])) == expected
        assert fitted.explain(p[3].tolist(), z[3].tolist()).label == expected.label

    def test_its_own_lesion_is_no_evidence(self, fitted, problem):
        train = problem.train
        for i in range(30):
            own = train.groups[i]
            with_own = fitted.explain(train.p[i], train.z[i])
            without = fitted.explain(train.p[i], train.z[i], group=own)
            for before, after in zip(with_own.matches, without.matches, strict=True):
                assert after.exemplars == tuple(each for each in before.exemplars if each.group != own)
        shown = {each.group for match in with_own.matches for each in match.exemplars}
        assert shown <= set(train.groups)


class TestFile:
    def test_round_trip(self, fitted, saved, problem):
        loaded = DualPathClassifier.load(saved)
        p, z = problem.test[:2]
        assert np.array_equal(loaded.predict_proba(p, z), fitted.predict_proba(p, z))
        assert loaded.explain(p[0], z[0], group="train-3") == fitted.explain(p[0], z[0], group="train-3")
        assert loaded.get_params() == fitted.get_params()
        assert loaded.classes_.tolist() == fitted.classes_.tolist()
        assert (loaded.tuning_.best, loaded.tuning_.base) == (fitted.tuning_.best, fitted.tuning_.base)
        assert loaded.tuning_.sentence() == fitted.tuning_.sentence()
        assert equal_tensors(loaded.tuning_.to_artifact().tensors, fitted.tuning_.to_artifact().tensors)
        gates = [each.report(*problem.test[:4])["gate"] for each in (loaded, fitted)]
        assert gates[0] == gates[1]

    def test_training_rows_are_not_kept(self, saved, problem):
        content = saved.read_bytes()
        assert problem.train.z[5].tobytes() not in content
        assert b"val-image" not in content

    def test_saving_again_changes_nothing(self, saved, tmp_path):
        DualPathClassifier.load(saved).save(tmp_path / "again.safetensors")
        assert (tmp_path / "again.safetensors").read_bytes() == saved.read_bytes()

    def test_tuning_goes_on_after_loading(self, fitted, saved, problem):
        loaded = DualPathClassifier.load(saved).tune(*problem.val[:4])
        assert loaded.tuning_.best == fitted.tuning_.best

    @pytest.mark.parametrize(
        "params",
        [
            {"preset": Preset(kappa=(7.0,), rule=("linear",))},
            {"n_prototypes": np.int64(3), "seed": np.int32(2)},
            {"preset": "paper", "n_classes": 4},
            {"adjust_prior": True, "objective": "nll"},
        ],
    )
    def test_any_parameters_come_back(self, problem, tmp_path, params):
        classifier = fit_and_tune(problem, **params)
        classifier.save(tmp_path / "model.safetensors")
        loaded = DualPathClassifier.load(tmp_path / "model.safetensors")
        assert loaded.get_params() == classifier.get_params()
        assert np.array_equal(loaded.predict(*problem.test[:2]), classifier.predict(*problem.test[:2]))

    def test_one_altered_bit_is_refused(self, saved):
        size = saved.stat().st_size
        for position in [0, 9, size - 1, *np.random.default_rng(0).integers(0, size, 30)]:
            alter_byte(saved, position)
            with pytest.raises(ArtifactError, match=r"altered|truncated|checksum|pickle"):
                DualPathClassifier.load(saved)
            alter_byte(saved, position)
        DualPathClassifier.load(saved)

    @pytest.mark.parametrize("keep", [0, 5, 100, -1])
    def test_truncated(self, saved, keep):
        saved.write_bytes(saved.read_bytes()[:keep])
        with pytest.raises(ArtifactError, match=r"truncated|cut short"):
            DualPathClassifier.load(saved)

    def test_a_pickle_is_not_opened(self, saved, tmp_path):
        saved.write_bytes(pickle.dumps(_Trap(tmp_path / "sprung")))
        with pytest.raises(ArtifactError, match=r"is a pickle or zip archive.*not opened"):
            DualPathClassifier.load(saved)
        torch.save({"bank": torch.zeros(2)}, saved)
        with pytest.raises(ArtifactError, match="is a pickle or zip archive"):
            DualPathClassifier.load(saved)
        assert not (tmp_path / "sprung").exists()

    def test_another_schema(self, fitted, saved):
        artifact = fitted.tuning_.to_artifact()
        write_artifact(saved, kind=KIND, schema=SCHEMA + 1, tensors=artifact.tensors, meta=artifact.meta)
        with pytest.raises(ArtifactError, match=f"schema version {SCHEMA + 1}, where this tdumpra reads {SCHEMA}"):
            DualPathClassifier.load(saved)

    def test_a_bank_is_no_classifier(self, fitted, saved):
        fitted.bank_.save(saved)
        with pytest.raises(ArtifactError, match="holds a tdumpra bank, where a dual-path classifier is needed"):
            DualPathClassifier.load(saved)

    def test_a_missing_file_and_a_missing_folder(self, fitted, tmp_path):
        with pytest.raises(ArtifactError, match=r"cannot read .*absent"):
            DualPathClassifier.load(tmp_path / "absent.safetensors")
        with pytest.raises(ArtifactError, match=r"the folder .* does not exist"):
            fitted.save(tmp_path / "no" / "model.safetensors")


class _Trap:
    """Would leave a file behind if it were ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


class TestReport:
    def test_the_gate_helps_where_there_is_something_to_win(self, fitted, problem):
        report = fitted.report(*problem.test[:4])
        scores = report["comparators"]
        assert scores["gate"]["balanced_accuracy"] > scores["student"]["balanced_accuracy"] + 0.05
        assert scores["gate"]["accuracy"] == pytest.approx(report["gate"]["accuracy"])
        assert scores["oracle"]["accuracy"] == pytest.approx(report["gate"]["oracle_accuracy"])
        assert scores["temperature"]["accuracy"] == scores["student"]["accuracy"]
        assert report["gate"]["thresholds"] == asdict(fitted.decision_.thresholds)
        assert report["gate"]["sign_flip_p"] < 0.01

    def test_it_cannot_tune_again(self, fitted, problem):
        with pytest.raises(ValueError, match="tuning_replicates"):
            fitted.report(*problem.test[:4], settings=EvaluateConfig(bootstrap=0, tuning_replicates=100))

    def test_the_gates_row_is_what_predict_gives(self, fitted, problem):
        test = problem.test
        label = fitted.predict(test.p, test.z)
        report = fitted.report(*test[:4])
        assert report["comparators"]["gate"]["accuracy"] == pytest.approx((label == test.y).mean())
        before = test.p.argmax(1)
        assert report["gate"]["flipped"] == (label != before).sum()
        assert report["gate"]["fixed"] == ((label == test.y) & (before != test.y)).sum()
        assert report["gate"]["broken"] == ((label != test.y) & (before == test.y)).sum()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_rows_on_a_gpu(problem):
    """Results come back to where the rows lay; tuning, report and evidence are those of main memory."""
    on_gpu = Problem(*(s._replace(p=torch.tensor(s.p).cuda(), z=torch.tensor(s.z).cuda()) for s in problem))
    here, there = fit_and_tune(problem), fit_and_tune(on_gpu)
    assert there.tuning_.best == here.tuning_.best
    p = there.predict_proba(on_gpu.test.p, on_gpu.test.z)
    assert p.is_cuda
    np.testing.assert_allclose(p.cpu(), here.predict_proba(*problem.test[:2]), atol=1e-5)
    assert jsonable(there.report(*on_gpu.test[:4])) == jsonable(here.report(*problem.test[:4]))  # NaN is not NaN
    assert there.explain(on_gpu.test.p[0], on_gpu.test.z[0]) == here.explain(problem.test.p[0], problem.test.z[0])


def test_the_bank_of_the_training_rows_outlives_cross_fitting(problem, fitted):
    """Else the same rows, tuned again without folds, would meet prototypes that were made of them."""
    crossed = fit_and_tune(problem, selection="crossfit", folds=3)
    assert torch.equal(crossed.bank_.prototypes, fitted.bank_.prototypes)
    assert crossed.decision_.bank is not crossed.bank_
    again = crossed.set_params(selection="validation").tune(*problem.val[:4])
    assert again.tuning_.best == fitted.tuning_.best


def test_what_an_earlier_tuning_proved_is_forgotten(problem, tmp_path):
    classifier = fit_and_tune(problem, selection="certified")
    classifier.save(tmp_path / "a.safetensors")
    loaded = DualPathClassifier.load(tmp_path / "a.safetensors")
    assert loaded.certificate_ == classifier.certificate_
    classifier.set_params(selection="validation").tune(*problem.val[:4])
    assert classifier.certificate_ is None
    crossed = fit_and_tune(problem, selection="crossfit", folds=3)
    crossed.save(tmp_path / "b.safetensors")
    assert DualPathClassifier.load(tmp_path / "b.safetensors").estimate_ == crossed.estimate_


@pytest.mark.filterwarnings("ignore:n_prototypes=120 is more than")
def test_after_cross_fitting_rivals_are_not_tuned_on_rows_of_the_bank(problem):
    """Embeddings that know nothing: only a bank that holds the validation rows would seem to know them."""
    rng = np.random.default_rng(0)
    noise = Problem(*(part._replace(z=rng.normal(size=part.z.shape)) for part in problem))
    found = fit_and_tune(noise, n_prototypes=120, selection="crossfit", folds=3).report(*noise.test[:4])["comparators"]
    assert found["calibrated_gate"]["accuracy"] > found["student"]["accuracy"] - 0.05


def test_a_part_of_many_validation_rows_is_searched_and_that_is_said(monkeypatch):
    problem = make_problem()
    monkeypatch.setattr(outputs, "SEARCHED_ROWS", 150)
    model = DualPathClassifier(n_prototypes=2).fit(problem.train.z, problem.train.y, problem.train.groups)
    with pytest.warns(UserWarning, match="validation has 200 rows: everything was chosen on 1[45][0-9] of them"):
        model.tune(*problem.val[:4])
    assert model.tuning_.n_rows <= 150


def test_figures_of_another_type_are_refused_where_only_their_origin_is_asked_for(tmp_path):
    path = tmp_path / "model.safetensors"
    write_artifact(path, kind=KIND, schema=SCHEMA, tensors={}, meta={"made_from": "a", "evaluation": ["b"]})
    with pytest.raises(ArtifactError, match="evaluation"):
        read_made_from(path)
