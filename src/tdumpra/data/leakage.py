"""Report the groups that leak between the parts of a split, or refuse the split."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tdumpra.checks import SPLITS, check_groups, check_labels, check_split

_TEST = SPLITS.index("test")


def audit_leakage(split: Any, groups: Any, labels: Any = None) -> dict[str, Any]:
    """Count the test images that share a group (a lesion, a patient) with a training or validation image.

    Args:
        split: ``train``/``val``/``test`` or 0/1/2, one entry per image.
        groups: the group of each image.
        labels: integer classes; when given, the count is also made class by class.

    Returns:
        ``images`` leaked, ``of`` how many test images, their ``share``, the number of ``groups`` they leak through, and
        ``by_class`` with the same for each class. ``validation`` counts validation images that share a group with a
        training image: a leak into the tuning. ``crossing_groups`` counts both kinds, ``example`` names one of them.
    """
    codes = check_split(split)
    names = check_groups(groups, "groups", n_rows=len(codes))
    if names is None:
        raise TypeError("groups must name each image's group; None names none")
    in_test = codes == _TEST
    distinct, member = np.unique(names, return_inverse=True)  # names are compared once, their numbers from here on

    def shared_with(rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        found = np.zeros(len(distinct), dtype=bool)
        found[member[rows]] = True
        return found[member]

    leaked = in_test & shared_with(~in_test)
    into_validation = (codes == 1) & shared_with(codes == 0)
    crossing = np.unique(member[leaked | into_validation])
    audit: dict[str, Any] = {
        **_counts(leaked, in_test),
        "groups": len(np.unique(member[leaked])),
        "by_class": {},
        "validation": _counts(into_validation, codes == 1),
        "crossing_groups": len(crossing),
        "example": str(distinct[crossing[0]]) if len(crossing) else None,
    }
    if labels is not None:
        classes = check_labels(labels, "labels", n_rows=len(codes)).numpy()
        audit["by_class"] = {
            int(c): {
                **_counts(leaked & (classes == c), in_test & (classes == c)),
                "groups": len(np.unique(member[leaked & (classes == c)])),
            }
            for c in np.unique(classes)
        }
    return audit


def refuse_crossing_groups(split: Any, groups: Any) -> None:
    """Raise ``ValueError`` if any group stands in more than one of train, val and test."""
    audit = audit_leakage(split, groups)
    if audit["crossing_groups"]:
        codes, names = check_split(split), np.asarray(groups).astype(np.str_)
        where = " and ".join(SPLITS[c] for c in np.unique(codes[names == audit["example"]]))
        raise ValueError(
            f"{audit['crossing_groups']} groups cross the splits, for example {audit['example']!r} is in {where}: "
            "results would be too good; split by group"
        )


def _counts(leaked: NDArray[np.bool_], among: NDArray[np.bool_]) -> dict[str, Any]:
    images, total = int(leaked.sum()), int(among.sum())
    return {"images": images, "share": images / total if total else 0.0, "of": total}
