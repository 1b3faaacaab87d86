"""One choice for several seeds, on the validation rows of all of them, each scored by its own model and bank.

How good the choice is, is estimated by leaving seeds out in turn: what the others choose is applied to the one that had
no say. That is unbiased only where seeds hold out lesions of their own; where they share any, folds of lesions are left
out in place of seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tdumpra.core.calibration import class_prior
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import ValidationOutputs, join
from tdumpra.tuning.crossfit import Estimate, estimate, out_of_fold
from tdumpra.tuning.notes import Note
from tdumpra.tuning.result import Tuning
from tdumpra.tuning.search import Search
from tdumpra.tuning.tune import tune_on_scores


def tune_over_seeds(
    parts: Sequence[SplitOutputs],
    banks: Sequence[PrototypeBank],
    search: Search,
    *,
    judge: bool = False,
) -> tuple[Tuning, Estimate | None]:
    """Choose once for all ``parts``, each with its own of ``banks``.

    Return the first part's tuning, and an estimate of what the choice earns on rows that had no say (if ``judge``, at
    the cost of one more choice for each part or fold).
    """
    n_classes = parts[0].n_classes
    priors = [class_prior(part.train.y, n_classes) for part in parts]
    prior = class_prior(torch.cat([part.train.y for part in parts]), n_classes)
    scores = [
        {kappa: bank.class_scores(part.validation.z, kappa=kappa) for kappa in search.preset.kappa}
        for bank, part in zip(banks, parts, strict=True)
    ]

    def choose(numbers: list[int], wanted: Search) -> Tuning:
        rows = pooled([parts[i].validation for i in numbers])
        return tune_on_scores(banks[numbers[0]], rows, _of_seeds(scores, numbers), prior, wanted)

    def decision_of(number: int, tuning: Tuning) -> Decision:
        return replace(tuning.decision, bank=banks[number], prior=priors[number])

    everyone, validations = list(range(len(parts))), [part.validation for part in parts]
    apart, judged = _apart(validations), None
    if judge and apart:
        in_part = replace(search, preset=search.preset.for_share(1 - 1 / len(parts)))
        decided = [
            decision_of(i, choose([j for j in everyone if j != i], in_part)).decide(rows.p, rows.z)
            for i, rows in enumerate(validations)
        ]
        p, y = (torch.cat([getattr(rows, name) for rows in validations]) for name in ("p", "y"))
        judged = estimate(decided, p, y, search.goal, left_out="seed")
    elif judge:
        judged = out_of_fold(banks[0], pooled(validations), _of_seeds(scores, everyone), prior, search)
    tuning = choose(everyone, search)
    notes = tuning.notes if apart else (*tuning.notes, Note("shared lesions", {}))
    return replace(tuning, decision=decision_of(0, tuning), notes=notes), judged


def _of_seeds(scores: Sequence[Mapping[float, Tensor]], numbers: list[int]) -> dict[float, Tensor]:
    return {kappa: torch.cat([scores[i][kappa] for i in numbers]) for kappa in scores[0]}


def pooled(parts: Sequence[ValidationOutputs]) -> ValidationOutputs:
    """Join the validation rows of several seeds. Each seed's embeddings have a space of their own.

    Seeds may share images: where no groups are given, an image is a group, so that folds keep it on one side.
    """
    columns = {name: join([getattr(part, name) for part in parts]) for name in ("p", "z", "y", "p_teacher", "p_second")}
    return ValidationOutputs(**columns, groups=np.concatenate(_lesions(parts)))


def _lesions(parts: Sequence[ValidationOutputs]) -> list[np.ndarray]:
    """Return the group of each row by seed; its image, or else its number, if a seed has no groups."""
    groups = [part.groups for part in parts if part.groups is not None]
    return groups if len(groups) == len(parts) else [replace(part, groups=None).lesions() for part in parts]


def _apart(parts: Sequence[ValidationOutputs]) -> bool:
    """Return whether no lesion is held out by two seeds."""
    of_seed = [np.unique(lesions) for lesions in _lesions(parts)]
    return len(np.unique(np.concatenate(of_seed))) == sum(map(len, of_seed))
