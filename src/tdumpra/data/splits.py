"""Split a data set into train, validation and test under a protocol.

==========  ===========================================================================================================
protocol    how the parts are drawn
==========  ===========================================================================================================
`grouped`   stratified by class, no group (lesion, patient) in two parts: the basis of every claim
`paper`     stratified by image, as the paper does it; groups leak, and the audit says how many
`external`  the test part is a data set of its own; validation is drawn as in `grouped`
==========  ===========================================================================================================

Under `grouped` the test part need not be drawn at random:

===============  ======================================================================================================
setting          the test part
===============  ======================================================================================================
`hold_out`       every image of one value of a metadata column (`site=rosendahl`), and the other images of their groups
`outer_folds`    one of several folds, stratified by class, which together test every group exactly once
===============  ======================================================================================================

A source's own split is kept under each protocol; only a part that it does not name at all is drawn, from its training
images. `hold_out` and `outer_folds` refuse a source that names its own test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdumpra.artifacts import fingerprint, read_json, write_json
from tdumpra.checks import SPLITS, check_choice, check_count, check_split
from tdumpra.data.draw import draw_part
from tdumpra.data.held_out import held_out, outer_fold, refuse_untrained
from tdumpra.data.leakage import refuse_crossing_groups
from tdumpra.data.manifest import Manifest
from tdumpra.errors import ArtifactError
from tdumpra.foreign import reading

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
    hold_out: str | None = None  # COLUMN=VALUE of the test images, where they were chosen so
    outer_folds: int | None = None
    fold: int | None = None  # which of them is the test

    def __post_init__(self) -> None:
        codes = check_split(self.codes, "codes", n_rows=len(self.ids))
        codes.setflags(write=False)
        object.__setattr__(self, "codes", codes)
        check_choice(self.protocol, "protocol", PROTOCOLS)

    @property
    def fingerprint(self) -> str:
        """A hash that changes when any image moves, or when the data set or the way to its test does."""
        chosen = [f"{name}={value}" for name, value in self._chosen().items()]
        return fingerprint(self.source, self.protocol, "\n".join(self.ids), self.codes.tobytes(), *chosen)

    @property
    def words(self) -> str:
        """How the parts were drawn, for people."""
        return split_words({"protocol": self.protocol, "seed": self.seed, **self._chosen()})

    def rows(self, part: str) -> NDArray[np.int64]:
        """Return the positions of the records of ``train``, ``val`` or ``test``."""
        if part not in SPLITS:
            raise ValueError(f"a split has the parts {', '.join(SPLITS)}, not {part!r}")
        return np.flatnonzero(self.codes == SPLITS.index(part))

    def write(self, path: str | Path) -> None:
        """Write the ids of each part as sealed JSON."""
        parts = {part: [self.ids[row] for row in self.rows(part)] for part in SPLITS}
        drawn = {"protocol": self.protocol, "seed": self.seed, **self._chosen()}
        content = {**drawn, "source": self.source, "notes": self.notes, **parts}
        write_json(path, kind="split", schema=_SCHEMA, content=content)

    def _chosen(self) -> dict[str, Any]:
        """Return how the test was chosen, where it was not drawn at random."""
        chosen = {"hold_out": self.hold_out, "outer_folds": self.outer_folds, "fold": self.fold}
        return {name: value for name, value in chosen.items() if value is not None}

    @classmethod
    def read(cls, path: str | Path, manifest: Manifest) -> Split:
        """Read a split; ``ArtifactError`` if it was made for another data set."""
        content = read_json(path, kind="split", schema=_SCHEMA)
        with reading(path, "tdumpra split", ArtifactError):
            where = {image: code for code, part in enumerate(SPLITS) for image in content[part]}
            ids = tuple(record.id for record in manifest.records)
            if content["source"] != manifest.fingerprint:
                unknown = len(set(ids) ^ set(where))
                why = (
                    f"{unknown:,} images are in only one of the two" if unknown else "labels, groups or classes differ"
                )
                raise ArtifactError(f"{path} was made for another data set ({why}): make the split again")
            codes = np.array([where[image] for image in ids], dtype=np.int8)
            split = cls(
                content["protocol"], content["seed"], content["source"], ids, codes, tuple(content["notes"]),
                content.get("hold_out"), content.get("outer_folds"), content.get("fold"),
            )  # fmt: skip
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
    hold_out: str | None = None,
    outer_folds: int | None = None,
    fold: int | None = None,
) -> Split:
    """Draw the parts of a data set under a protocol.

    ``val_share`` counts among the images that are not test; ``val_fold`` says which of the disjoint validation parts of
    that share to take, with the same test part. ``hold_out`` or ``outer_folds`` and ``fold`` choose the test part.
    """
    check_choice(protocol, "protocol", PROTOCOLS)
    check_count(seed, "seed", least=0)
    for share, name in ((test_share, "test_share"), (val_share, "val_share")):
        if not 0 < share <= 0.5:
            raise ValueError(f"{name} must be above 0 and at most 0.5, not {share!r}")
    check_count(val_fold, "val_fold", least=0)
    if val_fold >= val_folds(val_share):
        raise ValueError(f"a val_share of {val_share} gives {val_folds(val_share)} folds, so none of number {val_fold}")
    check_test_choice(protocol, hold_out, outer_folds, fold)
    by_group = protocol != "paper"
    labels, groups = manifest.labels, manifest.groups
    codes, notes = _own_split(manifest, by_group=by_group)
    if hold_out is not None or outer_folds is not None:
        notes += _choose_test(manifest, codes, seed, hold_out, outer_folds, fold)
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
        which = val_fold if part == _VAL else 0
        drawn = draw_part(labels[pool], groups[pool] if by_group else pool, share, (seed, part), which)
        codes[pool[drawn]] = part
        notes += _imbalance(labels[pool], drawn, share, SPLITS[part], manifest.class_names)
    if not (codes == _TRAIN).any():
        raise ValueError(f"{manifest.name} holds no training images: name the source to train on, and this as its test")
    if by_group:
        refuse_crossing_groups(codes, groups)
    ids = tuple(record.id for record in manifest.records)
    return Split(protocol, seed, manifest.fingerprint, ids, codes, tuple(notes), hold_out, outer_folds, fold)


def check_test_choice(protocol: str, hold_out: str | None, outer_folds: int | None, fold: int | None) -> None:
    """Refuse ways to the test part that exclude each other."""
    if hold_out is not None and outer_folds is not None:
        raise ValueError("hold_out and outer_folds both say which images are the test: choose one")
    for name, value in (("hold_out", hold_out), ("outer_folds", outer_folds)):
        if value is not None and protocol != "grouped":
            raise ValueError(f"{name} chooses the test by group, and the protocol {protocol!r} does not: leave one out")
    if outer_folds is not None:
        check_count(outer_folds, "outer_folds", least=2)
    if fold is not None:
        check_count(fold, "fold", least=0)
        if outer_folds is None or fold >= outer_folds:
            has = "there are no outer_folds" if outer_folds is None else f"outer_folds = {outer_folds} counts from 0"
            raise ValueError(f"fold = {fold} is none of the outer folds: {has}")


def split_words(drawn: Mapping[str, Any]) -> str:
    """Say how parts were drawn, from what a split's file says of it."""
    words = f"protocol {drawn['protocol']}"
    if drawn.get("hold_out") is not None:
        words += f", held out {drawn['hold_out']}"
    if drawn.get("outer_folds") is not None:
        words += f", fold {drawn['fold']} of {drawn['outer_folds']}"
    return f"{words}, seed {drawn['seed']}"


def _choose_test(
    manifest: Manifest,
    codes: NDArray[np.int8],
    seed: int,
    hold_out: str | None,
    outer_folds: int | None,
    fold: int | None,
) -> list[str]:
    """Put the chosen test images into ``codes``; return notes."""
    setting, taken = ("outer_folds", (_VAL, _TEST)) if hold_out is None else ("hold_out", (_TEST,))
    if np.isin(codes, taken).any():
        raise ValueError(f"{manifest.name} names a split of its own, and {setting} chooses another: leave one out")
    notes: list[str] = []
    if hold_out is not None:
        in_test, notes = held_out(manifest, hold_out)
    elif outer_folds is None or fold is None:
        raise ValueError(f"outer_folds = {outer_folds} gives as many splits: say with fold which one is wanted")
    else:
        in_test = outer_fold(manifest, outer_folds, fold, seed)
    refuse_untrained(manifest, in_test)
    codes[in_test] = _TEST
    return notes


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
