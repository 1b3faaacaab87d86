"""A gate that must prove itself before it may open.

The benefit of a gate that was chosen among thousands cannot be shown on the rows that it was chosen on. So the
validation lesions are halved. On one half everything is fitted and a short list of gates is drawn up, the most
promising first; on the other half each of them is tested against "it breaks as many predictions as it fixes, or more",
one-sided and clustered by lesion. The list is fixed before the second half is looked at, so that what is left to
correct for is its length: by testing in that order until one fails (fixed sequence, which costs the first nothing), or
by Holm's method. Either keeps the chance of opening any gate that does not help at no more than the level.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from tdumpra.checks import check_choice, check_unit_interval
from tdumpra.core.groups import group_folds, lesion_of_each_row, sum_by_lesion
from tdumpra.core.significance import fixed_sequence, holm, sign_flip_test
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.outputs import ValidationOutputs
from tdumpra.toml import from_plain
from tdumpra.tuning.presets import Preset
from tdumpra.tuning.result import Setting, Tuning
from tdumpra.tuning.search import DEFAULT_SEARCH, Search
from tdumpra.tuning.tune import refuse_other_than_validation, setting_at, tune

Correction = Literal["fixed-sequence", "holm"]
LEVEL = 0.05
_LIST_LENGTH = 5
_LOOKED_AT = 200  # of the most promising; most of them move the same rows
_SPLIT_SEED = 0

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Tested:
    """One gate of the list and what it did to the rows of the second half."""

    setting: Setting  # its figures are those of the first half
    fixed: int
    broken: int
    p_value: float
    proven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The gates that were tested, on how many cases, at which level, and whether any was proven."""

    level: float
    correction: Correction
    tested: tuple[Tested, ...]
    design_rows: int
    proof_rows: int
    proof_groups: int

    @property
    def granted(self) -> bool:
        """Return whether some gate was proven to fix more than it breaks."""
        return self.chosen is not None

    @property
    def chosen(self) -> Tested | None:
        """Return the gate that may open: of the proven ones, the best on the first half."""
        proven = [each for each in self.tested if each.proven]
        return max(proven, key=lambda each: each.setting.objective, default=None)

    def sentence(self) -> str:
        """Say what was proven."""
        data = f"{self.proof_rows:,} rows of {self.proof_groups:,} lesions that took no part in choosing"
        if not self.tested:
            return "no gate was better than the classifier on the first half of the validation lesions: it stays shut"
        if (proven := self.chosen) is not None:
            return (
                f"certified at level {self.level:g}: on {data}, the gate fixed {proven.fixed} predictions and broke "
                f"{proven.broken} (p = {proven.p_value:.3g})"
            )
        best = min(self.tested, key=lambda each: each.p_value)
        return (
            f"not certified, so the gate stays shut: on {data}, the best of {len(self.tested)} candidates fixed "
            f"{best.fixed} predictions and broke {best.broken} (p = {best.p_value:.3g}, {self.correction}, "
            f"level {self.level:g})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "granted": self.granted, "sentence": self.sentence()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Certificate:
        """Read what :meth:`to_json` returned."""
        return from_plain({field.name: content[field.name] for field in fields(cls)}, cls)


def certify(
    bank: PrototypeBank,
    validation: ValidationOutputs,
    prior: Tensor,
    search: Search = DEFAULT_SEARCH,
    *,
    level: float = LEVEL,
    correction: Correction = "fixed-sequence",
) -> tuple[Tuning, Certificate]:
    """Tune, and open the gate only if its benefit is shown on lesions that took no part in choosing it.

    The tuning that comes back is the first half's with the proven gate; without one it is the whole validation set's
    with the gate shut.
    """
    refuse_other_than_validation(validation)
    check_unit_interval(level, "level")
    check_choice(correction, "correction", get_args(Correction))
    half = group_folds(validation.groups, validation.y.numpy(), 2, seed=_SPLIT_SEED)
    design, proof = (validation.rows(half == number) for number in range(2))
    tuning = tune(bank, design, prior, search)
    listed = _short_list(tuning, search.preset, proof)
    lesions = lesion_of_each_row(proof.groups, len(proof))
    p_values = [sign_flip_test(sum_by_lesion(gained, lesions), alternative="greater") for _, gained in listed]
    proven = (fixed_sequence if correction == "fixed-sequence" else holm)(np.array(p_values), level)
    tested = tuple(
        Tested(setting, int((gained > 0).sum()), int((gained < 0).sum()), p_value, bool(is_proven))
        for (setting, gained), p_value, is_proven in zip(listed, p_values, proven, strict=True)
    )
    rows = {"design_rows": len(design), "proof_rows": len(proof), "proof_groups": len(np.unique(lesions))}
    certificate = Certificate(level=level, correction=correction, tested=tested, **rows)
    if certificate.chosen is not None:
        best = certificate.chosen.setting
    else:
        tuning = tune(bank, validation, prior, search)
        best = replace(tuning.base, kappa=tuning.best.kappa, tau=tuning.best.tau)
    return replace(tuning, decision=best.apply_to(tuning.decision), best=best), certificate


def _short_list(tuning: Tuning, preset: Preset, proof: ValidationOutputs) -> list[tuple[Setting, Array]]:
    """List the most promising gates of the first half, with +1 for each row of the second half fixed and -1 if broken.

    Only the second half's inputs are looked at here, to tell gates apart; its labels come in once the list is fixed.
    """
    label_cls = tuning.decision.classifier(proof.p.double()).argmax(1)
    listed: dict[bytes, tuple[Setting, Tensor]] = {}
    for setting in _by_promise(tuning, preset):
        label = setting.apply_to(tuning.decision).decide(proof.p.double(), proof.z).p.argmax(1)
        if not torch.equal(label, label_cls):
            listed.setdefault(label.numpy().tobytes(), (setting, label))
        if len(listed) == _LIST_LENGTH:
            break
    y = proof.y
    return [(setting, ((label == y).long() - (label_cls == y).long()).numpy()) for setting, label in listed.values()]


def _by_promise(tuning: Tuning, preset: Preset) -> list[Setting]:
    """Sort settings that raise accuracy by predictions gained over the root of openings: the test's power."""
    curve, base = tuning.curve, tuning.base
    settings = [each for each in tuning.contenders if each.thresholds is not None]
    if "clauses" in preset.gates:
        raises = (curve.objective > base.objective) & (curve.accuracy > base.accuracy)
        promise = np.where(raises, curve.accuracy - base.accuracy, 0) / np.sqrt(np.maximum(curve.opened, 1))
        best = np.argsort(-promise, axis=None, kind="stable")[: min(_LOOKED_AT, int(raises.sum()))]
        settings += [setting_at(curve, tuple(map(int, np.unravel_index(i, promise.shape)))) for i in best]
    rising = [each for each in settings if each.accuracy > base.accuracy and each.opened]
    return sorted(rising, key=lambda each: -(each.accuracy - base.accuracy) / each.opened**0.5)
