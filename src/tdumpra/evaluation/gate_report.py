"""What the gate did to predictions: row by row, per 1,000 rows, and over the share of rows that it asks about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tdumpra import checks
from tdumpra.core import metrics, risk, significance
from tdumpra.core.groups import lesion_numbers, sum_by_lesion
from tdumpra.method.arrays import posterior_and_labels

Array = np.ndarray
THETA = tuple(np.round(np.linspace(0, 1, 41), 3).tolist())  # of the curve over the share of rows asked about
_ON_CURVE = ("accuracy", "balanced_accuracy", "nll")


def gate_report(
    p_cls: Any, p_sim: Any, p_final: Any, y: Any, groups: Any = None, *, opened: Any = None
) -> dict[str, Any]:
    """Compare the final predictions with the classifier's, row by row.

    Args:
        p_cls: the (calibrated) classifier's posterior.
        p_sim: retrieval's.
        p_final: what came out of the gate.
        y: labels.
        groups: lesions or patients: adds a test that does not take two images of one lesion for two.
        opened: where the gate opened; if left out, where ``p_final`` differs from ``p_cls``.

    Returns:
        ``n``; ``opened``, ``flipped`` (label changed), ``fixed`` (wrong to right), ``broken`` (right to wrong);
        ``p_value`` of the exact McNemar test; ``sign_flip_p`` over groups, if given; ``harm_upper``, the one-sided 95 %
        bound on the broken share, for which images of one group are not independent; accuracies of the classifier, of
        retrieval, of the result and of an ``oracle`` that always follows the right path; the risk decomposition
        (``risk_change`` = ``open_share`` × ``risk_change_where_open``), and the ``regret`` against the oracle with its
        bound ``misranked``; ``headroom`` (the oracle's accuracy above the classifier's) and the share of it that was
        taken.
    """
    cls, labels = posterior_and_labels(p_cls, y, "p_cls")
    sim, final = _beside(cls, p_sim, "p_sim"), _beside(cls, p_final, "p_final")
    is_open = (final != cls).any(1) if opened is None else checks.to_tensor(opened, "opened").bool().cpu().numpy()
    if is_open.shape != (len(labels),):
        raise ValueError(f"opened needs one entry per row: {len(labels)}, not shape {is_open.shape}")
    names = checks.check_groups(groups, "groups", n_rows=len(labels))

    predicted_cls, predicted = cls.argmax(1), final.argmax(1)
    wrong_cls, wrong_sim, wrong = (q.argmax(1) != labels for q in (cls, sim, final))
    gained = wrong_cls.astype(np.int64) - wrong  # +1 fixed, -1 broken
    fixed, broken = int((gained > 0).sum()), int((gained < 0).sum())
    decomposition = risk.risk_decomposition(wrong_cls.astype(float), wrong.astype(float), is_open)
    regret = risk.regret(wrong_cls.astype(float), wrong_sim.astype(float), wrong.astype(float))
    best = np.where(risk.bayes_gate(wrong_cls, wrong_sim), wrong_sim, wrong_cls)
    headroom = float(wrong_cls.mean() - best.mean())
    return {
        "n": len(labels),
        "opened": int(is_open.sum()),
        "flipped": int((predicted != predicted_cls).sum()),
        "fixed": fixed,
        "broken": broken,
        "p_value": significance.mcnemar_exact(fixed, broken),
        "sign_flip_p": None if names is None else significance.sign_flip_test(sum_by_lesion(gained, names)),
        "harm_upper": risk.share_upper(gained < 0, lesion_numbers(names, len(labels))),
        "classifier_accuracy": float(1 - wrong_cls.mean()),
        "similarity_accuracy": float(1 - wrong_sim.mean()),
        "accuracy": float(1 - wrong.mean()),
        "oracle_accuracy": float(1 - best.mean()),
        "risk_change": decomposition.change,
        "open_share": decomposition.open_share,
        "risk_change_where_open": decomposition.change_where_open,
        "headroom": headroom,
        "headroom_taken": float((wrong_cls.mean() - wrong.mean()) / headroom) if headroom > 0 else float("nan"),
        "regret": regret.excess,
        "misranked": regret.misranked,
    }


def _beside(cls: Array, p: Any, name: str) -> Array:
    """Check another posterior of the same rows."""
    rows = checks.check_probabilities(p, name, n_classes=cls.shape[1])
    if len(rows) != len(cls):
        raise ValueError(f"p_cls has {len(cls)} rows and {name} has {len(rows)}")
    other: Array = rows.double().cpu().numpy()
    return other


def per_thousand(before: Array, after: Array, opened: Array, y: Array, classes: Mapping[str, int]) -> dict[str, Any]:
    """Return what the gate did to a thousand rows; ``before`` and ``after`` are the rows' labels.

    For each of ``classes``: its rows that became right (``gained``) and wrong (``lost``), and rows of other classes
    that are newly called it (``falsely_called``).
    """
    moved, right, was_right = before != after, after == y, before == y
    by_class = {
        name: (moved & right & (y == c), moved & was_right & (y == c), moved & (after == c) & (y != c))
        for name, c in classes.items()
    }
    return thousandths(
        len(y), int(opened.sum()), int((right & ~was_right).sum()), int((was_right & ~right).sum()),
        {name: [int(rows.sum()) for rows in each] for name, each in by_class.items()},
    )  # fmt: skip


def thousandths(
    n_rows: int, opened: int, fixed: int, broken: int, by_class: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Return counts as numbers per 1,000 rows; those of a class are gained, lost and falsely called."""
    names = ("gained", "lost", "falsely_called")
    return {
        **{name: 1000 * count / n_rows for name, count in (("opened", opened), ("fixed", fixed), ("broken", broken))},
        "by_class": {
            label: {name: 1000 * count / n_rows for name, count in zip(names, counts, strict=True)}
            for label, counts in by_class.items()
        },
    }


def cost_curve(
    p_cls: Array, p_gate: Array, opened: Array, second: Array, y: Array, theta: Sequence[float] = THETA
) -> dict[str, Any]:
    """Return accuracy, balanced accuracy and NLL over the share of rows that are asked about.

    Args:
        p_cls: the classifier's posterior: a row is asked about where its top probability is below theta.
        p_gate: the gate's result with the largest theta, all else held; it counts where ``opened`` and asked about.
        opened: where the gate opens under that theta.
        second: the second opinion, which is averaged with the classifier's where a row is asked about.
        y: labels.
        theta: the ceilings to try.
    """
    confidence, averaged = p_cls.max(1), (p_cls + second) / 2
    curve: dict[str, Any] = {"theta": list(theta), "asked": []}
    found: dict[str, dict[str, list[float]]] = {name: {key: [] for key in _ON_CURVE} for name in ("gate", "average")}
    for ceiling in theta:
        asked = confidence < ceiling
        curve["asked"].append(float(asked.mean()))
        for name, rows, p in (("gate", asked & opened, p_gate), ("average", asked, averaged)):
            final = np.where(rows[:, None], p, p_cls)
            counts = metrics.class_counts(final.argmax(1), y, final.shape[1])
            found[name]["accuracy"].append(float(metrics.accuracy(counts)))
            found[name]["balanced_accuracy"].append(float(metrics.balanced_accuracy(counts)))
            found[name]["nll"].append(metrics.negative_log_likelihood(final, y))
    return {**curve, **found}
