"""A model's outputs on one split. Which split it is, is a type: the tuner cannot be handed test data.

The bank is built from :class:`TrainOutputs`, everything is tuned on :class:`ValidationOutputs`, and
:class:`TestOutputs` are only ever scored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tdumpra import checks


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Outputs:
    """Checked rows: the classifier's posterior, the embedding that is matched, the label, and where the row belongs."""

    p: Tensor  # (n, C) the classifier's probabilities
    z: Tensor  # (n, D) embeddings in the bank's space
    y: Tensor  # (n,)
    groups: NDArray[np.str_] | None = None
    ids: NDArray[np.str_] | None = None
    p_teacher: Tensor | None = None  # (n, C) the teacher's own classifier, where there is one

    def __len__(self) -> int:
        return len(self.y)

    @property
    def n_classes(self) -> int:
        """C."""
        return self.p.shape[1]

    @classmethod
    def check(
        cls,
        p: Any,
        z: Any,
        y: Any,
        groups: Any = None,
        *,
        ids: Any = None,
        p_teacher: Any = None,
        n_classes: int | None = None,
        width: int | None = None,
        suffix: str = "",
    ) -> Self:
        """Check raw arrays; ``suffix`` completes their names in messages, as in ``p_val``."""
        rows = checks.check_probabilities(p, f"p{suffix}", n_classes=n_classes)
        if not len(rows):
            raise ValueError(f"p{suffix} is empty: there is nothing to work on")
        embeddings = checks.check_embeddings(z, f"z{suffix}", width=width)
        if len(embeddings) != len(rows):
            raise ValueError(f"p{suffix} has {len(rows)} rows and z{suffix} has {len(embeddings)}")
        teacher = None
        if p_teacher is not None:
            teacher = checks.check_probabilities(p_teacher, f"pt{suffix}", n_classes=rows.shape[1])
            if len(teacher) != len(rows):
                raise ValueError(f"p{suffix} has {len(rows)} rows and pt{suffix} has {len(teacher)}")
        return cls(
            p=rows,
            z=embeddings,
            y=checks.check_labels(y, f"y{suffix}", n_rows=len(rows), n_classes=rows.shape[1]),
            groups=checks.check_groups(groups, f"groups{suffix}", n_rows=len(rows)),
            ids=checks.check_groups(ids, f"ids{suffix}", n_rows=len(rows)),
            p_teacher=teacher,
        )


class TrainOutputs(Outputs):
    """What the bank is made of."""

    __slots__ = ()


class ValidationOutputs(Outputs):
    """What temperatures, thresholds and weights are chosen on."""

    __slots__ = ()


class TestOutputs(Outputs):
    """What is scored, once everything is fixed."""

    __slots__ = ()
    __test__ = False  # not a test case, whatever pytest thinks of the name
