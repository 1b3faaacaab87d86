"""Every comparator, computed again without our code: plain numpy, scipy and scikit-learn."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, roc_auc_score
from sklearn.neighbors import NearestNeighbors
from tests.support import (
    Array,
    Problem,
    Split,
    fit_and_tune,
    likeliest_temperature,
    make_problem,
    random_posterior,
    unit,
)

from tdumpra import DualPathClassifier
from tdumpra.evaluation import comparators, rivals
from tdumpra.evaluation.comparators import COMPARATORS, Case, Comparator
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs

OUTPUTS = Path(os.environ.get("TDUMPRA_OUTPUTS", Path(__file__).parents[3] / "shared" / "outputs"))
REAL_FILE = OUTPUTS / "lite0_joint_seed0.npz"
KEYS = [
    *("student", "teacher", "temperature", "logit_adjusted"),
    *("knn", "single_prototype", "tip_adapter", "similarity", "average", "average_adjusted", "ungated"),
    *("paper_gate", "calibrated_gate", "gate", "oracle"),
]


def independent_metrics(p: Array, y: Array) -> dict[str, float]:
    n, n_classes = p.shape
    label, confidence, truth = p.argmax(1), p.max(1), np.eye(n_classes)[y]
    ece = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            ece += inside.mean() * abs((label == y)[inside].mean() - confidence[inside].mean())
    areas = [roc_auc_score(y == c, p[:, c]) for c in range(n_classes)]
    clipped = np.maximum(p[np.arange(n), y], np.finfo(float).eps)
    return {
        "accuracy": accuracy_score(y, label),
        "macro_f1": f1_score(y, label, average="macro"),
        "balanced_accuracy": balanced_accuracy_score(y, label),
        "macro_auroc": areas[1] if n_classes == 2 else float(np.mean(areas)),
        "ece": ece,
        "nll": float(-np.log(clipped).mean()),
        "brier": float(((p - truth) ** 2).sum(1).mean()) / (2 if n_classes == 2 else 1),
    }


def prior_exponent(p: Array, y: Array, prior: Array, plain: Array) -> float:
    """The best of 21 powers that lose no accuracy against the plain classifier; zero where all do."""
    floor, scored = accuracy_score(y, plain.argmax(1)), []
    for exponent in np.arange(21) / 20:
        label = (p / prior**exponent).argmax(1)
        scored.append((balanced_accuracy_score(y, label), accuracy_score(y, label), exponent))
    allowed = [each for each in scored if each[1] >= floor] or scored[:1]
    return float(max(allowed, key=lambda each: (round(each[0], 12), -each[2]))[2])


def independent_posteriors(problem: Problem, classifier: DualPathClassifier, p_teacher: Array) -> dict[str, Array]:
    """From the arrays, and from what was fitted only the prototypes, kappa, tau and thresholds."""
    fitted, bank = classifier.decision_, classifier.bank_
    # Zeros of a saved half precision stay impossible under any temperature, as they should.
    with np.errstate(divide="ignore"):
        log_val, log_test = (np.log(split.p.astype(np.float64)) for split in (problem.val, problem.test))
    temperature = likeliest_temperature(log_val, problem.val.y)
    calibrated: Array = softmax(log_test / temperature, axis=1)

    prior = np.bincount(problem.train.y) / len(problem.train.y)
    plain = problem.val.p.astype(np.float64)
    exponent = prior_exponent(softmax(log_val / temperature, axis=1), problem.val.y, prior, plain)
    raw = problem.test.p.astype(np.float64)  # half precision: rows sum to one only nearly
    adjusted: Array = softmax(log_test / temperature - exponent * np.log(prior), axis=1)

    neighbours = NearestNeighbors(n_neighbors=16, metric="cosine", algorithm="brute").fit(unit(problem.train.z))
    _, nearest = neighbours.kneighbors(unit(problem.test.z))
    votes = np.eye(len(prior))[problem.train.y[nearest]].mean(1)

    q = np.stack([
        logsumexp(fitted.kappa * unit(problem.test.z) @ centres[live].double().numpy().T, axis=1) - math.log(live.sum())
        for centres, live in zip(bank.prototypes, bank.mask, strict=True)
    ], axis=1)  # fmt: skip
    similarity: Array = softmax(q / fitted.tau, axis=1)

    p_cls = raw if fitted.temperature == 1 else calibrated  # the paper's presets fit no temperature
    final, t = p_cls.copy(), fitted.thresholds
    for i, (c, s) in enumerate(zip(p_cls, similarity, strict=True)):
        second, first = np.sort(s)[-2:]
        middle = (c + s) / 2
        js = sum(a * math.log(a / m) for row in (c, s) for a, m in zip(row, middle, strict=True) if a > 0) / 2
        opens = c.max() < t.theta and first > t.beta and first - second > t.margin and js > t.delta
        if fitted.calibrated is not None:
            x = [1.0, math.log(c.max() / (1 - c.max())), math.log(first / (1 - first))]
            chance = [
                1 / (1 + math.exp(-sum(a * b for a, b in zip(weights, x, strict=True))))
                for weights in (fitted.calibrated.similarity, fitted.calibrated.classifier)
            ]
            opens = opens and chance[0] - chance[1] > fitted.calibrated.margin
        if opens and c.argmax() != s.argmax():
            product = c**t.alpha * s ** (1 - t.alpha)
            fused = t.alpha * c + (1 - t.alpha) * s if fitted.rule == "linear" else product / product.sum()
            if not fitted.first_choices_only or fused.argmax() in (c.argmax(), s.argmax()):
                final[i] = fused
    sim_alone = (similarity.argmax(1) == problem.test.y) & (p_cls.argmax(1) != problem.test.y)
    return {
        "student": raw,
        "teacher": p_teacher.astype(np.float64),
        "temperature": calibrated,
        "logit_adjusted": adjusted,
        "knn": votes,
        "similarity": similarity,
        "average": (p_cls + similarity) / 2,
        "gate": final,
        "oracle": np.where(sim_alone[:, None], similarity, p_cls),
    }


def assert_agree(problem: Problem, classifier: DualPathClassifier, p_teacher: Array, tolerance: float) -> None:
    test = problem.test
    found = classifier.report(test.p, test.z, test.y, test.groups, p_teacher=p_teacher)["comparators"]
    assert list(found) == KEYS
    for key, p in independent_posteriors(problem, classifier, p_teacher).items():
        assert found[key] == pytest.approx(independent_metrics(p, test.y), abs=tolerance), key


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_on_made_up_arrays(seed, n_classes):
    problem = make_problem(seed, n_classes=n_classes, dtype=np.float64)
    p_teacher = random_posterior(np.random.default_rng(seed), 160, n_classes)
    assert_agree(problem, fit_and_tune(problem), p_teacher, 1e-6)


@pytest.mark.skipif(not REAL_FILE.exists(), reason=f"needs the real outputs {REAL_FILE.name}; set TDUMPRA_OUTPUTS")
@pytest.mark.parametrize("preset", ["default", "paper-swapped"])
def test_on_real_outputs(preset):
    with np.load(REAL_FILE, allow_pickle=False) as file:
        content = {name: file[name] for name in file.files}

    def split(code: int) -> Split:
        return Split(*(content[name][content["split"] == code] for name in ("p", "zt", "y", "group", "id")))

    problem = Problem(split(0), split(1), split(2))
    classifier = fit_and_tune(problem, n_prototypes=5, preset=preset)
    assert_agree(problem, classifier, content["pt"][content["split"] == 2], 1e-6)


def make_case(classifier: DualPathClassifier, problem: Problem) -> Case:
    test = TestOutputs.check(*problem.test[:3])
    return Case(
        train=TrainOutputs.check(problem.train.z, problem.train.y),
        validation=ValidationOutputs.check(*problem.val[:3]),
        test=test,
        decision=classifier.decision_,
        decided=classifier.decision_.decide(test.p, test.z),
    )


class TestWhatIsAbsent:
    def test_is_left_out_of_the_table(self, tmp_path):
        problem = make_problem()
        classifier = fit_and_tune(problem)
        test = problem.test
        assert list(classifier.report(*test[:4])["comparators"]) == [key for key in KEYS if key != "teacher"]
        classifier.save(tmp_path / "model.safetensors")
        loaded = DualPathClassifier.load(tmp_path / "model.safetensors").report(*test[:3])["comparators"]
        assert list(loaded) == ["student", "similarity", "average", "gate", "oracle"]

    def test_one_can_be_added(self):
        problem = make_problem()
        classifier = fit_and_tune(problem)

        def always_first(case: Case) -> torch.Tensor:
            return torch.eye(4)[torch.zeros(len(case.test), dtype=torch.int64)]

        added = {**COMPARATORS, "always_first": Comparator("the first class", always_first)}
        scores = evaluate(make_case(classifier, problem), added).document["comparators"]
        assert scores["always_first"]["accuracy"] == (problem.test.y == 0).mean()
        assert "gate" in scores


class TestNearestNeighbours:
    def test_precision_may_differ_between_splits(self):
        problem = make_problem()
        classifier = fit_and_tune(problem)
        test = problem.test
        wide = classifier.report(test.p, test.z.astype(np.float64), test.y, test.groups)["comparators"]["knn"]
        assert wide == pytest.approx(classifier.report(*test[:4])["comparators"]["knn"])


def test_the_rival_never_costs_validation_accuracy():
    for seed in range(3):
        problem = make_problem(seed)
        case = make_case(fit_and_tune(problem), problem)
        prior = case.decision.prior.numpy()
        plain, y = problem.val.p.astype(np.float64), problem.val.y
        temperature = likeliest_temperature(np.log(plain), y)
        p: Array = softmax(np.log(plain) / temperature, axis=1)
        exponent = prior_exponent(p, y, prior, plain)
        assert accuracy_score(y, (p / prior**exponent).argmax(1)) >= accuracy_score(y, plain.argmax(1))
        expected = problem.test.p.astype(np.float64) ** (1 / temperature) / prior**exponent
        found = COMPARATORS["logit_adjusted"].posterior(case)
        assert found is not None
        np.testing.assert_allclose(found, expected / expected.sum(1, keepdims=True), atol=1e-6)


# --- further networks, and rows of all seeds


def further(n: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(random_posterior(np.random.default_rng(seed), n, 4))


def drawn_to_common(p: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Another network's word: near the first one's, and partial to common classes."""
    drawn = (noise + 8 * p) * torch.tensor([1.0, 0.7, 0.5, 0.4])
    return drawn / drawn.sum(1, keepdim=True)


@pytest.fixture
def rich() -> Case:
    """A case with everything that a comparator may use: a teacher, a second network, a baseline."""
    problem = make_problem(0, dtype=np.float64)
    case = make_case(fit_and_tune(problem), problem)
    assert case.validation is not None
    names = ("p_teacher", "p_second")
    val: dict[str, Any] = {name: drawn_to_common(case.validation.p, further(200, i)) for i, name in enumerate(names)}
    test: dict[str, Any] = {name: drawn_to_common(case.test.p, further(160, 5 + i)) for i, name in enumerate(names)}
    return replace(
        case,
        validation=replace(case.validation, **val),
        test=replace(case.test, **test, p_baseline=further(160, 9)),
    )


def warm(p: torch.Tensor, fitted_on: torch.Tensor, y: Array) -> Array:
    temperature = likeliest_temperature(fitted_on.log().numpy(), y)
    calibrated: Array = softmax(p.log().numpy() / temperature, axis=1)
    return calibrated


def divided(p: Array, prior: Array, exponent: float) -> Array:
    quotient: Array = p / prior**exponent
    quotient /= quotient.sum(1, keepdims=True)
    return quotient


def naive_second_opinions(case: Case, rows: ValidationOutputs) -> dict[str, Array]:
    assert rows.p_teacher is not None
    assert rows.p_second is not None
    assert case.test.p_teacher is not None
    assert case.test.p_second is not None
    y, prior = rows.y.numpy(), case.decision.prior.numpy()
    plain = rows.p.numpy()

    def both(column: str) -> tuple[Array, Array]:
        fitted_on = getattr(rows, column)
        return warm(fitted_on, fitted_on, y), warm(getattr(case.test, column), fitted_on, y)

    def best(val: Array, test: Array) -> Array:
        return divided(test, prior, prior_exponent(val, y, prior, plain))

    own, teacher, second = both("p"), both("p_teacher"), both("p_second")
    mean_val, mean_test = ((a + b) / 2 for a, b in zip(own, second, strict=True))
    return {
        "temperature": own[1],
        "logit_adjusted": best(*own),
        "teacher_adjusted": best(*teacher),
        "second": case.test.p_second.numpy(),
        "second_temperature": second[1],
        "second_adjusted": best(*second),
        "ensemble": mean_test,
        "ensemble_adjusted": best(mean_val, mean_test),
    }


def assert_found(case: Case, expected: dict[str, Array]) -> None:
    for name, p in expected.items():
        found = COMPARATORS[name].posterior(case)
        assert found is not None
        np.testing.assert_allclose(found, p, atol=1e-6, err_msg=name)


def test_two_networks_without_a_bank(rich):
    assert rich.validation is not None
    expected = naive_second_opinions(rich, rich.validation)
    assert_found(rich, expected)
    assert not np.allclose(expected["ensemble"], expected["ensemble_adjusted"])
    assert not np.allclose(expected["second"], expected["second_temperature"])
    assert not np.allclose(expected["second_temperature"], expected["second_adjusted"])
    assert not np.allclose(expected["teacher_adjusted"], rich.test.p_teacher)
    scored = evaluate(rich).document["comparators"]
    assert scored["ensemble"] == pytest.approx(independent_metrics(expected["ensemble"], rich.test.y.numpy()), abs=1e-6)


def test_another_runs_classifier(rich):
    found = COMPARATORS["baseline"].posterior(rich)
    assert found is not None
    assert torch.equal(found, rich.test.p_baseline)
    assert list(evaluate(rich).document["comparators"]) == list(COMPARATORS)  # all, with the baseline first
    assert COMPARATORS["baseline"].posterior(replace(rich, test=replace(rich.test, p_baseline=None))) is None


def test_settings_are_chosen_on_the_rows_that_the_decision_was_chosen_on(rich):
    other = make_problem(1, dtype=np.float64).val
    pool = ValidationOutputs.check(*other[:3])
    pool = replace(pool, p_teacher=(further(200, 3) + pool.p) / 2, p_second=(further(200, 4) + pool.p) / 2)
    pooled = replace(rich, pool=pool)
    assert pooled.choice is pool
    assert rich.choice is rich.validation
    expected = naive_second_opinions(rich, pool)
    assert_found(pooled, expected)
    alone = COMPARATORS["temperature"].posterior(rich)
    assert alone is not None
    assert not np.allclose(alone, expected["temperature"], atol=1e-4)


@pytest.mark.parametrize("where", ["validation", "test"])
def test_without_the_second_networks_word_on_both_parts_there_is_no_ensemble(rich, where):
    less = replace(rich, **{where: replace(getattr(rich, where), p_second=None, p_teacher=None)})
    absent = ("second_temperature", "second_adjusted", "ensemble", "ensemble_adjusted", "teacher_adjusted")
    assert [COMPARATORS[name].posterior(less) for name in absent] == [None] * 5
    assert (COMPARATORS["second"].posterior(less) is None) == (where == "test")  # it is taken as it is


def test_what_was_fitted_is_not_fitted_again_on_validation(rich, monkeypatch):
    fresh = replace(rich)  # with nothing fitted
    on_validation = fresh.on_validation()
    assert on_validation is not None
    alone = {name: each.posterior(on_validation) for name, each in COMPARATORS.items()}
    for each in COMPARATORS.values():
        each.posterior(fresh)
    for module, names in (
        (comparators, ("tune", "fit_temperature", "best_harmless")),
        (rivals, ("fit_temperature", "best_harmless")),
    ):
        for name in names:
            monkeypatch.delattr(module, name)
    again = fresh.on_validation()
    assert again is not None
    for name, expected in alone.items():
        found = COMPARATORS[name].posterior(again)
        if found is None or expected is None:
            assert found is expected, name
        else:
            assert torch.equal(found, expected), name


def test_another_case_fits_for_itself(rich):
    for each in COMPARATORS.values():
        each.posterior(rich)
    assert rich.fits
    assert not replace(rich, validation=rich.validation).fits
