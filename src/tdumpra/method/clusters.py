"""Cluster the training rows of a class, in memory that does not grow with their number."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdumpra.core.kmeans import Engine, spherical_kmeans
from tdumpra.core.rowwise import BLOCK, normalise

CLUSTERED_ROWS = 100_000  # of a class; of more, so many are clustered
FIRST_ROWS = 4096  # names of groups that are compared first: those of millions of rows take seconds


class Directions:
    """Rows of length one. Of many rows, those that are asked for are normalised then: a second copy is too much."""

    def __init__(self, rows: Tensor) -> None:
        self.n_rows, self.width = rows.shape
        self._few = self.n_rows <= BLOCK
        self._rows = normalise(rows).cpu() if self._few else rows

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        return self._rows[rows] if self._few else normalise(self._rows[rows]).cpu()

    def blocks(self, rows: Tensor | None = None) -> Iterator[Tensor]:
        """Yield these rows, or all of them, some at a time."""
        n = self.n_rows if rows is None else len(rows)
        for start in range(0, max(n, 1), BLOCK):
            block = slice(start, start + BLOCK)
            yield self[block if rows is None else rows[block]]


class Clusters(NamedTuple):
    """One class's clusters: its rows' numbers and weights, the centres, each row's centre, and how many merged."""

    rows: Tensor
    mass: Tensor | None  # None: all alike
    centers: Tensor
    assignment: Tensor
    merged: int


def cluster_class(
    z: Directions, mass: Tensor | None, rows: Tensor, k: int, *, seed: int, merge_above: float | None,
    engine: Engine | None,
) -> Clusters:  # fmt: skip
    """Cluster the rows of a class. Of many, a part is clustered, and each row then given to its nearest centre."""
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
    if len(part) < len(rows):
        assignment = torch.cat([(block @ centers.T).argmax(1) for block in z.blocks(rows)])
    return Clusters(rows, of_rows, centers, assignment, len(result.centers) - len(centers))


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
            f"some classes have many training rows ({', '.join(large)}): their prototypes are found on "
            f"{CLUSTERED_ROWS:,} of them, drawn at random, and each row is then given to its nearest",
            stacklevel=3,
        )
