"""How often a certificate's test is wrong, and how often it proves what is there: old and new test, and candidates.

A population is a list of kinds of lesions: how many images, what a gate gains in it, and how frequent it is. Both
halves of validation are drawn from it; the first sets the terms, the second is tested. ``python -m
tests.simulations.certificates`` writes ``docs/results/certificates.json``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tdumpra.core.significance import betting_stakes, betting_test
from tdumpra.tuning.proof import AT_RISK

Array = np.ndarray
LEVEL = 0.05
RUNS = 2000
TARGET = Path(__file__).parents[2] / "docs" / "results" / "certificates.json"
HAM_SIZES = {1: 0.75, 2: 0.19, 3: 0.053, 4: 0.005, 6: 0.002}  # share of HAM10000's lesions, rounded
ONE_TO_TEN = dict.fromkeys(range(1, 11), 0.1)


class Kind(NamedTuple):
    """Lesions of so many images in which the gate gains so many; ``expected`` of them are among the lesions."""

    images: int
    gain: int
    expected: float


@dataclass(frozen=True)
class Scenario:
    """A number of lesions, the sizes of those that the gate leaves alone, and those that it changes."""

    name: str
    lesions: int
    sizes: dict[int, float]
    changed: tuple[Kind, ...]

    @property
    def mean(self) -> float:
        """Return the net images gained that are expected."""
        return sum(kind.gain * kind.expected for kind in self.changed)

    def draw(self, rng: np.random.Generator, runs: int) -> tuple[Array, Array]:
        """Return gains and sizes of lesions, runs × lesions."""
        alone = 1 - sum(kind.expected for kind in self.changed) / self.lesions
        of_kind = [(kind.images, kind.gain, kind.expected / self.lesions) for kind in self.changed]
        total = sum(self.sizes.values())
        of_kind += [(size, 0, alone * share / total) for size, share in self.sizes.items()]
        images, gains, chances = (np.array(column) for column in zip(*of_kind, strict=True))
        drawn = np.searchsorted(np.cumsum(chances)[:-1], rng.random((runs, self.lesions)), side="right")
        return gains[drawn].astype(float), images[drawn]


def whole(sizes: Iterable[int], expected: float, sign: int) -> tuple[Kind, ...]:
    """Spread ``expected`` images evenly over lesions of these sizes that are wholly fixed or wholly broken."""
    sizes = tuple(sizes)
    return tuple(Kind(size, sign * size, expected / len(sizes) / size) for size in sizes)


def ham(lesions: int, fixed: float, broken: float) -> tuple[Kind, ...]:
    """Fix and break so many lesions of HAM10000's sizes; a larger one changes in one image or in all."""
    kinds = []
    for size, share in HAM_SIZES.items():
        for gain in {1, size}:
            part = share / len({1, size})
            kinds += [Kind(size, gain, fixed * part), Kind(size, -gain, broken * part)]
    return tuple(kinds)


NULLS = (
    Scenario("nothing changes", 700, ONE_TO_TEN, ()),
    Scenario("single images", 700, {1: 1.0}, (Kind(1, 1, 20), Kind(1, -1, 20))),
    Scenario("HAM10000's sizes, even", 285, HAM_SIZES, ham(285, 20, 20)),
    Scenario("groups of 1 to 10, even", 700, ONE_TO_TEN, whole(range(1, 11), 100, 1) + whole(range(1, 11), 100, -1)),
    Scenario("fixes single, breaks in 3", 700, ONE_TO_TEN, whole([1], 40, 1) + whole([3], 40, -1)),
    Scenario("fixes single, breaks in 6", 700, ONE_TO_TEN, whole([1], 40, 1) + whole([6], 40, -1)),
    Scenario("fixes single, breaks in 8", 700, ONE_TO_TEN, whole([1], 20, 1) + whole([8], 20, -1)),
    Scenario("fixes single, breaks in 10", 700, ONE_TO_TEN, whole([1], 40, 1) + whole([10], 40, -1)),
    Scenario("fixes single, few breaks in 10", 700, ONE_TO_TEN, whole([1], 20, 1) + whole([10], 20, -1)),
    Scenario("fixes in 1 to 3, breaks in 6 to 10", 700, ONE_TO_TEN,
             whole(range(1, 4), 60, 1) + whole(range(6, 11), 60, -1)),
    Scenario("fixes in 10, breaks single", 700, ONE_TO_TEN, whole([10], 40, 1) + whole([1], 40, -1)),
    Scenario("7,000 lesions, breaks in 10", 7000, ONE_TO_TEN, whole([1], 400, 1) + whole([10], 400, -1)),
)  # fmt: skip
GAINS = (
    Scenario("single images, 28 fixed, 12 broken", 700, {1: 1.0}, (Kind(1, 1, 28), Kind(1, -1, 12))),
    Scenario("HAM10000's sizes, 285 lesions, 16 fixed, 10 broken", 285, HAM_SIZES, ham(285, 16, 10)),
    Scenario("HAM10000's sizes, 285 lesions, 24 fixed, 6 broken", 285, HAM_SIZES, ham(285, 24, 6)),
    Scenario("HAM10000's sizes, 700 lesions, 28 fixed, 12 broken", 700, HAM_SIZES, ham(700, 28, 12)),
    Scenario("HAM10000's sizes, 700 lesions, 32 fixed, 8 broken", 700, HAM_SIZES, ham(700, 32, 8)),
    Scenario("HAM10000's sizes, 7,000 lesions, 260 fixed, 180 broken", 7000, HAM_SIZES, ham(7000, 260, 180)),
    Scenario("groups of 1 to 10, 700 lesions, 150 images fixed, 50 broken", 700, ONE_TO_TEN,
             whole(range(1, 11), 150, 1) + whole(range(1, 11), 50, -1)),
    Scenario("single images fixed, lesions of 10 broken, 700 lesions, 150 images fixed, 50 broken", 700, ONE_TO_TEN,
             whole([1], 150, 1) + whole([10], 50, -1)),
    Scenario("groups of 1 to 10, 7,000 lesions, 1,000 images fixed, 700 broken", 7000, ONE_TO_TEN,
             whole(range(1, 11), 1000, 1) + whole(range(1, 11), 700, -1)),
)  # fmt: skip


class Draws(NamedTuple):
    """Runs of one scenario: gains of the second half as they are and capped, and the terms that the first half sets."""

    uncapped: Array
    gains: Array
    squares: Array
    most: Array
    bound: Array


def drawn(scenario: Scenario, runs: int, seed: int) -> Draws:
    """Draw both halves, and cap the second's lesions at the largest of the first."""
    rng = np.random.default_rng([seed, *scenario.name.encode()])
    design, design_sizes = scenario.draw(rng, runs)
    proof, proof_sizes = scenario.draw(rng, runs)
    most = design_sizes.max(axis=1)
    capped = proof * np.minimum(1, most[:, None] / proof_sizes)
    bound = np.maximum(most, -design.min(axis=1) / AT_RISK)
    return Draws(proof, capped, (design**2).sum(axis=1) + 1, most, bound)


def sign_flip(draws: Draws) -> Array:
    """Return the p-values of the sign-flip test: the distribution of the sum by its characteristic function."""
    gains = draws.uncapped.astype(np.int64)
    sizes = np.abs(gains)
    counts = np.stack(
        [(sizes == size).sum(axis=1) for size in range(1, int(sizes.max(initial=0)) + 1)] or [0 * sizes[:, 0]]
    )
    points = 1 << int(2 * sizes.sum(axis=1).max() + 1).bit_length()
    angles = 2 * np.pi * np.arange(points) / points
    p_values = np.empty(len(sizes))
    for run, total in enumerate(gains.sum(axis=1)):
        transform = np.prod([np.cos(size * angles) ** n for size, n in enumerate(counts[:, run], 1) if n], axis=0)
        chance = np.fft.ifft(np.broadcast_to(transform, points)).real
        p_values[run] = chance[np.arange(total, points // 2) % points].sum()
    return np.minimum(1, p_values)


def recalculated(draws: Draws) -> Array:
    """The test of certificates: bets with recalculated stakes, and the sign test where lesions have one image."""
    bet = draws.most > 1
    p_values = np.ones(len(bet))
    for bound in np.unique(draws.bound[bet]):
        runs = bet & (draws.bound == bound)
        stakes = betting_stakes(draws.gains[runs], squares=draws.squares[runs], bound=float(bound), level=LEVEL)
        p_values[runs] = betting_test(draws.gains[runs], stakes)
    if not bet.all():
        p_values[~bet] = sign_flip(draws._replace(uncapped=np.floor(draws.gains[~bet])))
    return p_values


def one_stake(draws: Draws) -> Array:
    """Bets with one stake for all lesions, the best for a normal sum."""
    return _product(draws, np.sqrt(2 * math.log(1 / LEVEL) / draws.squares)[None])


def many_stakes(draws: Draws) -> Array:
    """The mean over thirty stakes, evenly spread up to the largest that is allowed."""
    return _product(draws, np.linspace(0.02, 1, 30)[:, None] / draws.bound)


def _product(draws: Draws, stakes: Array) -> Array:
    capital = np.zeros(len(draws.gains))
    for each in np.minimum(stakes, 1 / draws.bound):
        with np.errstate(divide="ignore"):
            capital += np.exp(np.log(np.maximum(1 + each[:, None] * draws.gains, 0)).sum(axis=1)) / len(stakes)
    return 1 / np.maximum(capital, 1)


def empirical_bernstein(draws: Draws) -> Array:
    """Maurer and Pontil's inequality, one-sided; only whether it rejects at the level is told."""
    n, gains = draws.gains.shape[1], draws.gains
    log = math.log(2 / LEVEL)
    slack = np.sqrt(2 * gains.var(axis=1, ddof=1) * log / n) + 7 * 2 * draws.most * log / (3 * (n - 1))
    return np.where(gains.mean(axis=1) > slack, LEVEL, 1.0)


def studentised_bootstrap(draws: Draws) -> Array:
    """Resampled t statistics, 199 of them: valid for many lesions only."""
    rng, p_values = np.random.default_rng(0), np.ones(len(draws.gains))
    for run, gains in enumerate(draws.gains):
        changed = gains[gains != 0]
        if not len(changed):
            continue
        weights = rng.poisson(1.0, size=(199, len(changed)))
        spread = np.sqrt(weights @ changed**2)
        resampled = np.where(spread > 0, (weights - 1) @ changed / np.maximum(spread, 1e-9), 0)
        p_values[run] = (1 + (resampled >= changed.sum() / np.sqrt((changed**2).sum())).sum()) / 200
    return p_values


TESTS: dict[str, Callable[[Draws], Array]] = {
    "sign flip": sign_flip,
    "bets, recalculated stakes": recalculated,
    "bets, one stake": one_stake,
    "bets, mean over stakes": many_stakes,
    "empirical Bernstein": empirical_bernstein,
    "studentised bootstrap": studentised_bootstrap,
}


def rates(scenario: Scenario, tests: Iterable[str] = TESTS, *, runs: int = RUNS, seed: int = 0) -> dict[str, float]:
    """Return the share of runs in which each test rejects."""
    draws = drawn(scenario, runs, seed)
    return {name: float((TESTS[name](draws) <= LEVEL).mean()) for name in tests}


def main() -> None:
    """Write the rates of all scenarios."""
    found = {
        part: [{"scenario": each.name, "lesions": each.lesions, "rejected": rates(each)} for each in scenarios]
        for part, scenarios in (("no gain", NULLS), ("gain", GAINS))
    }
    head = {"command": "python -m tests.simulations.certificates", "level": LEVEL, "runs": RUNS}
    TARGET.write_text(json.dumps({**head, **found}, indent=1) + "\n")
    sys.stdout.write(f"wrote {TARGET}\n")


if __name__ == "__main__":
    main()
