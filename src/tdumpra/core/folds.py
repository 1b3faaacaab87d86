"""Parts of a data set between which no group is shared."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from tdumpra.core.lesions import lesion_of_each_row

Array = np.ndarray


def group_folds(groups: Array | None, y: Int[Array, " n"], n_folds: int, *, seed: int) -> Int[Array, " n"]:
    """The fold of each row: whole groups, dealt out in turn class by class, so that folds have like class shares.

    Without groups each row is one of its own.
    """
    _, first, member = np.unique(lesion_of_each_row(groups, len(y)), return_index=True, return_inverse=True)
    if len(first) < n_folds:
        raise ValueError(f"{n_folds} folds need at least as many groups, and there are {len(first)}")
    shuffled = np.random.default_rng(seed).permutation(len(first))
    dealt = shuffled[np.argsort(y[first][shuffled], kind="stable")]  # a group's class is that of its first row
    fold = np.empty(len(first), dtype=np.int64)
    fold[dealt] = np.arange(len(first)) % n_folds
    return fold[member]
