r"""The similarity posterior: a mixture of von Mises–Fisher components per class.

Symbols: ``z`` (n, D) unit embeddings, ``prototypes`` (C, K, D) unit prototypes, ``mask`` (C, K) live ones,
:math:`\kappa` ``kappa`` concentration, :math:`\tau_{sim}` ``tau`` temperature, :math:`s` ``similarity`` cosines.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tdumpra.core.rowwise import softmax_rows


def prototype_similarity(z: Float[Tensor, "n d"], prototypes: Float[Tensor, "c k d"]) -> Float[Tensor, "n c k"]:
    r"""Return the cosine of each row with each prototype: :math:`s_{c,k} = z^\top p_{c,k}`."""
    c, k, d = prototypes.shape
    return (z @ prototypes.reshape(c * k, d).T).view(z.shape[0], c, k)  # len(z) would fix an exported graph's batch


def vmf_class_scores(
    similarity: Float[Tensor, "n c k"], mask: Bool[Tensor, "c k"], *, kappa: float
) -> Float[Tensor, "n c"]:
    r"""Return unnormalised class scores of the mixture (paper, vmf_mixture_score).

    .. math:: q_c = \log \sum_k \exp(\kappa \, s_{c,k}) + \log(K / K_c)

    The vMF normaliser cancels because :math:`\kappa` is shared. The paper's sum has no mixture weights, which would
    handicap a class with fewer live prototypes: the second term, our addition, is zero where all classes have the
    same :math:`K_c`. A class without prototypes stays at :math:`-\infty`.
    """
    scores = (kappa * similarity).masked_fill(~mask, -torch.inf).logsumexp(-1)
    live = mask.sum(-1).to(similarity.dtype)
    return scores + (live.max() / live.clamp(min=1)).log()


def similarity_posterior(scores: Float[Tensor, "n c"], *, tau: float) -> Float[Tensor, "n c"]:
    r"""Turn scores into probabilities (paper, sim_posterior): :math:`p_{sim} = \mathrm{softmax}(q / \tau_{sim})`."""
    return softmax_rows(scores / tau)
