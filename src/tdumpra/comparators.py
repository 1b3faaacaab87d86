"""What the gate is compared with. A comparator is a function from a :class:`Case` to a posterior on the test rows.

To add one, write the function and put it into a dictionary beside :data:`COMPARATORS`. One whose inputs are absent
returns ``None`` and is left out of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tdumpra.core.calibration import adjust_prior, apply_temperature, fit_temperature
from tdumpra.core.metrics import Objective
from tdumpra.core.risk import bayes_gate
from tdumpra.core.sphere import normalise
from tdumpra.decision import Decided, Decision
from tdumpra.functional import widen
from tdumpra.outputs import TestOutputs, TrainOutputs, ValidationOutputs
from tdumpra.tune import choose_prior_exponent

N_NEIGHBOURS = 16
_CHUNK_ENTRIES = 2**23


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Case:
    """Everything a comparator may use. Anything it fits, it fits on ``validation``."""

    train: TrainOutputs | None  # absent after loading a saved model, which keeps no training row
    validation: ValidationOutputs | None
    test: TestOutputs
    decision: Decision
    decided: Decided  # the decision's own result on the test rows
    objective: Objective


Comparator = Callable[[Case], Tensor | None]


def student(case: Case) -> Tensor:
    """The classifier as it came."""
    return widen(case.test.p)


def teacher(case: Case) -> Tensor | None:
    """The teacher's own classifier, where it was given."""
    return None if case.test.p_teacher is None else widen(case.test.p_teacher)


def temperature(case: Case) -> Tensor | None:
    """The classifier with a fitted temperature, also where the decision uses none."""
    if case.validation is None:
        return None
    fitted = fit_temperature(widen(case.validation.p).log(), case.validation.y)
    return apply_temperature(widen(case.test.p), fitted)


def logit_adjusted(case: Case) -> Tensor | None:
    """The classifier divided by a power of the class prior: the honest rival, since retrieval ignores the prior too."""
    if case.validation is None:
        return None
    prior = case.decision.prior
    exponent = choose_prior_exponent(widen(case.validation.p), case.validation.y, prior, case.objective)
    return adjust_prior(widen(case.test.p), prior, exponent)


def knn(case: Case) -> Tensor | None:
    """Shares of the classes among the nearest training rows, in the bank's space."""
    if case.train is None:
        return None
    return nearest_neighbour_shares(case.train.z, case.train.y, case.test.z, n_classes=case.test.n_classes)


def similarity(case: Case) -> Tensor:
    """Retrieval alone."""
    return case.decided.p_sim


def average(case: Case) -> Tensor:
    """Half classifier, half retrieval, on every row: fusion without a gate."""
    return (case.decided.p_cls + case.decided.p_sim) / 2


def gate(case: Case) -> Tensor:
    """The method."""
    return case.decided.p


def oracle(case: Case) -> Tensor:
    """Upper bound: of the two paths, the one that happens to be right (the classifier, where both or neither are)."""
    wrong_cls, wrong_sim = (
        (p.argmax(1) != case.test.y).double().numpy() for p in (case.decided.p_cls, case.decided.p_sim)
    )
    follow = torch.from_numpy(bayes_gate(wrong_cls, wrong_sim))
    return torch.where(follow[:, None], case.decided.p_sim, case.decided.p_cls)


COMPARATORS: dict[str, Comparator] = {
    function.__name__: function
    for function in (student, teacher, temperature, logit_adjusted, knn, similarity, average, gate, oracle)
}


def nearest_neighbour_shares(
    z_train: Float[Tensor, "m d"],
    y_train: Int[Tensor, " m"],
    z: Float[Tensor, "n d"],
    *,
    n_classes: int,
    n_neighbours: int = N_NEIGHBOURS,
) -> Float[Tensor, "n c"]:
    """Class shares among the training rows with the largest cosine."""
    bank = normalise(z_train)
    queries = normalise(z).to(bank)
    votes = torch.nn.functional.one_hot(y_train, n_classes).to(bank.dtype)
    k = min(n_neighbours, len(bank))
    step = max(1, _CHUNK_ENTRIES // len(bank))
    nearest = [(chunk @ bank.T).topk(k, dim=1).indices for chunk in torch.split(queries, step)]
    return votes[torch.cat(nearest)].mean(1)
