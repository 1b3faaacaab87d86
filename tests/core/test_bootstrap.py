from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    log_loss,
    roc_auc_score,
)

from tdumpra.core import bootstrap, metrics
from tdumpra.core.bootstrap import (
    Draws,
    MetricSums,
    around_whole,
    bootstrap_metrics,
    group_weights,
    percentile_interval,
    point_name,
)

Array = np.ndarray


def make(seed: int, n: int, n_classes: int, *, ties: bool = False) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    y = rng.choice(n_classes, n, p=softmax(-np.arange(n_classes)))
    y[: 3 * n_classes] = np.repeat(np.arange(n_classes), 3)
    p = softmax(1.5 * np.eye(n_classes)[y] + rng.normal(size=(n, n_classes)), axis=1)
    if ties:
        p = p.round(1) + 1e-3
        p /= p.sum(1, keepdims=True)
    return p, y, np.unique(rng.integers(n // 2, size=n), return_inverse=True)[1]


def by_scikit_learn(p: Array, y: Array) -> dict[str, float]:
    """The seven metrics by scikit-learn, the calibration error by its definition."""
    label, classes = p.argmax(1), range(p.shape[1])
    ece = 0.0
    for b in range(15):
        inside = (p.max(1) > b / 15) & (p.max(1) <= (b + 1) / 15)
        if inside.any():
            ece += inside.mean() * abs((label == y)[inside].mean() - p.max(1)[inside].mean())
    truth = np.eye(p.shape[1])[y]
    area = (
        roc_auc_score(y, p[:, 1]) if p.shape[1] == 2 else roc_auc_score(y, p, multi_class="ovr", labels=list(classes))
    )
    return {
        "accuracy": accuracy_score(y, label),
        "macro_f1": f1_score(y, label, average="macro"),
        "balanced_accuracy": balanced_accuracy_score(y, label),
        "macro_auroc": area,
        "ece": ece,
        "nll": log_loss(y, p, labels=list(classes)),
        "brier": ((p - truth) ** 2).sum(1).mean() / (2 if p.shape[1] == 2 else 1),
    }


class TestWeightedMetrics:
    @pytest.mark.parametrize("n_classes", [2, 4])
    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_weights_are_copies_of_rows(self, seed, n_classes, ties):
        p, y, member = make(seed, 300, n_classes, ties=ties)
        w = next(group_weights(member, n_replicates=5, seed=seed))
        found = MetricSums.prepare(p, y).metrics(w)
        for b in range(5):
            rows = np.repeat(np.arange(len(y)), w[:, b].astype(int))
            expected = by_scikit_learn(p[rows], y[rows])
            assert {name: values[b] for name, values in found.items()} == pytest.approx(expected, abs=1e-9)

    @pytest.mark.parametrize("n_classes", [2, 3, 7])
    def test_weights_of_one_are_the_plain_metrics(self, n_classes):
        p, y, _ = make(3, 200, n_classes)
        found = MetricSums.prepare(p, y).metrics(np.ones((200, 1)))
        assert list(found) == list(metrics.METRICS)
        plain = metrics.classification_metrics(p, y)
        assert {name: value[0] for name, value in found.items()} == pytest.approx(plain, abs=1e-12)

    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize("n_classes", [2, 4])  # the first class is more than half of the rows, the others less
    def test_sensitivity_at_a_specificity_is_that_of_copies(self, n_classes, ties):
        p, y, member = make(2, 240, n_classes, ties=ties)
        assert (y == 0).mean() > 0.5
        w = next(group_weights(member, n_replicates=6, seed=1))
        specificities = (0.0, 0.5, 0.8, 0.95, 1.0)
        found = MetricSums.prepare(p, y, points=dict.fromkeys(range(n_classes), specificities)).metrics(w)
        for b in range(6):
            rows = np.repeat(np.arange(len(y)), w[:, b].astype(int))
            for c in range(n_classes):
                for each in specificities:
                    expected, _ = metrics.sensitivity_at_specificity(p[rows, c], y[rows] == c, each)
                    assert found[point_name(c, each)][b] == pytest.approx(expected, abs=1e-12), (b, c, each)

    @pytest.mark.parametrize("drawn", [0, 1])
    def test_one_class_alone_has_no_operating_point(self, drawn):
        p, y, _ = make(0, 60, 2)
        points = {0: (0.8,), 1: (0.8,)}
        found = MetricSums.prepare(p, y, points=points).metrics((y == drawn).astype(float)[:, None])
        assert np.isnan(found[point_name(0, 0.8)]).all()
        assert np.isnan(found[point_name(1, 0.8)]).all()

    def test_by_hand(self):
        # labels 0 1 1, predicted 0 1 0; the second row counts twice and the third not at all
        p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        found = MetricSums.prepare(p, np.array([0, 1, 1])).metrics(np.array([[1.0], [2.0], [0.0]]))
        assert found["accuracy"] == [1.0]
        assert found["ece"] == pytest.approx([(0.1 + 2 * 0.2) / 3])  # right where sure of 0.9, and twice of 0.8
        assert found["brier"] == pytest.approx([(0.01 + 2 * 0.04) / 3])
        assert found["nll"] == pytest.approx([-(np.log(0.9) + 2 * np.log(0.8)) / 3])

    def test_a_class_that_was_not_drawn_is_left_out(self):
        p, y, _ = make(0, 60, 3)
        w = np.where(y == 2, 0.0, 1.0)[:, None]
        kept = y != 2
        found = {name: value[0] for name, value in MetricSums.prepare(p, y).metrics(w).items()}
        assert found == pytest.approx(metrics.classification_metrics(p[kept], y[kept]), abs=1e-12)

    def test_what_a_replicate_does_not_define_is_nan(self):
        p, y, _ = make(0, 60, 3)
        one_class = MetricSums.prepare(p, y).metrics((y == 0).astype(float)[:, None])
        assert np.isnan(one_class["macro_auroc"]).all()
        assert np.isfinite(one_class["balanced_accuracy"]).all()

    def test_further_means(self):
        p, y, member = make(0, 100, 3)
        cost = np.arange(100.0)
        w = next(group_weights(member, n_replicates=3, seed=0))
        found = MetricSums.prepare(p, y, {"cost": cost}).metrics(w)["cost"]
        assert found == pytest.approx((w * cost[:, None]).sum(0) / w.sum(0), abs=1e-12)


class TestGroups:
    def test_rows_of_a_group_are_drawn_together(self):
        member = np.array([0, 0, 1, 2, 2, 2])
        for w in group_weights(member, n_replicates=150, seed=1):
            assert (w[0] == w[1]).all()
            assert (w[3] == w[4]).all()
            assert (w[4] == w[5]).all()
            assert (w[0] + w[2] + w[3] == 3).all()  # three groups are drawn

    def test_the_seed_decides(self):
        member = np.arange(50)
        first, again, other = (
            np.concatenate(list(group_weights(member, n_replicates=100, seed=s)), axis=1) for s in (0, 0, 1)
        )
        assert (first == again).all()
        assert (first != other).any()

    def test_a_replicate_draws_each_group_once_on_average(self):
        w = np.concatenate(list(group_weights(np.arange(20), n_replicates=2000, seed=0)), axis=1)
        assert w.mean(1) == pytest.approx(np.ones(20), abs=0.1)

    def test_posteriors_share_their_replicates(self):
        p, y, member = make(0, 120, 3)
        sums = MetricSums.prepare(p, y)
        draws = Draws.make(member, n_replicates=70, seed=0)
        one, other = (bootstrap_metrics(sums.metrics, draws.weights())["accuracy"] for _ in range(2))
        assert len(one) == 70
        assert (one == other).all()

    def test_the_interval_widens_with_the_groups(self):
        """Four copies of each lesion are no four lesions: the interval must be that of the lesions alone."""
        p, y, _ = make(0, 100, 3)
        copies = np.repeat(np.arange(100), 4)
        widths = []
        for rows, member in ((np.arange(100), np.arange(100)), (copies, copies), (copies, np.arange(400))):
            sums = MetricSums.prepare(p[rows], y[rows])
            draws = Draws.make(member, n_replicates=1000, seed=0)
            low, high = percentile_interval(bootstrap_metrics(sums.metrics, draws.weights())["accuracy"], 0.95)
            widths.append(high - low)
        assert widths[1] == pytest.approx(widths[0], rel=0.15)
        assert widths[2] < 0.6 * widths[0]


def test_percentiles():
    values = np.arange(101.0)
    assert percentile_interval(values, 0.9) == pytest.approx((5.0, 95.0))
    assert percentile_interval(np.append(values, np.nan), 0.9) == pytest.approx((5.0, 95.0))
    assert np.isnan(percentile_interval(np.array([np.nan]), 0.9)).all()


class TestPartOfTheRows:
    """Of many rows, the replicates of a part of the groups stand for those of all."""

    def test_intervals_agree_with_those_of_all_rows(self, monkeypatch):
        p, y, member = make(3, 12_000, 4)
        sums = MetricSums.prepare(p, y, points={1: (0.9,)})
        plain = bootstrap_metrics(sums.metrics, group_weights(member, n_replicates=400, seed=0))
        monkeypatch.setattr(bootstrap, "BOOTSTRAPPED_ROWS", 4000)
        draws = Draws.make(member, n_replicates=400, seed=0)
        assert draws.rows is not None
        assert 3900 <= len(draws.rows) <= 4000
        assert not np.isin(member[draws.rows], np.delete(member, draws.rows)).any()  # no group is torn apart
        part = MetricSums.prepare(p[draws.rows], y[draws.rows], points={1: (0.9,)})
        whole = {metric: float(values[0]) for metric, values in sums.metrics(np.ones((len(y), 1))).items()}
        moved = around_whole(
            bootstrap_metrics(part.metrics, draws.weights()),
            part.metrics(np.ones((len(draws.rows), 1))),
            whole,
            draws.scale,
        )
        for metric, value in whole.items():
            (low, high), (lowest, highest) = (percentile_interval(each[metric], 0.95) for each in (plain, moved))
            assert highest - lowest == pytest.approx(high - low, rel=0.3), metric
            assert lowest < value < highest, metric

    def test_a_replicate_that_draws_every_group_once_is_the_figure_itself(self):
        found = around_whole({"nll": np.array([0.7, 0.8])}, {"nll": np.array([0.7])}, {"nll": 0.5}, 0.1)
        assert found["nll"] == pytest.approx([0.5, 0.51])

    def test_shares_stay_shares(self):
        found = around_whole({"accuracy": np.array([1.0])}, {"accuracy": np.array([0.8])}, {"accuracy": 0.95}, 0.5)
        assert found["accuracy"] == 1


class TestManyClasses:
    def test_the_mean_area_follows_the_weights_to_first_order(self, monkeypatch):
        rng = np.random.default_rng(0)
        y = np.arange(3000) % 30
        p = softmax(1.2 * np.eye(30)[y] + rng.normal(size=(3000, 30)), axis=1)
        weights = list(group_weights(np.arange(3000) // 2, n_replicates=192, seed=0))
        exact = bootstrap_metrics(MetricSums.prepare(p, y).metrics, weights)
        monkeypatch.setattr(bootstrap, "MOST_CURVES", 20)
        found = bootstrap_metrics(MetricSums.prepare(p, y).metrics, weights)
        for metric in exact.keys() - {"macro_auroc"}:
            np.testing.assert_array_equal(found[metric], exact[metric])
        assert np.corrcoef(found["macro_auroc"], exact["macro_auroc"])[0, 1] > 0.99
        assert found["macro_auroc"].std() == pytest.approx(exact["macro_auroc"].std(), rel=0.1)
        assert found["macro_auroc"].mean() == pytest.approx(exact["macro_auroc"].mean(), abs=1e-3)

    def test_weights_of_one_are_the_plain_metrics(self, monkeypatch):
        p, y, _ = make(0, 200, 7, ties=True)
        monkeypatch.setattr(bootstrap, "MOST_CURVES", 5)
        found = MetricSums.prepare(p, y).metrics(np.ones((200, 1)))
        assert found["macro_auroc"][0] == pytest.approx(metrics.macro_auroc(p, y), abs=1e-12)

    def test_a_class_alone_has_no_influence(self):
        assert metrics.auroc_influence(np.full((4, 3), 1 / 3), np.ones(4, dtype=np.int64)).tolist() == [0.0] * 4
