"""The statistics of a proof: what can be expected of the second half, and what it shows about one gate.

The sum of squares to expect, and the largest lesion that counts in full, come from the first half alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tdumpra.core.groups import count_by_lesion, lesion_of_each_row, sum_by_lesion
from tdumpra.core.significance import (
    betting_power,
    betting_stakes,
    betting_test,
    loss_upper_bound,
    sign_flip_test,
    sign_test_power,
)
from tdumpra.method.outputs import ValidationOutputs
from tdumpra.tuning.certificate import CHANCE, ClassHarm, Power

Array = np.ndarray
_FIXED = [0.5 + i / 100 for i in range(51)]  # shares of changed lesions that are fixed
AT_RISK = 0.75  # of the capital: the worst lesion of the first half, met again, costs no more
_SEED = 0  # of the order of bets, which must have nothing to do with labels


class Shown(NamedTuple):
    """What the second half shows about one gate."""

    p_gain: float
    p_value: float  # of gain and named classes together: the largest, times their number
    harm: tuple[ClassHarm, ...]


@dataclass(frozen=True, slots=True)
class Halves:
    """The first half, which chooses and sets the terms, and the second, which proves.

    ``gained`` is +1 for each row that a gate fixes and -1 for each that it breaks; ``classes`` are the names and
    numbers of those that must not lose ``class_harm`` of their sensitivity.
    """

    design: ValidationOutputs
    proof: ValidationOutputs
    classes: Mapping[str, int]
    class_harm: float

    @property
    def lesions(self) -> int:
        """Return the number of lesions of the second half."""
        return _n_lesions(self.proof)

    @property
    def most_images(self) -> int:
        """Return the number of images of the largest lesion of the first half."""
        return _Lesions.of(self.design, np.zeros(len(self.design), dtype=np.int64)).most

    def foresee(self, on_design: Array, level: float) -> Power:
        """Say what can be proven at ``level`` about a gate, from what it gained on the first half."""
        found = _Lesions.of(self.design, on_design)
        sizes = np.abs(found.gains[found.gains != 0])
        changed = round(len(sizes) * self._ratio)

        def chance(fixed: float) -> float:
            if found.most == 1:
                return sign_test_power(changed, fixed, level=level)
            squares = self._squares(found.gains)
            return betting_power(sizes, changed, fixed, squares=squares, bound=found.bound, level=level, seed=_SEED)

        enough = bisect_left(_FIXED, True, key=lambda fixed: chance(fixed) >= CHANCE)  # the chance grows with the share
        share = _FIXED[enough] if enough < len(_FIXED) else None
        gain = None if share is None else 100 * changed * (2 * share - 1) * float(sizes.mean()) / len(self.proof)
        unharmed = np.zeros_like(on_design)
        spared = [_Lesions.of(self.design, unharmed, number) for number in self.classes.values()]
        least = tuple(self._harm(each, each, level=level, first_level=level)[1] for each in spared)
        return Power(
            lesions=self.lesions,
            changed=changed,
            gain=gain,
            best_chance=chance(1.0),
            least_harm=least,
        )

    def test(self, on_design: Array, on_proof: Array, *, level: float, first_level: float) -> Shown:
        """Test one gate; bets aim at ``first_level``, and bounds hold at ``level``."""
        found = _Lesions.of(self.design, on_design)
        gains = _Lesions.of(self.proof, on_proof).capped(found.most).gains
        if found.most == 1:  # part of a lesion is rounded down, which can only make the proof harder
            p_gain = sign_flip_test(np.floor(gains).astype(np.int64), alternative="greater")
        else:
            stakes = betting_stakes(gains, squares=self._squares(found.gains), bound=found.bound, level=first_level)
            p_gain = float(betting_test(gains, stakes))
        p_values, harm = [p_gain], []
        for name, number in self.classes.items():
            of_class = (_Lesions.of(self.design, on_design, number), _Lesions.of(self.proof, on_proof, number))
            p_value, upper = self._harm(*of_class, level=level, first_level=first_level)
            p_values.append(p_value)
            changes = on_proof[self.proof.y.numpy() == number]
            harm.append(ClassHarm(name, len(changes), int((changes > 0).sum()), int((changes < 0).sum()), upper))
        return Shown(p_gain, min(1.0, len(p_values) * max(p_values)), tuple(harm))

    def _harm(self, design: _Lesions, proof: _Lesions, *, level: float, first_level: float) -> tuple[float, float]:
        """Return the p-value of "the class loses ``class_harm`` or more", and the bound on its loss."""
        gains, sizes = proof.capped(design.most)
        beyond = gains + self.class_harm * sizes
        squares = self._squares(design.gains + self.class_harm * design.sizes)
        stakes = betting_stakes(beyond, squares=squares, bound=design.bound, level=first_level)
        return float(betting_test(beyond, stakes)), loss_upper_bound(gains, sizes, stakes, level=level)

    @property
    def _ratio(self) -> float:
        return self.lesions / _n_lesions(self.design)

    def _squares(self, on_design: Array) -> float:
        """Expect the squares of the first half again, and one change more."""
        return self._ratio * float((on_design**2).sum() + 1)


class _Lesions(NamedTuple):
    """What a gate gains in each lesion, and how many images the lesion counts for; in random order."""

    gains: Array
    sizes: Array

    @classmethod
    def of(cls, half: ValidationOutputs, gained: Array, only: int | None = None) -> _Lesions:
        """Sum over the images of each lesion, or over those of the class ``only``."""
        rows = np.ones(len(half), dtype=bool) if only is None else half.y.numpy() == only
        lesions = lesion_of_each_row(half.groups, len(half))[rows]
        gains, sizes = sum_by_lesion(gained[rows], lesions), count_by_lesion(lesions)
        order = np.random.default_rng(_SEED).permutation(len(sizes))
        return cls(gains[order].astype(float), sizes[order].astype(float))

    @property
    def most(self) -> int:
        """Return the number of images of the largest lesion."""
        return int(self.sizes.max(initial=1))

    @property
    def bound(self) -> float:
        """Return one over the largest stake: no lesion can take more than the capital, and the worst one less."""
        return max(self.most, -float(self.gains.min(initial=0)) / AT_RISK)

    def capped(self, most: int) -> _Lesions:
        """Let a lesion with more images than ``most`` count for so many: each of its images then counts less."""
        weight = np.minimum(1, most / self.sizes)
        return _Lesions(self.gains * weight, self.sizes * weight)


def _n_lesions(half: ValidationOutputs) -> int:
    return len(np.unique(lesion_of_each_row(half.groups, len(half))))
