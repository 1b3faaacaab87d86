"""Cluster the training rows of a class, in memory that does not grow with their number.

A class of up to :data:`CLUSTERED_ROWS` rows is clustered exactly, by Lloyd's iterations over all of them with restarts.
Of a larger class so many, drawn at random, are clustered like that; from their centres Lloyd's iterations go on over
all of its rows, which are read in order, a block at a time, for all large classes at once: rows of a file that is
mapped into memory are read as often as there are passes, and never held.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdumpra.checks import some_of
from tdumpra.core.kmeans import Engine, spherical_kmeans
from tdumpra.core.rowwise import BLOCK, block_rows, normalise, widen

CLUSTERED_ROWS = 100_000  # of a class; of more, so many are clustered first
FIRST_ROWS = 4096  # names of groups that are compared first: those of millions of rows take seconds
MOST_PASSES = 10  # over all rows of the large classes
SETTLED = 1e-3  # share of the objective that a pass must gain for another one to follow
_ORDINARY = (1e-15, 1e15)  # lengths whose squares float32 holds


class Directions:
    """Rows of length one. Of many rows, those that are asked for are normalised then: a second copy is too much."""

    def __init__(self, rows: Tensor) -> None:
        self.n_rows, self.width = rows.shape
        self._few = self.n_rows <= BLOCK
        self._rows = normalise(rows).cpu() if self._few else rows

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        return self._rows[rows] if self._few else _unit(self._rows[rows]).cpu()

    def blocks(self, width: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Yield all rows in order, some at a time, and which they are; ``width`` numbers are to be made of each."""
        step = block_rows(max(self.width, width or 0))
        for start in range(0, self.n_rows, step):
            rows = slice(start, min(start + step, self.n_rows))
            yield rows, self[rows]


def _unit(rows: Tensor) -> Tensor:
    """Normalise in one pass where no length is so extreme that it needs two."""
    rows = widen(rows)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    low, high = _ORDINARY
    return rows / norms if bool(((norms > low) & (norms < high)).all()) else normalise(rows)


class Clusters(NamedTuple):
    """One class's clusters: its rows' numbers and weights, the centres, each row's centre, and how many merged."""

    rows: Tensor
    mass: Tensor | None  # None: all alike
    centers: Tensor
    assignment: Tensor
    merged: int


def cluster_classes(
    z: Directions, mass: Tensor | None, of_class: Sequence[Tensor], wanted: Sequence[int], *, seed: int,
    merge_above: float | None, engine: Engine | None,
) -> list[Clusters]:  # fmt: skip
    """Cluster the rows of each class into as many clusters as are wanted of it."""
    clusters = [
        _cluster_class(z, mass, rows, k, seed=seed, merge_above=merge_above, engine=engine)
        for rows, k in zip(of_class, wanted, strict=True)
    ]
    large = [c for c, rows in enumerate(of_class) if len(rows) > CLUSTERED_ROWS]
    if large:
        settled = _settle(z, mass, [clusters[c] for c in large])
        for c, each in zip(large, settled, strict=True):
            clusters[c] = each
    return clusters


def _cluster_class(
    z: Directions, mass: Tensor | None, rows: Tensor, k: int, *, seed: int, merge_above: float | None,
    engine: Engine | None,
) -> Clusters:  # fmt: skip
    """Cluster the rows of a class. Of many, a part is clustered, and no row has its centre yet."""
    of_rows = None if mass is None else mass[rows]
    if not len(rows):
        return Clusters(rows, of_rows, z[rows], rows, 0)
    part = rows
    if len(rows) > CLUSTERED_ROWS:
        drawn = np.random.default_rng(seed).choice(len(rows), CLUSTERED_ROWS, replace=False)
        part = rows[torch.from_numpy(np.sort(drawn))]
    of_part, weight = z[part], None if mass is None else mass[part]
    with warnings.catch_warnings():  # fewer distinct directions than asked for: the mask says so
        warnings.filterwarnings("ignore", message=".*distinct directions")
        result = spherical_kmeans(of_part, k, seed=seed, sample_weight=weight, engine=engine)
    centers, assignment = result.centers, result.assignment
    if merge_above is not None and merge_above < 1:
        centers, assignment = _merge_near_duplicates(of_part, weight, centers, assignment, merge_above)
    return Clusters(rows, of_rows, centers, assignment, len(result.centers) - len(centers))


def _settle(z: Directions, mass: Tensor | None, clusters: list[Clusters]) -> list[Clusters]:
    """Go on with Lloyd's iterations over all rows of these classes, until a pass gains next to nothing.

    Each pass reads the rows once, in order, and gives every row to its nearest centre; between two passes a centre
    moves to the normalised mean of its rows. The objective never rises.
    """
    first = np.cumsum([0, *(len(each.centers) for each in clusters)])  # the number of each class's first centre
    centers = torch.cat([each.centers for each in clusters])
    class_of = torch.full((z.n_rows,), -1, dtype=torch.int32)
    for number, each in enumerate(clusters):
        class_of[each.rows] = number
    label, before = torch.empty(z.n_rows, dtype=torch.int32), float("inf")
    for number_of_pass in range(MOST_PASSES):
        found = _pass(z, mass, class_of, first, centers, label)
        gained = before - found.objective
        if gained <= SETTLED * found.objective or number_of_pass == MOST_PASSES - 1:
            break
        norm = torch.linalg.vector_norm(found.sums, dim=1, keepdim=True)
        still = norm <= torch.finfo(centers.dtype).eps  # a centre without rows, or whose rows cancel
        centers = torch.where(still, centers, (found.sums / torch.where(still, 1, norm)).to(centers))
        before = found.objective
    return [
        _with_rows(each, centers[start:end], label[each.rows].long() - int(start))
        for each, start, end in zip(clusters, first[:-1], first[1:], strict=True)
    ]


def _with_rows(clusters: Clusters, centers: Tensor, assignment: Tensor) -> Clusters:
    """Return the centres that have rows: one may have lost its last to others."""
    live = torch.bincount(assignment, minlength=len(centers)) > 0
    return clusters._replace(centers=centers[live], assignment=(live.cumsum(0) - 1)[assignment])


class _Pass(NamedTuple):
    objective: float
    sums: Tensor  # (centres, d) of the rows that each centre has, in float64


def _pass(
    z: Directions, mass: Tensor | None, class_of: Tensor, first: np.ndarray, centers: Tensor, label: Tensor
) -> _Pass:
    """Give each row to its nearest centre, noted in ``label``, and sum up the rows of each centre."""
    sums, objective = torch.zeros(centers.shape, dtype=torch.float64), 0.0
    for rows, block in z.blocks(int(np.diff(first).max())):
        of_block = class_of[rows]
        for number in torch.unique(of_block[of_block >= 0]).tolist():
            own = centers[first[number] : first[number + 1]]
            chosen = (of_block == number).nonzero().squeeze(1)
            x = block[chosen]
            cosine, nearest = (x @ own.T).max(1)
            weight = None if mass is None else mass[rows][chosen].to(x)
            part = torch.zeros(own.shape, dtype=x.dtype)
            part.index_add_(0, nearest, x if weight is None else x * weight[:, None])
            sums[first[number] : first[number + 1]] += part
            distance = (1 - cosine).clamp(min=0).double()
            objective += float(distance.sum() if weight is None else (distance * weight).sum())
            label[rows][chosen] = (nearest + int(first[number])).int()
    return _Pass(objective, sums)


def _merge_near_duplicates(
    z: Tensor, mass: Tensor | None, centers: Tensor, assignment: Tensor, above: float
) -> tuple[Tensor, Tensor]:
    """Join the closest pair of clusters until no two centres are closer than ``above``."""
    z = z if mass is None else z * mass[:, None].to(z)
    while len(centers) > 1:
        closeness = (centers @ centers.T).fill_diagonal_(-1)
        if closeness.max() <= above:
            break
        keep, drop = sorted(divmod(int(closeness.argmax()), len(centers)))
        assignment = torch.where(assignment == drop, keep, assignment)
        assignment = assignment - (assignment > drop).long()
        centers = normalise(torch.zeros_like(centers[1:]).index_add_(0, assignment, z))
    return centers, assignment


def count_groups(groups: np.ndarray, rows: np.ndarray, most: int) -> int:
    """Count the distinct groups of some rows, up to ``most``."""
    of_first = len(np.unique(groups[rows[:FIRST_ROWS]]))
    return min(most, of_first if of_first >= most else len(np.unique(groups[rows])))


def warn_of_large_classes(of_class: list[Tensor], class_names: Sequence[str] | None) -> None:
    """Say which classes have so many rows that a part of them is clustered."""
    names = class_names or [f"class {c}" for c in range(len(of_class))]
    large = [f"{names[c]} has {len(members):,}" for c, members in enumerate(of_class) if len(members) > CLUSTERED_ROWS]
    if large:
        warnings.warn(
            f"some classes have many training rows ({some_of(large)}): clustering starts "
            f"from {CLUSTERED_ROWS:,} of them, drawn at random, and ends after at most {MOST_PASSES} passes over all",
            stacklevel=3,
        )
