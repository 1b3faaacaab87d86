import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, f1_score, log_loss, recall_score, roc_auc_score, roc_curve
from torchmetrics.functional.classification import multiclass_calibration_error, multiclass_f1_score

from tdumpra.core.metrics import (
    ClassCounts,
    accuracy,
    auroc_by_class,
    balanced_accuracy,
    brier_score,
    calibration_bins,
    calibration_error,
    calibration_noise,
    class_counts,
    classification_metrics,
    classwise_calibration_error,
    expected_calibration_error,
    log_loss_by_row,
    macro_auroc,
    macro_f1,
    negative_log_likelihood,
    sensitivity_at_specificity,
)


def case(seed, n=80, c=4, absent=()):
    """A posterior and labels that it predicts better than chance; ``absent`` classes never occur."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, c)) * 1.5
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y = np.where(rng.random(n) < 0.5, p.argmax(1), rng.integers(c, size=n))
    y[np.isin(y, absent)] = next(k for k in range(c) if k not in absent)
    return p, y


def naive_counts(predicted, y, n_classes):
    """Accuracy, macro-F1 and balanced accuracy, class by class."""
    recalls, scores = [], []
    pairs = list(zip(predicted, y, strict=True))
    for c in range(n_classes):
        hit = sum(a == b == c for a, b in pairs)
        present, called = sum(b == c for _, b in pairs), sum(a == c for a, _ in pairs)
        if present:
            recalls.append(hit / present)
        if present + called:
            scores.append(2 * hit / (present + called))
    return sum(a == b for a, b in pairs) / len(pairs), sum(scores) / len(scores), sum(recalls) / len(recalls)


def naive_auroc(score, positive):
    """The chance that a positive outranks a negative, ties half."""
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, b in itertools.product(score[positive].tolist(), score[~positive].tolist())
    ]
    return sum(wins) / len(wins) if wins else math.nan


def naive_ece(confidence, correct, n_bins):
    """Bins (lo, hi]; zero belongs to the first, and what lies above one to the last."""
    total = 0.0
    for b in range(n_bins):
        low, high = b / n_bins, (b + 1) / n_bins
        inside = [
            i
            for i, value in enumerate(confidence)
            if low < value <= high or (b == 0 and value == 0) or (b == n_bins - 1 and value > 1)
        ]
        if inside:
            hits = sum(bool(correct[i]) for i in inside) / len(inside)
            sure = sum(confidence[i] for i in inside) / len(inside)
            total += len(inside) / len(confidence) * abs(hits - sure)
    return total


class TestCounts:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("absent", [(), (2,), (0, 3)])
    def test_equal_the_naive_scores(self, seed, absent):
        p, y = case(seed, absent=absent)
        counts = class_counts(p.argmax(1), y, 4)
        found = (float(accuracy(counts)), float(macro_f1(counts)), float(balanced_accuracy(counts)))
        assert found == pytest.approx(naive_counts(p.argmax(1).tolist(), y.tolist(), 4))

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("absent", [(), (1,)])
    def test_equal_sklearn_and_torchmetrics(self, seed, absent):
        p, y = case(seed, absent=absent)
        predicted = p.argmax(1)
        counts = class_counts(predicted, y, 4)
        assert float(macro_f1(counts)) == pytest.approx(f1_score(y, predicted, average="macro"))
        theirs = multiclass_f1_score(torch.from_numpy(predicted), torch.from_numpy(y), 4, average="macro")
        assert float(macro_f1(counts)) == pytest.approx(float(theirs), rel=1e-6)
        recall = recall_score(y, predicted, labels=np.unique(y), average="macro")
        assert float(balanced_accuracy(counts)) == pytest.approx(recall)

    def test_by_hand(self):
        # y = 0 0 0 1, predicted 0 0 1 1. Recalls 2/3 and 1; F1 2x2/(3+2) = 0.8 and 2x1/(1+2) = 2/3.
        counts = class_counts(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), 3)
        assert [column.tolist() for column in counts] == [[2, 1, 0], [3, 1, 0], [2, 2, 0]]
        assert float(accuracy(counts)) == 0.75
        assert float(balanced_accuracy(counts)) == pytest.approx(5 / 6)
        assert float(macro_f1(counts)) == pytest.approx((0.8 + 2 / 3) / 2)

    def test_a_class_that_is_only_predicted_has_f1_zero_and_no_recall(self):
        counts = class_counts(np.array([0, 1]), np.array([0, 0]), 2)
        assert float(balanced_accuracy(counts)) == 0.5
        assert float(macro_f1(counts)) == pytest.approx((2 / 3 + 0) / 2)

    def test_many_settings_at_once(self):
        cases = [case(seed, c=3) for seed in range(6)]
        single = [class_counts(p.argmax(1), y, 3) for p, y in cases]
        stacked = ClassCounts(*(np.stack(column).reshape(2, 3, 3) for column in zip(*single, strict=True)))
        for measure in (accuracy, balanced_accuracy, macro_f1):
            expected = np.array([float(measure(counts)) for counts in single]).reshape(2, 3)
            np.testing.assert_allclose(measure(stacked), expected)

    def test_nothing_to_count_is_nan(self):
        empty = class_counts(np.zeros(0, np.int64), np.zeros(0, np.int64), 3)
        assert all(math.isnan(float(measure(empty))) for measure in (accuracy, balanced_accuracy, macro_f1))


class TestAuroc:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("rounded", [False, True])
    def test_equals_all_pairs_and_sklearn(self, seed, rounded):
        p, y = case(seed)
        p = p.round(1) if rounded else p  # ties
        areas = auroc_by_class(p, y)
        for c in range(4):
            assert areas[c] == pytest.approx(naive_auroc(p[:, c], y == c))
            assert areas[c] == pytest.approx(roc_auc_score(y == c, p[:, c]))
        assert macro_auroc(p, y) == pytest.approx(sum(areas) / 4)

    def test_equals_sklearns_one_vs_rest(self):
        p, y = case(0)
        assert macro_auroc(p, y) == pytest.approx(roc_auc_score(y, p, multi_class="ovr"))

    def test_by_hand(self):
        # Positives 0.9 and 0.4, negatives 0.4 and 0.1: three wins and a tie of four pairs = 3.5/4.
        p = np.array([[0.1, 0.9], [0.6, 0.4], [0.6, 0.4], [0.9, 0.1]])
        assert macro_auroc(p, np.array([1, 1, 0, 0])) == pytest.approx(3.5 / 4)

    def test_two_classes_are_those_of_the_positive_one(self):
        # Columns that do not mirror each other, so that the two areas differ.
        p = np.array([[0.5, 0.5], [0.4999, 0.5], [0.5, 0.4999]])
        y = np.array([1, 0, 0])
        areas = auroc_by_class(p, y)
        assert areas[0] != areas[1]
        assert macro_auroc(p, y) == areas[1]

    def test_an_absent_class_is_left_out(self):
        p, y = case(1, absent=(2,))
        areas = auroc_by_class(p, y)
        assert math.isnan(areas[2])
        assert macro_auroc(p, y) == pytest.approx(np.nanmean(areas))

    @pytest.mark.parametrize("c", [2, 3])
    def test_a_single_class_in_y_has_no_area(self, c):
        p, _ = case(0, n=5, c=c)
        assert math.isnan(macro_auroc(p, np.zeros(5, np.int64)))

    def test_all_ties_are_a_half(self):
        assert macro_auroc(np.full((4, 3), 1 / 3), np.array([0, 1, 2, 2])) == 0.5


class TestCalibration:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("n_bins", [1, 10, 15])
    def test_equals_the_naive_error(self, seed, n_bins):
        p, y = case(seed)
        correct = (p.argmax(1) == y).tolist()
        expected = naive_ece(p.max(1).tolist(), correct, n_bins)
        assert expected_calibration_error(p, y, n_bins) == pytest.approx(expected)

    @pytest.mark.parametrize("seed", range(4))
    def test_equals_torchmetrics(self, seed):
        p, y = case(seed, n=300)
        theirs = multiclass_calibration_error(torch.from_numpy(p), torch.from_numpy(y), 4, n_bins=15, norm="l1")
        assert expected_calibration_error(p, y) == pytest.approx(float(theirs), rel=1e-5)

    @pytest.mark.parametrize("seed", range(3))
    def test_class_by_class(self, seed):
        p, y = case(seed)
        expected = [naive_ece(p[:, c].tolist(), (y == c).tolist(), 15) for c in range(4)]
        assert classwise_calibration_error(p, y) == pytest.approx(sum(expected) / 4)

    def test_by_hand(self):
        # Two bins: (0, 0.5] has 0.5 (right): gap 0.5; (0.5, 1] has 0.8 (wrong) and 1.0 (right): |0.5 - 0.9| = 0.4.
        # (1 x 0.5 + 2 x 0.4) / 3
        p = np.array([[0.5, 0.5], [0.8, 0.2], [0.0, 1.0]])
        assert expected_calibration_error(p, np.array([0, 1, 1]), 2) == pytest.approx(1.3 / 3)

    def test_edges_belong_to_the_bin_below_and_zero_to_the_first(self):
        edges = np.linspace(0, 1, 16)
        bins = calibration_bins(edges, np.ones(16, bool))
        assert bins.rows.tolist() == [2] + [1] * 14
        assert bins.confidence[0] == pytest.approx(edges[1] / 2)

    def test_confidence_of_exactly_one_shares_the_last_bin(self):
        bins = calibration_bins(np.array([0.95, 1.0, 1.0 + 1e-9]), np.array([True, False, True]))
        assert bins.rows.tolist() == [0] * 14 + [3]
        assert bins.accuracy[14] == pytest.approx(2 / 3)

    def test_a_value_above_one_by_rounding_changes_nothing_else(self):
        # torchmetrics takes the softmax of the whole batch when it sees one
        p, y = case(0)
        p[0] = [1 + 1e-7, 0, 0, 0]
        nearly = p.copy()
        nearly[0, 0] = 1.0
        assert expected_calibration_error(p, y) == pytest.approx(expected_calibration_error(nearly, y), abs=1e-8)

    def test_empty_bins_are_nan_in_the_diagram_and_nothing_in_the_error(self):
        bins = calibration_bins(np.array([0.5]), np.array([True]), 2)
        assert math.isnan(bins.accuracy[1])
        assert math.isnan(bins.confidence[1])
        assert calibration_error(bins) == 0.5

    @given(st.integers(0, 10**6))
    def test_lies_between_zero_and_one_and_order_does_not_matter(self, seed):
        p, y = case(seed, n=20)
        error = expected_calibration_error(p, y)
        assert 0 <= error <= 1
        assert expected_calibration_error(p[::-1], y[::-1]) == pytest.approx(error)

    @pytest.mark.parametrize("n", [200, 2000])
    def test_noise_of_a_calibrated_posterior(self, n):
        """Against labels that are drawn from the probabilities themselves."""
        rng = np.random.default_rng(n)
        confidence = rng.beta(4, 1.2, n)
        drawn = [calibration_error(calibration_bins(confidence, rng.random(n) < confidence)) for _ in range(2000)]
        mean, upper = calibration_noise(confidence)
        assert mean == pytest.approx(np.mean(drawn), rel=0.03)
        assert np.mean(np.array(drawn) > upper) == pytest.approx(0.05, abs=0.02)

    def test_images_of_a_lesion_that_are_right_and_wrong_together(self):
        """Four images of each lesion, alike: as many independent rows as lesions, so twice the noise."""
        rng = np.random.default_rng(0)
        of_lesion = rng.beta(4, 1.2, 300)
        lesion, confidence = np.repeat(np.arange(300), 4), np.repeat(of_lesion, 4)
        drawn = [
            calibration_error(calibration_bins(confidence, np.repeat(rng.random(300) < of_lesion, 4)))
            for _ in range(1000)
        ]
        mean, upper = calibration_noise(confidence, lesion)
        assert mean == pytest.approx(np.mean(drawn), rel=0.04)
        assert np.mean(np.array(drawn) > upper) == pytest.approx(0.05, abs=0.025)
        assert mean == pytest.approx(2 * calibration_noise(confidence)[0])
        assert calibration_noise(of_lesion, np.arange(300)) == pytest.approx(calibration_noise(of_lesion))

    def test_certainty_has_no_noise(self):
        assert calibration_noise(np.array([1.0, 0.0, 1.0 + 1e-9])) == (0.0, 0.0)

    def test_a_perfect_oracle_has_none(self):
        y = np.array([0, 1, 2, 1])
        assert expected_calibration_error(np.eye(3)[y], y) == 0
        assert classwise_calibration_error(np.eye(3)[y], y) == 0


class TestLikelihood:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("c", [2, 4])
    def test_equal_sklearn(self, seed, c):
        p, y = case(seed, c=c)
        labels = list(range(c))
        assert negative_log_likelihood(p, y) == pytest.approx(log_loss(y, p, labels=labels))
        theirs = brier_score_loss(y, p[:, 1]) if c == 2 else brier_score_loss(y, p, labels=labels)
        assert brier_score(p, y) == pytest.approx(theirs)

    @pytest.mark.parametrize("seed", range(3))
    def test_equal_the_naive_sums(self, seed):
        p, y = case(seed)
        rows = list(zip(p.tolist(), y.tolist(), strict=True))
        assert log_loss_by_row(p, y).tolist() == pytest.approx([-math.log(row[label]) for row, label in rows])
        brier = sum((value - (k == label)) ** 2 for row, label in rows for k, value in enumerate(row)) / len(rows)
        assert brier_score(p, y) == pytest.approx(brier)

    def test_by_hand(self):
        # -log 0.5 = 0.6931; (0.5 - 1)^2 + 0.3^2 + 0.2^2 = 0.38; for two classes (1 - 0.8)^2 = 0.04, once
        p = np.array([[0.5, 0.3, 0.2]])
        assert negative_log_likelihood(p, np.array([0])) == pytest.approx(math.log(2))
        assert brier_score(p, np.array([0])) == pytest.approx(0.38)
        assert brier_score(np.array([[0.8, 0.2]]), np.array([0])) == pytest.approx(0.04)

    def test_certainty(self):
        p = np.eye(2)
        assert negative_log_likelihood(p, np.array([0, 1])) == 0
        # the smallest probability is 2^-52: 36.04 nats
        assert log_loss_by_row(p, np.array([1, 0])).tolist() == pytest.approx([52 * math.log(2)] * 2)


def naive_sensitivity(score, positive, specificity):
    """Try every threshold."""
    best = 0.0
    for threshold in [*score.tolist(), math.inf]:
        called = score >= threshold
        if (~called[~positive]).mean() >= specificity:
            best = max(best, float(called[positive].mean()))
    return best


class TestSensitivity:
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("specificity", [0.0, 0.5, 0.9, 0.95, 1.0])
    def test_equals_every_threshold_and_the_roc_curve(self, seed, specificity):
        p, y = case(seed, n=60, c=2)
        score, positive = p[:, 1].round(2), y == 1
        found, threshold = sensitivity_at_specificity(score, positive, specificity)
        assert found == pytest.approx(naive_sensitivity(score, positive, specificity))
        assert found == pytest.approx(float((score[positive] >= threshold).mean()))
        assert (score[~positive] < threshold).mean() >= specificity
        false_positive, true_positive, _ = roc_curve(positive, score, drop_intermediate=False)
        assert found == pytest.approx(true_positive[false_positive <= 1 - specificity + 1e-12].max())

    def test_by_hand(self):
        # Negatives 0.1 0.2 0.3 0.4: specificity 3/4 needs a threshold above 0.3, and 0.35 and 0.9 of the positives
        # reach 0.35, 0.25 does not.
        score = np.array([0.1, 0.2, 0.3, 0.4, 0.25, 0.35, 0.9])
        positive = np.array([False] * 4 + [True] * 3)
        assert sensitivity_at_specificity(score, positive, 0.75) == pytest.approx((2 / 3, 0.35))

    def test_when_no_score_is_high_enough(self):
        assert sensitivity_at_specificity(np.array([0.5, 0.5]), np.array([True, False]), 1.0) == (0.0, math.inf)

    @pytest.mark.parametrize("positive", [[True, True], [False, False]])
    def test_one_sided_data_are_nan(self, positive):
        found = sensitivity_at_specificity(np.array([0.1, 0.9]), np.array(positive), 0.5)
        assert all(math.isnan(value) for value in found)


class TestTogether:
    def test_the_seven_figures(self):
        p, y = case(0)
        found = classification_metrics(p, y)
        acc, f1, recall = naive_counts(p.argmax(1).tolist(), y.tolist(), 4)
        assert found == pytest.approx(
            {
                "accuracy": acc,
                "macro_f1": f1,
                "balanced_accuracy": recall,
                "macro_auroc": float(np.mean([naive_auroc(p[:, c], y == c) for c in range(4)])),
                "ece": naive_ece(p.max(1).tolist(), (p.argmax(1) == y).tolist(), 15),
                "nll": log_loss(y, p),
                "brier": brier_score_loss(y, p),
            }
        )
        assert list(found) == ["accuracy", "macro_f1", "balanced_accuracy", "macro_auroc", "ece", "nll", "brier"]
        assert all(type(value) is float for value in found.values())

    @pytest.mark.parametrize("c", [2, 5])
    def test_one_row(self, c):
        p = np.full((1, c), 0.0)
        p[0, 1] = 1.0
        found = classification_metrics(p, np.array([1]))
        assert math.isnan(found.pop("macro_auroc"))
        assert found == {"accuracy": 1, "macro_f1": 1, "balanced_accuracy": 1, "ece": 0, "nll": 0, "brier": 0}

    def test_ties_are_predicted_as_the_first_class(self):
        found = classification_metrics(np.full((2, 2), 0.5), np.array([0, 1]))
        assert found["accuracy"] == 0.5
        assert found["balanced_accuracy"] == 0.5
