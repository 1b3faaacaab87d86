"""A gate that must prove itself before it may open.

The benefit of a gate that was chosen among thousands cannot be shown on the rows that it was chosen on. So the
validation lesions are halved. On one half everything is fitted, a short list of gates is drawn up, the most promising
first, and the terms of the test are set; on the other half each gate is tested against "it breaks as many predictions
as it fixes, or more", one-sided and lesion by lesion. The list is fixed before the second half is looked at, so that
what is left to correct for is its length: by testing in that order until one fails (fixed sequence, which costs the
first nothing), or by Holm's method.

The test is a series of bets (:func:`tdumpra.core.significance.betting_test`). It keeps its level at any number of
lesions, however large the groups in which breaks and fixes come. All that it needs is a bound on what one lesion can
lose: its images, of which it counts for no more than the largest lesion of the first half has. Where that is one image,
the sign test is exact and more powerful. For named classes such bets bound the loss of sensitivity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from tdumpra.checks import check_choice, check_unit_interval
from tdumpra.core.groups import group_folds
from tdumpra.core.significance import fixed_sequence, holm
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.outputs import ValidationOutputs
from tdumpra.tuning.certificate import Certificate, Correction, Tested
from tdumpra.tuning.notes import Note
from tdumpra.tuning.presets import Preset
from tdumpra.tuning.proof import Halves
from tdumpra.tuning.result import Setting, Tuning
from tdumpra.tuning.search import DEFAULT_SEARCH, Search
from tdumpra.tuning.tune import refuse_other_than_validation, setting_at, tune

LEVEL = 0.05
CLASS_HARM = 0.05
_LIST_LENGTH = 5
_LOOKED_AT = 200  # of the most promising; most of them move the same rows
_SPLIT_SEED = 0

Array = np.ndarray


def certify(
    bank: PrototypeBank,
    validation: ValidationOutputs,
    prior: Tensor,
    search: Search = DEFAULT_SEARCH,
    *,
    level: float = LEVEL,
    correction: Correction = "fixed-sequence",
    classes: Mapping[str, int] | None = None,
    class_harm: float = CLASS_HARM,
) -> tuple[Tuning, Certificate]:
    """Tune, and open the gate only if its benefit is shown on lesions that took no part in choosing it.

    The tuning that comes back is the first half's with the proven gate; without one it is the whole validation set's
    with the gate shut. ``classes`` are the names and numbers of those for which a loss of sensitivity of ``class_harm``
    or more must be ruled out as well; gain and classes then share the level equally (Bonferroni).
    """
    refuse_other_than_validation(validation)
    check_unit_interval(level, "level")
    check_unit_interval(class_harm, "class_harm")
    check_choice(correction, "correction", get_args(Correction))
    blind = np.zeros(len(validation), dtype=np.int64)  # a look at the labels would make the halves depend on each other
    half = group_folds(validation.groups, blind, 2, seed=_SPLIT_SEED)
    design, proof = (validation.rows(half == number) for number in range(2))
    tuning = tune(bank, design, prior, search)
    halves = Halves(design, proof, classes or {}, class_harm)
    listed = _short_list(tuning, search.preset, proof, correction)
    certificate = Certificate(
        level=level,
        correction=correction,
        tested=(),
        design_rows=len(design),
        proof_rows=len(proof),
        proof_groups=halves.lesions,
        most_images=halves.most_images,
        classes=tuple(halves.classes),
        class_harm=class_harm,
    )
    if listed:
        certificate = _prove(certificate, tuning, listed, halves)
    if certificate.chosen is not None:
        best = certificate.chosen.setting
        tuning = replace(tuning, notes=_notes(tuning, validation))
    else:
        tuning = tune(bank, validation, prior, search)
        best = replace(tuning.base, kappa=tuning.best.kappa, tau=tuning.best.tau)
    return replace(tuning, decision=best.apply_to(tuning.decision), best=best), certificate


def _prove(certificate: Certificate, tuning: Tuning, listed: list[Setting], halves: Halves) -> Certificate:
    """Say what can be proven, and then test the list."""
    in_order = certificate.correction == "fixed-sequence"
    level = certificate.share
    first_level = level if in_order else level / len(listed)  # what the first must pass
    on_design = [_gained(tuning, setting, halves.design) for setting in listed]
    power = halves.foresee(on_design[0], first_level)
    on_proof = [_gained(tuning, setting, halves.proof) for setting in listed]  # its labels come in here
    shown = [
        halves.test(before, after, level=level, first_level=first_level)
        for before, after in zip(on_design, on_proof, strict=True)
    ]
    proven = (fixed_sequence if in_order else holm)(np.array([each.p_value for each in shown]), certificate.level)
    tested = tuple(
        Tested(setting, int((gained > 0).sum()), int((gained < 0).sum()), each.p_gain, bool(ok), each.harm)
        for setting, gained, each, ok in zip(listed, on_proof, shown, proven, strict=True)
    )
    return replace(certificate, power=power, tested=tested)


def _notes(tuning: Tuning, validation: ValidationOutputs) -> tuple[Note, ...]:
    """Leave out what the proof has overtaken: few disagreements, and a class that only the first half lacks."""
    present = set(validation.y.tolist())
    absent = [note for note in tuning.notes if note.kind == "absent classes"]
    classes = [c for note in absent for c in note.values["classes"] if c not in present]
    others = tuple(note for note in tuning.notes if note.kind not in ("absent classes", "too few disagreements"))
    return (Note("absent classes", {"classes": classes}), *others) if classes else others


def _gained(tuning: Tuning, setting: Setting, half: ValidationOutputs) -> Array:
    """Return +1 for each row that the whole decision fixes and -1 for each that it breaks.

    Both are counted against the classifier as it came, before any adjustment for the prior.
    """
    right = setting.apply_to(tuning.decision).decide(half.p.double(), half.z).p.argmax(1) == half.y
    was_right = half.p.argmax(1) == half.y
    return (right.long() - was_right.long()).numpy()


def _short_list(tuning: Tuning, preset: Preset, proof: ValidationOutputs, correction: Correction) -> list[Setting]:
    """List the most promising gates of the first half that do different things on the second.

    Only the second half's inputs are looked at here, to tell gates apart; its labels come in once the list is fixed.
    A gate that moves nothing there cannot be proven: in a fixed sequence it ends the list, under Holm it is left out.
    """
    label_cls = tuning.decision.classifier(proof.p.double()).argmax(1)
    listed: dict[bytes, Setting] = {}
    for setting in _by_promise(tuning, preset):
        label = setting.apply_to(tuning.decision).decide(proof.p.double(), proof.z).p.argmax(1)
        if not torch.equal(label, label_cls):
            listed.setdefault(label.numpy().tobytes(), setting)
        elif correction == "fixed-sequence":
            break
        if len(listed) == _LIST_LENGTH:
            break
    return list(listed.values())


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
