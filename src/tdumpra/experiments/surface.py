"""A gate's figures at every point of a grid of thresholds, for the price of a few."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from tdumpra.core import metrics, search
from tdumpra.core.gate import FusionRule, GateSignals, GateThresholds, fuse_rows, gate_signals, is_first_choice
from tdumpra.core.metrics import ClassCounts
from tdumpra.tuning.search import clause_axes

Array = np.ndarray
THETA = tuple(np.round(np.arange(0.3, 1.0001, 0.05), 2).tolist())
BETA = tuple(np.round(np.arange(0.0, 0.9501, 0.05), 2).tolist())
# What is moved where tuning left the gate shut, or chose a gate without these thresholds.
REFERENCE = GateThresholds(theta=0.7, beta=0.5, margin=0.1, delta=0.05, alpha=0.1)


class Surface(NamedTuple):
    """Axes in the order of the arrays' dimensions, and what the gate does at each point."""

    axes: dict[str, tuple[float, ...]]  # alpha, theta, beta, margin, delta
    accuracy: Float[Array, "a t b m d"]
    balanced_accuracy: Float[Array, "a t b m d"]
    gate_accuracy: Float[Array, "a t b m d"]  # of open rows, those whose final label is right; NaN where none is open
    opened: Int[Array, "a t b m d"]
    flipped: Int[Array, "a t b m d"]
    fixed: Int[Array, "a t b m d"]
    broken: Int[Array, "a t b m d"]

    def points(self) -> list[dict[str, Any]]:
        """One dictionary for each point."""
        names, figures = list(self.axes), self._asdict()
        figures.pop("axes")
        return [
            {
                **{name: self.axes[name][i] for name, i in zip(names, index, strict=True)},
                **{name: values[index].item() for name, values in figures.items()},
            }
            for index in np.ndindex(self.accuracy.shape)
        ]


def gate_surface(
    p_cls: Tensor,
    p_sim: Tensor,
    y: Tensor,
    *,
    theta: tuple[float, ...],
    beta: tuple[float, ...],
    margin: tuple[float, ...],
    alpha: tuple[float, ...],
    delta: tuple[float, ...],
    rule: FusionRule = "linear",
    prior: Tensor | None = None,
    exponent: float = 0.0,
    first_choices_only: bool = False,
) -> Surface:
    """Every combination of thresholds and weight. Axes come out from strict to loose, alpha as given."""
    signals = gate_signals(p_cls, p_sim)
    disagree = signals.label_cls != signals.label_sim
    axes = clause_axes(GateSignals(*(signal[disagree] for signal in signals)), theta, beta, margin, delta)
    n_classes, labels = p_cls.shape[1], y.numpy()
    base = metrics.class_counts(signals.label_cls.numpy(), labels, n_classes)
    left, right, moving = p_cls[disagree], p_sim[disagree], labels[disagree.numpy()]
    before, no_loss = signals.label_cls[disagree].numpy(), np.zeros(len(moving))
    slices = []
    for weight in alpha:
        fused = fuse_rows(left, right, alpha=weight, rule=rule, prior=prior, exponent=exponent)
        named = is_first_choice(fused, left, right).numpy() if first_choices_only else None
        after = fused.argmax(1).numpy()
        tally = search.tally(axes, before, after, moving, no_loss, n_classes=n_classes, may_open=named)
        counts = ClassCounts(base.correct + tally.correct, base.support, base.predicted + tally.predicted)
        slices.append(
            (
                metrics.accuracy(counts), metrics.balanced_accuracy(counts), metrics.ratio(tally.right, tally.opened),
                tally.opened, tally.flipped, tally.fixed, tally.broken,
            )
        )  # fmt: skip
    strict_first = {name: tuple(sorted(values, reverse=True)) for name, values in
                    (("beta", beta), ("margin", margin), ("delta", delta))}  # fmt: skip
    values = {"alpha": tuple(alpha), "theta": tuple(sorted(theta)), **strict_first}
    return Surface(values, *(np.stack(column) for column in zip(*slices, strict=True)))
