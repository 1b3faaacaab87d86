"""Audit a data set under a protocol: what leaks from training into the test, by group and by look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdumpra.checks import SPLITS
from tdumpra.data.duplicates import DuplicatePair, NearDuplicates
from tdumpra.data.leakage import audit_leakage
from tdumpra.data.manifest import Manifest
from tdumpra.data.splits import Split

_OF_PIXELS = ("look-alikes of different groups", "files that cannot be read")  # what tables do not tell
LISTED_PAIRS = 1000  # the closest; a data set of copies has millions


@dataclass(frozen=True, slots=True)
class Audit:
    """A data set, its split, and its near-duplicates where they were searched for."""

    manifest: Manifest
    split: Split
    near_duplicates: NearDuplicates | None = None

    def document(self) -> dict[str, Any]:
        """Return the audit as JSON values; classes go by name, shares are between 0 and 1."""
        manifest, split = self.manifest, self.split
        leak = audit_leakage(split.codes, manifest.groups, manifest.labels)
        leak["by_class"] = {manifest.class_names[label]: counts for label, counts in leak["by_class"].items()}
        return {
            "source": manifest.name,
            "fingerprint": manifest.fingerprint,
            "protocol": split.protocol,
            "hold_out": split.hold_out,
            "outer_folds": split.outer_folds,
            "fold": split.fold,
            "seed": split.seed,
            "drawn": split.words,
            "images": len(manifest),
            "groups": len(np.unique(manifest.groups)),
            "repeated": self._repeated(),
            "classes": list(manifest.class_names),
            "splits": {part: self._part(split.rows(part)) for part in SPLITS},
            "leak": leak,
            "unreadable": self._unreadable(),
            "near_duplicates": self._near_duplicates(),
            "unchecked": [] if self.near_duplicates is not None else list(_OF_PIXELS),
            "notes": [*manifest.notes, *split.notes, *_warning(leak)],
        }

    def crosses(self, pair: DuplicatePair) -> bool:
        """Return whether the two images are in different parts of the split: a leak that no group shows."""
        return bool(self.split.codes[pair.first] != self.split.codes[pair.second])

    def pair_document(self, pair: DuplicatePair) -> dict[str, Any]:
        """Return one pair as JSON values."""
        both = [self.manifest.records[row] for row in pair[:2]]
        return {
            "ids": [record.id for record in both],
            "groups": [record.group for record in both],
            "labels": [self.manifest.class_names[record.label] for record in both],
            "splits": [SPLITS[self.split.codes[row]] for row in pair[:2]],
            "similarity": round(pair.similarity, 4),
            "distance": pair.distance,
        }

    def _part(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        labels, groups = self.manifest.labels[rows], self.manifest.groups[rows]
        by_class = {name: int((labels == label).sum()) for label, name in enumerate(self.manifest.class_names)}
        return {"images": len(rows), "groups": len(np.unique(groups)), "by_class": by_class}

    def _repeated(self) -> dict[str, int]:
        """Count the groups of several images, their images, and those groups whose images have different classes."""
        _, member, sizes = np.unique(self.manifest.groups, return_inverse=True, return_counts=True)
        classes = np.unique(np.stack([member, self.manifest.labels]), axis=1)[0]
        mixed = int((np.bincount(classes) > 1).sum())
        return {"groups": int((sizes > 1).sum()), "images": int(sizes[sizes > 1].sum()), "of_several_classes": mixed}

    def _unreadable(self) -> dict[str, Any] | None:
        """Return the images that cannot be decoded, which the counts include; ``None`` if none was opened."""
        if self.near_duplicates is None:
            return None
        broken = self.near_duplicates.broken
        in_part = {part: sum(self.split.ids[row] in broken for row in self.split.rows(part)) for part in SPLITS}
        return {"images": len(broken), "splits": in_part, "reasons": broken}

    def _near_duplicates(self) -> dict[str, Any] | None:
        found = self.near_duplicates
        if found is None:
            return None
        labels = self.manifest.labels.tolist()
        return {
            "pairs": len(found.pairs),
            "crossing": sum(map(self.crosses, found.pairs)),
            "other_label": sum(labels[pair.first] != labels[pair.second] for pair in found.pairs),
            "listed": [self.pair_document(pair) for pair in found.pairs[:LISTED_PAIRS]],
            "broken": found.broken,
            "flat": found.flat,
        }


def _warning(leak: dict[str, Any]) -> list[str]:
    if not leak["images"]:
        return []
    return [
        f"{leak['share']:.1%} of the test images share a group with training or validation: "
        "results under this protocol are too good"
    ]
