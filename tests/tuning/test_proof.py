from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.stats import binom
from tests.simulations import certificates as simulated

from tdumpra.core.significance import betting_stakes, betting_test, sign_flip_test
from tdumpra.method.outputs import ValidationOutputs
from tdumpra.tuning.proof import Halves

USED = "bets, recalculated stakes"
SMALL = [each for each in simulated.NULLS if each.lesions <= 700]


def most_wrong(runs: int) -> float:
    """The share of false proofs that a test of this level exceeds once in a thousand times."""
    return float(binom.ppf(0.999, runs, simulated.LEVEL)) / runs


class TestLevel:
    @pytest.mark.parametrize("scenario", SMALL, ids=lambda each: each.name)
    def test_without_a_gain_few_proofs_succeed(self, scenario):
        assert scenario.mean == pytest.approx(0)
        assert simulated.rates(scenario, [USED], runs=300)[USED] <= most_wrong(300)

    @pytest.mark.parametrize("name", ["fixes single, few breaks in 10", "fixes single, breaks in 8"])
    def test_the_sign_flip_test_would_let_too_many_succeed(self, name):
        """What certificates stood on before; the same runs, the same limit."""
        scenario = next(each for each in simulated.NULLS if each.name == name)
        found = simulated.rates(scenario, ["sign flip", USED], runs=300)
        assert found["sign flip"] > most_wrong(300) >= found[USED]

    def test_a_gain_is_found(self):
        """Of the tests that keep the level at any number of lesions, none finds more."""
        scenario = next(each for each in simulated.GAINS if "700 lesions, 32 fixed" in each.name)
        found = simulated.rates(scenario, runs=300)
        assert found[USED] > 0.7
        assert found[USED] >= max(found[name] for name in found if name.startswith(("bets", "empirical")))

    @pytest.mark.campaign
    @pytest.mark.parametrize("scenario", simulated.NULLS, ids=lambda each: each.name)
    def test_two_thousand_runs(self, scenario):
        found = simulated.rates(scenario)
        assert found[USED] <= most_wrong(simulated.RUNS)
        assert found == pytest.approx(kept("no gain")[scenario.name])

    @pytest.mark.campaign
    @pytest.mark.parametrize("scenario", simulated.GAINS, ids=lambda each: each.name)
    def test_two_thousand_runs_with_a_gain(self, scenario):
        assert simulated.rates(scenario) == pytest.approx(kept("gain")[scenario.name])


def kept(part: str) -> dict[str, dict[str, float]]:
    return {each["scenario"]: each["rejected"] for each in json.loads(simulated.TARGET.read_text())[part]}


def test_the_kept_figures_are_of_these_scenarios():
    assert list(kept("no gain")) == [each.name for each in simulated.NULLS]
    assert list(kept("gain")) == [each.name for each in simulated.GAINS]
    assert max(each[USED] for each in kept("no gain").values()) <= most_wrong(simulated.RUNS)


@pytest.mark.parametrize(
    ("part", "tests"),
    [
        ("no gain", ["sign flip", USED, "studentised bootstrap"]),
        ("gain", ["sign flip", USED, "bets, one stake", "bets, mean over stakes", "empirical Bernstein"]),
    ],
)
def test_the_page_shows_the_kept_figures(part, tests):
    page = (simulated.TARGET.parents[1] / "certificates.md").read_text()
    for name, found in kept(part).items():
        assert f"| {name} | {' | '.join(f'{100 * found[test]:.1f}' for test in tests)} |" in page


def test_the_simulated_sign_flip_test_is_the_library_s():
    draws = simulated.drawn(next(each for each in simulated.NULLS if each.name.endswith("6 to 10")), 10, 0)
    expected = [sign_flip_test(each.astype(np.int64), alternative="greater") for each in draws.uncapped]
    assert simulated.sign_flip(draws) == pytest.approx(expected)


def outputs(sizes, classes) -> ValidationOutputs:
    """Rows of lesions with so many images of these classes."""
    y = np.repeat(classes, sizes)
    lesion = np.repeat(np.arange(len(sizes)), sizes)
    p = torch.full((len(y), 4), 0.25)
    return ValidationOutputs(p=p, z=p, y=torch.from_numpy(y), groups=np.array([f"{i:04}" for i in lesion]))


def halves(design_sizes, proof_sizes, *, classes=None, harm=0.05, design_classes=0, proof_classes=0) -> Halves:
    design, proof = (
        outputs(sizes, np.broadcast_to(of, len(sizes)))
        for sizes, of in ((design_sizes, design_classes), (proof_sizes, proof_classes))
    )
    return Halves(design, proof, classes or {}, harm)


def rows(sizes, gains) -> np.ndarray:
    """What is gained in each row of lesions that gain so much in all."""
    return np.concatenate([np.sign(g) * (np.arange(s) < abs(g)) for s, g in zip(sizes, gains, strict=True)]).astype(int)


class TestGain:
    def test_equals_the_bets_in_a_fixed_random_order(self):
        rng = np.random.default_rng(1)
        design_sizes, proof_sizes = rng.integers(1, 4, size=(2, 90))
        design, proof = (rng.choice([-1, 0, 0, 1, 1], size=90) for _ in range(2))
        shown = halves(design_sizes, proof_sizes).test(
            rows(design_sizes, design), rows(proof_sizes, proof), level=0.05, first_level=0.05
        )
        gains = proof[np.random.default_rng(0).permutation(90)].astype(float)
        stakes = betting_stakes(gains, squares=float((design**2).sum() + 1), bound=3, level=0.05)
        assert shown.p_gain == shown.p_value == pytest.approx(float(betting_test(gains, stakes)))

    @pytest.mark.parametrize("place", range(0, 100, 20))
    def test_one_lost_lesion_does_not_decide(self, place):
        """Wherever it comes: the worst lesion of the first half costs three quarters of the capital, not all of it."""
        sizes, gains = (np.roll(column, place) for column in ([3] + [1] * 99, [-3] + [1] * 40 + [0] * 59))
        shown = halves(sizes, sizes).test(rows(sizes, gains), rows(sizes, gains), level=0.05, first_level=0.05)
        assert shown.p_gain <= 0.05

    def test_single_images_take_the_sign_test(self):
        sizes, gains = np.ones(60, dtype=int), np.array([1] * 14 + [-1] * 4 + [0] * 42)
        shown = halves(sizes, sizes).test(gains, gains, level=0.05, first_level=0.05)
        assert shown.p_gain == pytest.approx(binom.sf(13, 18, 0.5))

    def test_a_lesion_counts_for_no_more_images_than_the_largest_of_the_first_half(self):
        ones, pairs = np.ones(60, dtype=int), np.full(60, 2)
        gains = np.array([1] * 14 + [0] * 46)
        shown = halves(ones, pairs).test(gains, rows(pairs, gains), level=0.05, first_level=0.05)
        assert shown.p_gain == 1.0  # half a lesion is rounded down
        whole = halves(ones, pairs).test(gains, rows(pairs, 2 * gains), level=0.05, first_level=0.05)
        assert whole.p_gain == pytest.approx(2**-14)

    def test_large_lesions_that_the_gate_leaves_alone_count_too(self):
        """They might have been broken: what one lesion can cost is what matters."""
        gains = np.array([1] * 20 + [-1] * 2 + [0] * 78)
        p_values = []
        for largest in (2, 10):
            sizes = np.array([1] * 99 + [largest])
            each = halves(sizes, sizes)
            assert each.most_images == largest
            p_values.append(each.test(rows(sizes, gains), rows(sizes, gains), level=0.05, first_level=0.05).p_gain)
        assert p_values[0] < 0.05 < p_values[1]


class TestHarm:
    sizes = np.ones(300, dtype=int)
    of = np.arange(300) % 3

    def shown(self, gains, harm=0.05):
        each = halves(
            self.sizes, self.sizes, classes={"mel": 1}, harm=harm, design_classes=self.of, proof_classes=self.of
        )
        return each.test(gains, gains, level=0.025, first_level=0.025)

    def test_a_class_that_loses_nothing(self):
        gains = np.where((self.of == 0) & (np.arange(300) < 60), 1, 0)
        (harm,) = self.shown(gains).harm
        assert (harm.name, harm.images, harm.fixed, harm.broken) == ("mel", 100, 0, 0)
        least = 40 ** (1 / 100) - 1  # at the full stake (1 + delta)^100 = 40, where gain and class share 5 %
        assert least <= harm.upper <= 1.1 * least
        assert self.shown(gains).p_value <= 0.05

    def test_a_class_that_pays_for_the_others(self):
        gains = np.where((self.of == 0) & (np.arange(300) < 90), 1, 0) - np.where(
            (self.of == 1) & (np.arange(300) < 24), 1, 0
        )
        shown = self.shown(gains)
        assert shown.p_gain < 0.01
        assert shown.p_value == 1.0
        assert (shown.harm[0].fixed, shown.harm[0].broken) == (0, 8)
        assert 0.08 < shown.harm[0].upper < 0.3

    def test_the_bound_and_the_decision_agree(self):
        gains = np.where(self.of == 0, 1, 0) - np.where((self.of == 1) & (np.arange(300) < 9), 1, 0)
        for harm in (0.05, 0.1, 0.15, 0.2):
            shown = self.shown(gains, harm)
            assert (shown.p_value <= 0.05) == (shown.harm[0].upper <= harm)


class TestPower:
    def test_what_is_foreseen_comes_true(self):
        """The gain of which it says that it is proven with a chance of 80 %, drawn 300 times."""
        rng = np.random.default_rng(0)
        sizes = rng.integers(1, 4, size=400)
        design = np.where(np.arange(400) < 60, np.where(np.arange(400) < 40, 1, -1), 0)
        each = halves(sizes, sizes)
        power = each.foresee(rows(sizes, design), 0.05)
        assert (power.lesions, power.changed) == (400, 60)
        assert power.gain is not None
        share = (power.gain * sizes.sum() / 100 / 60 + 1) / 2
        gains = np.where(np.arange(400) < 60, np.where(rng.random((300, 400)) < share, 1.0, -1.0), 0)
        gains = rng.permuted(gains, axis=1)
        stakes = betting_stakes(gains, squares=61.0, bound=3, level=0.05)
        assert (betting_test(gains, stakes) <= 0.05).mean() == pytest.approx(0.8, abs=0.08)

    def test_it_does_not_look_at_the_labels_of_the_second_half(self):
        sizes, gains = np.ones(80, dtype=int), np.array([1] * 12 + [0] * 68)
        found = [
            halves(sizes, sizes, classes={"a": 0}, proof_classes=of).foresee(gains, 0.05)
            for of in (0, np.arange(80) % 2)
        ]
        assert found[0] == found[1]

    def test_too_few_lesions_for_any_proof(self):
        sizes = np.array([1] * 79 + [6])
        power = halves(sizes, sizes).foresee(rows(sizes, np.array([1] * 8 + [0] * 72)), 0.05)
        assert power.gain is None
        assert power.best_chance == 0.0

    def test_the_least_bound_of_a_class_is_that_of_a_class_which_loses_nothing(self):
        sizes = np.ones(200, dtype=int)
        each = halves(sizes, sizes, classes={"a": 0, "b": 1}, design_classes=np.arange(200) % 2)
        power = each.foresee(np.array([1] * 30 + [0] * 170), 0.05)
        least = 20 ** (1 / 100) - 1
        assert all(least <= each <= 1.1 * least for each in power.least_harm)
