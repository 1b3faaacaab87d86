"""Split a data set into train, validation and test under a protocol.

==========  ===========================================================================================================
protocol    how the parts are drawn
==========  ===========================================================================================================
`grouped`   stratified by class, no group (lesion, patient) in two parts: the basis of every claim
`paper`     stratified by image, as the paper does it; groups leak, and the audit says how many
`external`  the test part is a data set of its own; validation is drawn as in `grouped`
==========  ===========================================================================================================

A source's own split is kept under each of them; only a part that it does not name at all is drawn, from its training
images.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdumpra.artifacts import fingerprint, read_json, write_json
from tdumpra.checks import SPLITS, check_choice, check_count, check_split
from tdumpra.data.leakage import refuse_crossing_groups
from tdumpra.data.manifest import Manifest
from tdumpra.errors import ArtifactError

PROTOCOLS = ("grouped", "paper", "external")

_SCHEMA = 1
_TRAIN, _VAL, _TEST = range(3)
_TOLERANCE = 0.03  # a class whose share of a part is further off than this gets a note


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The part of each image of one data set, in the order of the manifest's records."""

    protocol: str
    seed: int
    source: str  # the fingerprint of the manifest it belongs to
    ids: tuple[str, ...]
    codes: NDArray[np.int8]  # 0 train, 1 val, 2 test
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        codes = check_split(self.codes, "codes", n_rows=len(self.ids))
        codes.setflags(write=False)
        object.__setattr__(self, "codes", codes)
        check_choice(self.protocol, "protocol", PROTOCOLS)

    @property
    def fingerprint(self) -> str:
        """A hash that changes when any image moves, or when the data set does."""
        return fingerprint(self.source, self.protocol, "\n".join(self.ids), self.codes.tobytes())

    def rows(self, part: str) -> NDArray[np.int64]:
        """Return the positions of the records of ``train``, ``val`` or ``test``."""
        if part not in SPLITS:
            raise ValueError(f"a split has the parts {', '.join(SPLITS)}, not {part!r}")
        return np.flatnonzero(self.codes == SPLITS.index(part))

    def write(self, path: str | Path) -> None:
        """Write the ids of each part as sealed JSON."""
        parts = {part: [self.ids[row] for row in self.rows(part)] for part in SPLITS}
        content = {"protocol": self.protocol, "seed": self.seed, "source": self.source, "notes": self.notes, **parts}
        write_json(path, kind="split", schema=_SCHEMA, content=content)

    @classmethod
    def read(cls, path: str | Path, manifest: Manifest) -> Split:
        """Read a split; ``ArtifactError`` if it was made for another data set."""
        content = read_json(path, kind="split", schema=_SCHEMA)
        where = {image: code for code, part in enumerate(SPLITS) for image in content[part]}
        ids = tuple(record.id for record in manifest.records)
        if content["source"] != manifest.fingerprint:
            unknown = len(set(ids) ^ set(where))
            why = f"{unknown:,} images are in only one of the two" if unknown else "labels, groups or classes differ"
            raise ArtifactError(f"{path} was made for another data set ({why}): make the split again")
        codes = np.array([where[image] for image in ids], dtype=np.int8)
        split = cls(content["protocol"], content["seed"], content["source"], ids, codes, tuple(content["notes"]))
        if split.protocol != "paper":
            refuse_crossing_groups(split.codes, manifest.groups)
        return split


def make_split(
    manifest: Manifest,
    protocol: str = "grouped",
    *,
    seed: int = 0,
    test_share: float = 0.2,
    val_share: float = 0.1,
    val_fold: int = 0,
) -> Split:
    """Draw the parts of a data set under a protocol.

    ``val_share`` counts among the images that are not test; ``val_fold`` says which of the disjoint validation parts of
    that share to take, with the same test part.
    """
    check_choice(protocol, "protocol", PROTOCOLS)
    check_count(seed, "seed", least=0)
    for share, name in ((test_share, "test_share"), (val_share, "val_share")):
        if not 0 < share <= 0.5:
            raise ValueError(f"{name} must be above 0 and at most 0.5, not {share!r}")
    check_count(val_fold, "val_fold", least=0)
    if val_fold >= val_folds(val_share):
        raise ValueError(f"a val_share of {val_share} gives {val_folds(val_share)} folds, so none of number {val_fold}")
    by_group = protocol != "paper"
    labels, groups = manifest.labels, manifest.groups
    codes, notes = _own_split(manifest, by_group=by_group)
    shares = {_TEST: test_share, _VAL: val_share}
    if (codes == _TEST).any():
        del shares[_TEST]
    elif protocol == "external":
        raise ValueError("the protocol 'external' needs a test set of its own: name its source beside the training one")
    if (codes == _VAL).any():
        del shares[_VAL]
        if val_fold:
            raise ValueError("the source names its own validation images: there is no other part to take")
    if shares and any(record.split for record in manifest.records):
        notes.append(
            f"the source names no images for {' and '.join(SPLITS[part] for part in shares)}: drawn from train"
        )
    for part, share in shares.items():
        pool = np.flatnonzero(codes == _TRAIN)
        fold = val_fold if part == _VAL else 0
        drawn = _draw_fold(labels[pool], groups[pool] if by_group else pool, share, (seed, part), fold)
        codes[pool[drawn]] = part
        notes += _imbalance(labels[pool], drawn, share, SPLITS[part], manifest.class_names)
    if not (codes == _TRAIN).any():
        raise ValueError(f"{manifest.name} holds no training images: name the source to train on, and this as its test")
    if by_group:
        refuse_crossing_groups(codes, groups)
    ids = tuple(record.id for record in manifest.records)
    return Split(protocol, seed, manifest.fingerprint, ids, codes, tuple(notes))


def val_folds(val_share: float) -> int:
    """Return how many disjoint validation parts of this share there are."""
    return int(1 / val_share + 1e-9)


def _own_split(manifest: Manifest, *, by_group: bool) -> tuple[NDArray[np.int8], list[str]]:
    """Return the source's own split; an image without a part goes to train, or with the rest of its group."""
    words = [record.split for record in manifest.records]
    codes = np.array([SPLITS.index(word) if word else _TRAIN for word in words], dtype=np.int8)
    free = np.array([word is None for word in words], dtype=bool)
    if not by_group or free.all() or not free.any():
        return codes, []
    place = {record.group: SPLITS.index(record.split) for record in manifest.records if record.split}
    following = 0
    for row in np.flatnonzero(free):
        codes[row] = place.get(manifest.records[row].group, _TRAIN)
        following += int(codes[row] != _TRAIN)
    return codes, [f"{following:,} images follow their group into the part that the source names"] if following else []


def _draw_fold(
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


def _imbalance(
    labels: NDArray[Any], drawn: NDArray[np.bool_], share: float, part: str, class_names: tuple[str, ...]
) -> list[str]:
    """Return a note for each class whose share of the part is off by more than a few per cent."""
    notes = []
    for label in np.unique(labels):
        count, got = int((labels == label).sum()), int(drawn[labels == label].sum())
        if abs(got / count - share) > _TOLERANCE:
            rounded = abs(got - share * count) < 1  # to whole images, and to one at least where there are several
            why = "it has too few images for such a share" if rounded else "its groups do not allow for more precision"
            notes.append(
                f"{class_names[label]}: {got:,} of its {count:,} images ({got / count:.1%}) in {part}, "
                f"where {share:.0%} were asked: {why}"
            )
    return notes
