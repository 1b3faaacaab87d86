"""The tools behind the study's figures: what they read, keep, count and refuse."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import cost, recount, saved_outputs, sites, tried
from benchmarks import headline as headline_of
from benchmarks.common import add_to, seed_of
from benchmarks.headline import WITH_BANK, WITHOUT_BANK
from benchmarks.opinions import Rows, joined, stacked
from benchmarks.posteriors import halved

from tdumpra.core.calibration import apply_temperature, fit_temperature
from tdumpra.core.metrics import classification_metrics, sensitivity_at_specificity

ROOT = Path(__file__).resolve().parents[1]


def test_time_follows_the_measured_points():
    points = cost.measured("h200")
    for share, ratio in points:
        assert cost.times("h200", share) == pytest.approx(ratio)
    (x, y), (x2, y2) = points[-2:]
    assert cost.times("h200", 1.0) == pytest.approx(y2 + (1 - x2) * (y2 - y) / (x2 - x))


def test_asking_always_is_the_mean_and_never_the_first():
    rng = np.random.default_rng(0)
    p, second = rng.dirichlet(np.ones(3), 50), rng.dirichlet(np.ones(3), 50)
    rows = cost.Rows(p, second, np.zeros(50, int), np.arange(50))
    assert np.array_equal(rows.at(cost.THETA[0]), p)
    assert np.allclose(rows.at(cost.THETA[-1]), (p + second) / 2)
    assert (rows.asked(cost.THETA[0]), rows.asked(cost.THETA[-1])) == (0.0, 1.0)


def test_a_headline_is_the_mean_over_seeds_and_draws_them(tmp_path):
    rng = np.random.default_rng(5)
    n = 400
    y = rng.integers(0, 7, n)
    kept: dict[str, np.ndarray] = {
        "image": np.arange(n), "lesion": np.arange(n) // 2, "y": y.astype(np.uint8), "fold": (np.arange(n) % 2),
        "classes": np.array(["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]), "theta": np.array(0.5),
        "gate_theta": np.array([0.4, 0.6]),
    }  # fmt: skip
    paths = []
    for seed, skill in enumerate((0.05, 0.3)):  # two seeds far apart
        rows = {}
        for name in (*WITHOUT_BANK, *WITH_BANK, "eight"):
            p = rng.dirichlet(np.ones(7), n) + skill * np.eye(7)[y]
            rows[name] = halved(p / p.sum(1, keepdims=True))
        paths.append(tmp_path / f"seed-{seed}.npz")
        saved_outputs.write(paths[-1], kept | rows)
    test, seeds, asked = headline_of.read(paths)
    found = headline_of.document(test, seeds)
    for name, of_row in found["rows"].items():
        by_hand = [np.mean(p[name].argmax(1) == y) for p in seeds]
        assert of_row["accuracy"][0] == pytest.approx(np.mean(by_hand))
        alone = found["by_seed"][name]["accuracy"]
        assert [each[0] for each in alone] == pytest.approx(by_hand)
        # a quarter of the draws has the worse seed twice, a quarter the better one: the interval holds both
        assert of_row["accuracy"][1] < alone[0][2] < alone[1][1] < of_row["accuracy"][2]
    lead = found["leads"]["gate"]["ensemble"]
    ahead = [np.mean(p["gate"].argmax(1) == y) - np.mean(p["ensemble"].argmax(1) == y) for p in seeds]
    assert lead["accuracy"][0] == pytest.approx(np.mean(ahead))
    assert [each[0] for each in lead["by_seed"]["accuracy"]] == pytest.approx(ahead)
    below = [p["temperature"].max(1) < kept["gate_theta"][kept["fold"]] for p in seeds]
    assert asked["gate"] == pytest.approx(np.mean(below))
    (tmp_path / "headline.json").write_text(json.dumps(found), encoding="utf-8")
    assert recount.main(tmp_path / "headline.json", *paths) == 0
    saved_outputs.write(paths[1], kept | rows | {"image": np.arange(n)[::-1]})
    with pytest.raises(SystemExit, match="differ in their test images"):
        headline_of.read(paths)


def test_half_precision_keeps_labels():
    p = np.array([[0.33333, 0.33334, 0.33333], [0.2, 0.5, 0.3]])
    assert halved(p).argmax(1).tolist() == p.argmax(1).tolist()
    p = np.array([[0.49999, 0.50001, 0.0]])  # both are a half in half precision
    assert p.astype(np.float16).argmax(1).tolist() == [0]
    assert halved(p).argmax(1).tolist() == [1]


def planted(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Outputs of a fold, as the study saves them: a classifier that is often right, a second one in a space."""
    y = np.tile(np.arange(7), n // 7)
    p = rng.dirichlet(np.ones(7), n) + 0.7 * np.eye(7)[y]
    p_second = rng.dirichlet(np.ones(7), n) + 0.7 * np.eye(7)[y]
    z = (np.eye(7)[y] + 0.3 * rng.normal(size=(n, 7))).astype(np.float16)
    names = np.array([f"image_{i}" for i in range(n)])
    return {
        "id": names, "group": names, "y": y.astype(np.int8), "split": np.repeat([0, 1, 2], n // 3).astype(np.int8),
        "p": p / p.sum(1, keepdims=True), "p_second": p_second / p_second.sum(1, keepdims=True),
        "z": z, "features": z, "features_second": z,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:n_prototypes")
def test_views_are_read_by_the_names_of_images(tmp_path):
    rng = np.random.default_rng(0)
    own = planted(420, rng)
    n_train = int((own["split"] == 0).sum())
    order = np.concatenate([np.arange(n_train), n_train + rng.permutation(420 - n_train)])  # another order
    views = {"id": own["id"][order], **dict.fromkeys(("stage3", "stage5"), own["z"][order])}
    for view, who in itertools.product(("eight", "grey", "zoom", "lesion"), ("classifier", "second")):
        whole = view in ("grey", "lesion")
        views[f"{view}_{who}_logits"] = np.log(own["p_second"])[order][n_train:]
        views[f"{view}_{who}_z"] = own["z"][order][0 if whole else n_train :]
    saved_outputs.write(tmp_path / "fold-0-seed-0.npz", own)
    saved_outputs.write(tmp_path / "views-fold-0-seed-0.npz", views)
    for rows in tried.read_views(tmp_path / "fold-0-seed-0.npz")[:2]:
        assert np.allclose(rows.opinions["eight_second"], rows.opinions["p_second"], atol=1e-6)
        for name in ("stage3", "features", "grey_bank", "zoom_bank", "unseen"):
            assert (rows.opinions[name].argmax(1) == rows.y).mean() > 0.9, name
    wanted = {name for each in tried.ATTEMPTS.values() for name in (*each.opinions, *each.rival)}
    assert wanted - rows.opinions.keys() == {"regular_second", "regular_bank"}
    saved_outputs.write(tmp_path / "regular-0-seed-0.npz", {**own, "p_second": own["p"]})
    saved_outputs.write(tmp_path / "views-fold-0-seed-0.npz", {k: v for k, v in views.items() if "lesion" not in k})
    both = tried.read_views(tmp_path / "fold-0-seed-0.npz")[:2]
    for each in both:  # a network that memorises less, and data without masks
        assert np.allclose(each.opinions["regular_second"], each.opinions["p"])
        assert np.allclose(each.opinions["regular_bank"], each.opinions["bank"])
        assert wanted - each.opinions.keys() == {"lesion_second", "lesion_bank"}
    assert joined([both[0], rows]).opinions.keys() == both[0].opinions.keys() & rows.opinions.keys()


def test_chance_of_a_difference():
    drawn = np.concatenate([[1.96], np.random.default_rng(0).normal(1.96, 1, 100_000)])
    assert tried.chance(drawn) == pytest.approx(0.05, abs=0.002)


def test_stacks_take_rows_of_choice_without_a_class():
    rng = np.random.default_rng(3)
    own = planted(420, rng)
    opinions = {"p": np.log(own["p"])}
    rows = Rows(opinions, own["y"].astype(int), own["group"])
    p = stacked(rows.take(rows.y != 3), ("p",), rows)
    assert p.shape == (420, 7)
    assert np.allclose(p.sum(1), 1)
    assert (p.argmax(1) != 3).all()


def test_files_of_one_seed_are_taken_together():
    assert seed_of([Path("fold-0-seed-1.npz"), Path("x/fold-1-seed-1.npz")]) == 1
    assert seed_of([Path("site_rosendahl_seed0.npz")]) == 0
    for names in (("fold-0-seed-0.npz", "fold-0-seed-1.npz"), ("fold-0.npz",)):
        with pytest.raises(SystemExit, match="files of one seed"):
            seed_of([Path(name) for name in names])


def test_a_file_keeps_what_it_has_of_others(tmp_path):
    path = tmp_path / "sites.json"
    add_to(path, [{"site": "a", "x": 1}, {"site": "b", "x": 2}], ("site",))
    add_to(path, [{"site": "a", "x": 3}], ("site",))
    assert json.loads(path.read_text(encoding="utf-8")) == [{"site": "a", "x": 3}, {"site": "b", "x": 2}]


def test_accuracy_at_other_shares_is_weighted_recall():
    p = np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.1, 0.9]])
    rows = sites.Rows(p, np.zeros((4, 2)), np.array([0, 0, 0, 1]), np.arange(4), None)
    each = sites.Judged(rows, {"classifier": p}, np.zeros(4, bool))
    assert sites.at_these_shares(each, np.array([0.5, 0.5])) == pytest.approx((2 / 3 + 1) / 2)


def test_a_recount_agrees_with_the_package():
    import torch

    rng = np.random.default_rng(1)
    y = rng.integers(0, 4, 300)
    p = rng.dirichlet(np.ones(4), 300) + 0.8 * np.eye(4)[y]
    p /= p.sum(1, keepdims=True)
    y[::4] = rng.integers(0, 4, 75)  # so that no posterior deserves to be sure
    mine, ours = recount.counted(p, y, 2), classification_metrics(p, y)
    assert {name: mine[name] for name in ours if name in mine} == pytest.approx(
        {name: value for name, value in ours.items() if name in mine}
    )
    assert mine["melanoma_at_90"] == pytest.approx(sensitivity_at_specificity(p[:, 2], y == 2, 0.9)[0])
    choice = np.arange(300) < 100
    temperature = fit_temperature(torch.from_numpy(p[choice]).log(), torch.from_numpy(y[choice]))
    expected = apply_temperature(torch.from_numpy(p), temperature).numpy()
    assert recount.calibrated(p, choice, y) == pytest.approx(expected, abs=1e-6)


def test_a_recount_shares_no_code():
    assert "tdumpra" not in (ROOT / "benchmarks" / "recount.py").read_text(encoding="utf-8")
