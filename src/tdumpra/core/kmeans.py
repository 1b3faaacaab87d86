r"""Spherical k-means (paper, spherical_kmeans_obj and spherical_kmeans_update).

.. math:: \min_{\lVert p_k \rVert = 1} \sum_i w_i \min_k (1 - x_i^\top p_k)

Seeding, one run and restarts are separate functions, so that another engine can replace the run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tdumpra.core.rowwise import normalise

_CHUNK_ENTRIES = 2**19  # similarities in memory at once: 2 MiB, which stays in the cache beside their rows


class KMeansResult(NamedTuple):
    """Unit centres, the centre of each row, the objective, and the objective after each iteration."""

    centers: Float[Tensor, "k d"]
    assignment: Int[Tensor, " n"]
    objective: float
    history: tuple[float, ...]


@runtime_checkable
class Engine(Protocol):
    """A function that runs k-means from given centres on rows of length one."""

    def __call__(self, x: Tensor, centers: Tensor, weight: Tensor, *, max_iter: int) -> KMeansResult:
        """Improve ``centers`` for at most ``max_iter`` iterations."""
        ...


class _Rows(NamedTuple):
    x: Tensor
    weight: Tensor
    weighted: Tensor  # each row times its weight


class _Assigned(NamedTuple):
    label: Tensor
    distance: Tensor  # 1 - cosine to its centre
    objective: float
    sums: Tensor  # (k, d) weighted sum of each cluster's rows
    mass: Tensor  # (k,) its total weight


@torch.no_grad()
def spherical_kmeans(
    x: Float[Tensor, "n d"],
    n_clusters: int,
    *,
    n_init: int = 4,
    max_iter: int = 100,
    seed: int = 0,
    sample_weight: Float[Tensor, " n"] | None = None,
    engine: Engine | None = None,
) -> KMeansResult:
    """Cluster directions. Rows are normalised first, and centres have length one.

    Args:
        x: rows with a direction; half precision is computed in float32.
        n_clusters: number of centres. Fewer are returned, with a warning, where fewer rows differ.
        n_init: restarts from new k-means++ seeds; the best objective wins.
        max_iter: most iterations of a run, which ends sooner when no row changes its cluster.
        seed: of the seeding.
        sample_weight: weights of the rows, not negative; a weight of two equals two copies.
        engine: runs one descent; :func:`lloyd` unless given.

    Returns:
        ``centers``, ``assignment``, ``objective`` (weighted sum of 1 - cosine) and ``history``.
    """
    rows, weight = _prepare(x, n_clusters, n_init, max_iter, sample_weight)
    run = lloyd if engine is None else engine
    generator = torch.Generator().manual_seed(int(seed))
    results = (
        run(rows, seed_centers(rows, n_clusters, generator, weight), weight, max_iter=max_iter) for _ in range(n_init)
    )
    best = min(results, key=lambda result: result.objective)
    if len(best.centers) < n_clusters:
        warnings.warn(
            f"{n_clusters} clusters were asked for, and the rows hold only {len(best.centers)} distinct directions",
            stacklevel=3,  # past the wrapper of no_grad
        )
    return best


def seed_centers(x: Tensor, n_clusters: int, generator: torch.Generator, weight: Tensor) -> Float[Tensor, "k d"]:
    """Seed by greedy k-means++ on the cosine distance: each new centre is the best of a few drawn by distance.

    On the sphere 1 - cosine is half the squared distance, so the usual guarantee holds. Stops early when every row
    coincides with a centre.
    """
    trials = 2 + int(math.log(n_clusters))
    chosen = [_draw(weight, 1, generator)]
    nearest = _cosine_distance(x, x[chosen[0]])
    while len(chosen) < n_clusters and bool((nearest * weight).sum() > 0):
        candidates = _draw(nearest * weight, trials, generator)
        closer = torch.minimum(nearest, _cosine_distance(x, x[candidates]))  # (trials, n)
        best = int((closer * weight).sum(1).argmin())
        chosen.append(candidates[best : best + 1])
        nearest = closer[best : best + 1]
    return x[torch.cat(chosen)].clone()


def lloyd(x: Tensor, centers: Tensor, weight: Tensor, *, max_iter: int) -> KMeansResult:
    """Alternate assignment and normalised mean until no row moves. The objective never rises."""
    rows = _Rows(x, weight, x if bool((weight == 1).all()) or x.is_cuda else x * weight[:, None])
    assigned = _assign(rows, centers)
    history = [assigned.objective]
    for _ in range(max_iter):
        centers = _update(rows, centers, assigned)
        previous, assigned = assigned, _assign(rows, centers)
        history.append(assigned.objective)
        if torch.equal(previous.label, assigned.label):  # an empty cluster that moved to a row would have won it
            break
    live = assigned.mass > 0
    if not live.all():  # empty clusters are left out; rows of weight zero may have stood in one
        centers = centers[live]
        assigned = _assign(rows, centers)
    return KMeansResult(centers, assigned.label, assigned.objective, tuple(history))


def _assign(rows: _Rows, centers: Tensor) -> _Assigned:
    """Assign each row to its nearest centre and sum up clusters, in one pass over the rows."""
    sums, mass = torch.zeros_like(centers), centers.new_zeros(len(centers))
    step = max(1, _CHUNK_ENTRIES // len(centers))
    parts = []
    for x, weight, weighted in _blocks(rows, step):
        similarity = x @ centers.T
        parts.append(similarity.max(1))
        label = parts[-1].indices
        _add_by_cluster(sums, x, label, weight, weighted, similarity)
        mass.index_add_(0, label, weight)
    cosine, label = parts[0] if len(parts) == 1 else (torch.cat(column) for column in zip(*parts, strict=True))
    distance = (1 - cosine).clamp_(min=0)
    return _Assigned(label, distance, float((distance.double() * rows.weight).sum()), sums, mass)


def _blocks(rows: _Rows, step: int) -> Iterable[_Rows]:
    if len(rows.x) <= step:  # a small class takes thousands of passes, and each cut of a tensor costs as much as a sum
        return [rows]
    return (_Rows(*(each[start : start + step] for each in rows)) for start in range(0, len(rows.x), step))


def _add_by_cluster(sums: Tensor, x: Tensor, label: Tensor, weight: Tensor, weighted: Tensor, scratch: Tensor) -> None:
    """Add each row, times its weight, to its cluster's sum.

    A GPU adds scattered rows in an order that changes from run to run. There a product with the one-hot memberships,
    in memory that is already allocated, gives the same sum every time.
    """
    if x.is_cuda:
        sums += scratch.zero_().scatter_(1, label[:, None], weight[:, None]).T @ x
    else:
        sums.index_add_(0, label, weighted)


def _update(rows: _Rows, centers: Tensor, assigned: _Assigned) -> Tensor:
    """Return normalised means. A cluster whose rows cancel keeps its centre, an empty one moves to the farthest row."""
    eps = torch.finfo(centers.dtype).eps
    norm = torch.linalg.vector_norm(assigned.sums, dim=1, keepdim=True)
    cancels = norm <= eps * assigned.mass[:, None]
    updated: Tensor = assigned.sums / norm
    if not cancels.any():
        return updated
    updated = torch.where(cancels, centers, assigned.sums / torch.where(cancels, 1, norm))
    empty = (assigned.mass == 0).nonzero().squeeze(1)
    cost = assigned.distance * rows.weight
    worst = cost.topk(min(len(empty), len(cost))).indices
    worst = worst[cost[worst] > eps * 8]  # a row close to its centre needs no centre of its own
    updated[empty[: len(worst)]] = rows.x[worst]
    return updated


def _prepare(
    x: Tensor, n_clusters: int, n_init: int, max_iter: int, sample_weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    if not isinstance(x, Tensor) or x.ndim != 2 or not x.is_floating_point():
        raise TypeError("x must be a floating-point tensor of rows (n, d)")
    for name, value in {"n_clusters": n_clusters, "n_init": n_init, "max_iter": max_iter}.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"{name} must be a whole number, not {value!r}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if not len(x):
        raise ValueError("x has no rows to cluster")
    rows = normalise(x)
    length = torch.linalg.vector_norm(rows, dim=1)
    if not (length > 0.5).all():  # zero, or NaN
        raise ValueError(
            f"x has a row without a direction (zero or not finite): row {int((~(length > 0.5)).nonzero()[0])}"
        )
    weight = rows.new_ones(len(rows)) if sample_weight is None else sample_weight.to(rows)
    if weight.shape != (len(rows),):
        raise ValueError(f"sample_weight needs one entry per row: {len(rows)}, not shape {tuple(weight.shape)}")
    if not bool(torch.isfinite(weight).all() and (weight >= 0).all() and (weight > 0).any()):
        raise ValueError("sample_weight must be finite and not negative, and not all zero")
    return rows, weight


def _cosine_distance(x: Tensor, centers: Tensor) -> Tensor:
    """Return distances (k, n), with those that are mere rounding set to zero."""
    distance = 1 - centers @ x.T
    return distance.masked_fill_(distance < 8 * torch.finfo(x.dtype).eps, 0)


def _draw(mass: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Draw ``n`` indices in proportion to ``mass``. By bisection, because ``multinomial`` is limited to 2^24 rows."""
    cumulative = mass.flatten().double().cumsum(0)
    points = torch.rand(n, generator=generator, dtype=torch.float64).to(mass.device) * cumulative[-1]
    return torch.searchsorted(cumulative, points, right=True).clamp(max=mass.numel() - 1)
