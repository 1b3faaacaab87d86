"""What a file may say of a bank and of a decision: the types, ranges and shapes of every value and tensor.

A seal tells that a file is whole, not that it makes sense: anyone can compute one. So everything is checked here before
anything is computed from it. The functions raise ``KeyError``, ``TypeError`` and ``ValueError``;
:func:`tdumpra.foreign.reading` makes one sentence of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tdumpra.checks import check_directions
from tdumpra.core.gate import FUSION_RULES
from tdumpra.values import (
    check_choice,
    check_count,
    check_list,
    check_positive,
    check_table,
    check_text,
    check_unit_interval,
)

_MOST_EXPONENT = 10.0  # of a prior; tuning tries powers up to 1
_MOST_BIAS = 1e3  # nats, of a class
Shape = tuple[int | None, ...]


def check_tensor(
    tensors: Mapping[str, Tensor], name: str, shape: Shape, kind: str = "float", *, finite: bool = True
) -> Tensor:
    """Return the tensor ``name`` if it has ``shape``, where ``None`` stands for any size above zero, and ``kind``.

    ``kind`` is ``float`` (of any precision, all of it finite unless said otherwise), ``bool``, ``uint8`` or ``int64``.
    """
    if name not in tensors:
        raise KeyError(name)
    tensor = tensors[name]
    right = tensor.is_floating_point() if kind == "float" else tensor.dtype == getattr(torch, kind)
    fits = len(shape) == tensor.ndim and all(
        size > 0 if wanted is None else size == wanted for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not right or not fits:
        wanted = " × ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must be {kind} of shape {wanted}, not {tensor.dtype} of shape {tuple(tensor.shape)}")
    if kind == "float" and finite and not torch.isfinite(tensor).all():
        raise ValueError(f"{name} has NaN or infinite values")
    return tensor


def check_rows(tensors: Mapping[str, Tensor], n_rows: int) -> tuple[int, int]:
    """Check the tensors of a table of outputs against each other; return how many rows and classes it has."""
    n_classes = check_tensor(tensors, "logits", (n_rows, None)).shape[1]
    width = check_tensor(tensors, "z_student", (n_rows, None)).shape[1]
    if "logits_teacher" in tensors:
        check_tensor(tensors, "logits_teacher", (n_rows, n_classes))
        check_tensor(tensors, "z_teacher", (n_rows, width))
    for name in ("features", "features_teacher", "colours"):  # a network may have no features
        if name in tensors and (tensors[name].ndim != 2 or len(tensors[name]) != n_rows):
            raise ValueError(f"{name} must have {n_rows} rows, not the shape {tuple(tensors[name].shape)}")
    labels = check_tensor(tensors, "labels", (n_rows,), "int64")
    if not ((labels >= 0) & (labels < n_classes)).all():
        raise ValueError(f"labels must be those of {n_classes} classes")
    return n_rows, n_classes


def check_bank(tensors: Mapping[str, Tensor], meta: Any) -> None:
    """Check the tensors and values of a bank against each other."""
    prototypes = check_tensor(tensors, "prototypes", (None, None, None))
    n_classes, slots, _ = prototypes.shape
    mask = check_tensor(tensors, "mask", (n_classes, slots), "bool")
    if n_classes < 2 or not mask.any():
        raise ValueError("a bank needs two classes and a prototype")
    check_directions(prototypes[mask], "prototypes")
    for name in ("weight", "cohesion"):
        check_tensor(tensors, name, (n_classes, slots))
    check_tensor(tensors, "reference", (None,))
    table = check_table(meta, "bank")
    for count in check_list(table["merged"], "merged", n_classes):
        check_count(count, "merged", least=0)
    for live, of_class in zip(mask, check_list(table["exemplars"], "exemplars", n_classes), strict=True):
        held = check_list(of_class, "exemplars of a class")
        if int(live.nonzero().max() if live.any() else -1) >= len(held):
            raise ValueError("exemplars must have a list for each live prototype")
        for of_prototype in held:
            for each in check_list(of_prototype, "exemplars of a prototype"):
                name, group, cosine = check_list(each, "an exemplar", 3)
                check_text(name, "the id of an exemplar")
                check_text(group, "the group of an exemplar")
                check_unit_interval(abs(cosine), "the cosine of an exemplar", upper=1.001)


def check_decision(tensors: Mapping[str, Tensor], settings: Any) -> None:
    """Check the values of a decision that are not checked where they are used to build it."""
    n_classes = len(tensors["prototypes"])
    prior = check_tensor(tensors, "prior", (n_classes,))
    if not (prior > 0).all() or abs(float(prior.double().sum()) - 1) > 1e-3:
        raise ValueError("prior must hold positive shares that sum to one")
    table = check_table(settings, "decision")
    check_table(table["thresholds"], "thresholds")
    if table["calibrated"] is not None:
        check_table(table["calibrated"], "calibrated")
    check_choice(table["rule"], "rule", FUSION_RULES)
    for name in ("kappa", "tau", "temperature"):
        check_positive(table[name], name)
    for name in ("prior_exponent", "fused_exponent"):
        check_unit_interval(table[name], name, upper=_MOST_EXPONENT)
    if (known := table.get("known")) is not None:
        check_count(known, "known", least=2)
        if known >= n_classes:
            raise ValueError(f"known must be below the bank's {n_classes} classes, not {known}")
    bias = check_list(table.get("class_bias", []), "class_bias")
    columns = n_classes if known is None else known
    if len(bias) not in (0, columns):
        raise ValueError(f"class_bias must have {columns} entries, not {len(bias)}")
    for nats in bias:
        if isinstance(nats, bool) or not isinstance(nats, int | float) or not abs(nats) < _MOST_BIAS:
            raise ValueError(f"class_bias must hold finite numbers, not {nats!r}")
    if not isinstance(table.get("first_choices_only", False), bool):
        raise TypeError(f"first_choices_only must be true or false, not {table['first_choices_only']!r}")
