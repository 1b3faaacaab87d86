"""The rows whose pooled features a model keeps, so that a new head is fitted beside them.

Of each class the first :data:`REPLAY_ROWS` of a draw are used, and the next :data:`RESERVE_ROWS` wait. A row's place in
the draw hangs on its name, and on its turn within its group: where groups leave, those that wait move up, as if these
had never been there. Where a single row leaves, the next of its group has its turn, from farther back than any reserve.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tdumpra.artifacts import fingerprint
from tdumpra.method.rows import Array, KeptRows

REPLAY_ROWS = 300  # of each class
RESERVE_ROWS = 60


def keep_features(rows: KeptRows, seed: int) -> KeptRows:
    """Keep the features of the rows that are used or wait."""
    rows = finite_features(rows)
    if rows.features is None:
        return rows
    kept = rows.has_features & drawn(rows, seed, REPLAY_ROWS + RESERVE_ROWS)
    return replace(rows, features=np.where(kept[:, None], rows.features, np.float16(0)), has_features=kept)


def in_use(rows: KeptRows, seed: int) -> Array:
    """Return which rows a head is fitted beside: the first of the model's own, and all added ones with features."""
    own = np.ones(len(rows), dtype=bool) if rows.sources is None else rows.sources == ""
    used: Array = rows.has_features.copy()
    if np.bincount(rows.y[used & own], minlength=1).max() > REPLAY_ROWS:  # else none of them waits
        used[own] &= drawn(rows.rows(own), seed, REPLAY_ROWS)
    return used


def drawn(rows: KeptRows, seed: int, most: int) -> Array:
    """Draw some rows of each class: of as many groups as possible, before any group has two."""
    key = np.array([fingerprint(str(seed), str(name)) for name in rows.ids], dtype=np.str_)
    order = np.argsort(key, kind="stable")
    turn, seen = np.zeros(len(rows), np.int64), dict[str, int]()
    for row in order:
        turn[row] = seen[rows.groups[row]] = seen.get(rows.groups[row], -1) + 1
    found = np.zeros(len(rows), dtype=bool)
    for label in np.unique(rows.y):
        of_class = order[rows.y[order] == label]
        found[of_class[np.argsort(turn[of_class], kind="stable")][:most]] = True
    return found


def finite_features(rows: KeptRows) -> KeptRows:
    """Leave features out that half precision cannot hold."""
    if rows.features is None:
        return rows
    features = np.asarray(rows.features, np.float16)
    kept = rows.has_features & np.isfinite(features).all(1)
    return replace(rows, features=np.where(kept[:, None], features, np.float16(0)), has_features=kept)
