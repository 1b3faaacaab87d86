r"""The paper's appendix as functions: what a gate can gain and lose.

Symbols: expert 0 is the classifier, expert 1 is retrieval; :math:`r_e` ``risk_e`` is an expert's probability of being
wrong at a row (or simply whether it was wrong); :math:`g` the expert that a gate chose; :math:`G` the open rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from tdumpra.core.significance import clopper_pearson_upper

Array = np.ndarray


class RiskDecomposition(NamedTuple):
    """The change of the risk, which comes from the rows where the gate is open."""

    change: float  # R(final) - R(classifier)
    open_share: float  # P(G)
    change_where_open: float  # the conditional change on G; NaN where the gate never opened


class Regret(NamedTuple):
    """The distance of a gate from the best one, and the bound of Proposition A.5."""

    excess: float  # R(gate) - R(best gate)
    misranked: float  # P(E): share of rows on which the gate took the worse expert


def risk_decomposition(
    risk_cls: Float[Array, " n"], risk_final: Float[Array, " n"], opened: Bool[Array, " n"]
) -> RiskDecomposition:
    r"""Equation risk_decomp: :math:`R(\hat y) - R(\hat y_{cls}) = P(G) \, E[\ldots \mid G]`."""
    difference = risk_final - risk_cls
    return RiskDecomposition(
        change=float(difference.mean()),
        open_share=float(opened.mean()),
        change_where_open=float(difference[opened].mean()) if opened.any() else float("nan"),
    )


def bayes_gate(
    risk_cls: Float[Array, " n"] | Bool[Array, " n"], risk_sim: Float[Array, " n"] | Bool[Array, " n"]
) -> Bool[Array, " n"]:
    r"""Proposition A.3: follow retrieval exactly where its risk is lower. Ties stay with the classifier."""
    return risk_sim < risk_cls


def regret(risk_cls: Float[Array, " n"], risk_sim: Float[Array, " n"], risk_gate: Float[Array, " n"]) -> Regret:
    r"""Proposition A.5: the excess risk over the best gate is at most the share of misranked rows.

    .. math:: R(\hat y_g) - R(\hat y_{g^*}) \le P(\mathcal E), \quad \mathcal E = \{ r_g > r_{g^*} \}
    """
    best = np.where(bayes_gate(risk_cls, risk_sim), risk_sim, risk_cls)
    return Regret(excess=float((risk_gate - best).mean()), misranked=float((risk_gate > best).mean()))


def gap_favours_similarity(
    gamma_cls: Float[Array, " n"], gamma_sim: Float[Array, " n"], error_cls: float, error_sim: float
) -> Bool[Array, " n"]:
    r"""Proposition A.4: where retrieval is the better expert, if confidence is near accuracy for each.

    .. math:: \gamma_{sim} - \gamma_{cls} > \varepsilon_{cls} + \varepsilon_{sim}
    """
    favours: Array = gamma_sim - gamma_cls > error_cls + error_sim
    return favours


def share_upper(event: Bool[Array, " n"], lesion: Int[Array, " n"], *, level: float = 0.95) -> float:
    r"""Return the one-sided upper bound of the share of rows with an event, where rows of one lesion are alike.

    Clopper and Pearson's bound with as many independent rows as there seem to be (Korn and Graubard, 1998): the rows
    divided by how much more the share varies between lesions than it would between rows. With one row to a lesion this
    is the plain bound. Where the event happened never or always, each lesion counts as one row.

    .. math:: n^* = \frac{\hat p (1 - \hat p)}{\sum_g (e_g - \hat p \, m_g)^2 / n^2}
    """
    n = len(event)
    if n == 0:
        return 1.0
    share, rows = float(event.mean()), np.bincount(lesion)
    spread = float((((np.bincount(lesion, weights=event) - share * rows) / n) ** 2).sum())
    trials = min(n, share * (1 - share) / spread) if 0 < share < 1 and spread > 0 else int((rows > 0).sum())
    return clopper_pearson_upper(share * trials, trials, level=level)
