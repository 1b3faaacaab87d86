"""Draw whole groups of images, stratified by class: one part of a given share, or folds that cover everything."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def draw_part(
    labels: NDArray[Any], groups: NDArray[Any], share: float, stream: tuple[int, int], fold: int
) -> NDArray[np.bool_]:
    """Mark the images of one of several disjoint draws, each about ``share`` of all."""
    free = np.ones(len(labels), dtype=bool)
    drawn = np.zeros_like(free)
    for number in range(fold + 1):
        rng = np.random.default_rng((*stream, number) if number else stream)  # so that no draw disturbs another
        rows = np.flatnonzero(free)
        drawn[:] = False
        drawn[rows[_draw(labels[rows], groups[rows], share * len(labels) / max(1, len(rows)), rng)]] = True
        free &= ~drawn
    return drawn


def _draw(labels: NDArray[Any], groups: NDArray[Any], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mark about ``share`` of the images of each class, whole groups at a time.

    Groups come in random order, and one is taken if every class has room for it: so lesions with many photographs stay
    on both sides, and the many lesions with one fill the rest. Exact to one image per class where a class has enough
    small groups.
    """
    names, inverse = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(names), int(labels.max(initial=0)) + 1), dtype=np.int64)  # images per group and class
    np.add.at(counts, (inverse, labels), 1)
    room = np.rint(share * counts.sum(0)).astype(np.int64)
    taken = np.zeros(len(names), dtype=bool)
    order = rng.permutation(len(names))
    for group in order:
        if (counts[group] <= room).all():
            taken[group] = True
            room -= counts[group]
    for group in order[~taken[order]]:  # only large groups are left: one may still bring a class nearer to its share
        if np.abs(room - counts[group]).sum() < np.abs(room).sum():
            taken[group] = True
            room -= counts[group]
    _mend_small_classes(taken, counts)
    return taken[inverse]


def _mend_small_classes(taken: NDArray[np.bool_], counts: NDArray[np.int64]) -> None:
    """Give each class a group on both sides; a class of a single group stays in training."""
    members = [np.flatnonzero(counts[:, label]) for label in range(counts.shape[1])]
    smallest = [own[counts[own].sum(1).argmin()] if len(own) else 0 for own in members]
    for own, group in zip(members, smallest, strict=True):
        if len(own) > 1 and not taken[own].any():
            taken[group] = True
    for own, group in zip(members, smallest, strict=True):
        if len(own) and taken[own].all():
            taken[group] = False


def draw_folds(labels: NDArray[Any], groups: NDArray[Any], n_folds: int, stream: tuple[int, int]) -> NDArray[np.int64]:
    """Return the fold of each image: every group in one fold, each class spread evenly over the folds.

    The rarest class comes first, its largest groups before the others, in random order among equals; each goes to the
    fold with the fewest images of the class. So every fold has a group of each class that has as many groups as there
    are folds, unless groups hold several classes.
    """
    names, inverse = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(names), int(labels.max(initial=0)) + 1), dtype=np.int64)  # images per group and class
    np.add.at(counts, (inverse, labels), 1)
    size, held = counts.sum(1), np.zeros((n_folds, counts.shape[1]), dtype=np.int64)
    order = np.random.default_rng(stream).permutation(len(names))
    order = order[np.argsort(-size[order], kind="stable")]
    fold_of = np.full(len(names), -1, dtype=np.int64)
    for label in np.argsort((counts > 0).sum(0), kind="stable"):
        for group in order[(counts[order, label] > 0) & (fold_of[order] < 0)]:
            fold = np.lexsort((held.sum(1), held[:, label]))[0]
            fold_of[group] = fold
            held[fold] += counts[group]
    return fold_of[inverse]
