"""Check whether a bank can be trusted: empty classes, touching prototypes, prototypes of a single source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tdumpra.core.rowwise import by_rows
from tdumpra.method.bank import PrototypeBank

_CLOSE = 0.99  # two prototypes of different classes closer than this cannot tell those classes apart
_PURE = 0.9  # share of one source from which on a prototype may stand for the source instead of the disease


@dataclass(frozen=True, slots=True)
class ClassHealth:
    """One class's prototypes."""

    name: str
    live: int
    merged: int
    effective: float  # exp of the entropy of the weights: as many equal prototypes would be as diverse
    cohesion: float  # mean cosine of members to their prototype, over the class
    nearest_other: float  # largest cosine of any of its prototypes to one of another class


@dataclass(frozen=True, slots=True)
class BankHealth:
    """The state of all classes, each prototype's purity by source where one is known, and what to worry about."""

    classes: tuple[ClassHealth, ...]
    purity: Mapping[str, tuple[tuple[str, float], ...]]  # class -> per prototype the commonest source and its share
    notes: tuple[str, ...]


def bank_health(
    bank: PrototypeBank, class_names: Sequence[str], z: Tensor, labels: Tensor, sources: Sequence[str] | None = None
) -> BankHealth:
    """Check a bank; ``z``, ``labels`` and ``sources`` are those of the training rows it was made from."""
    cosine = torch.einsum("ckd,jld->ckjl", bank.prototypes, bank.prototypes)
    cosine = cosine.masked_fill(~bank.mask[None, None], -1).masked_fill(~bank.mask[:, :, None, None], -1)
    classes = []
    for c, name in enumerate(class_names):
        weight = bank.weight[c][bank.mask[c]]
        others = torch.arange(len(class_names)) != c
        nearest = float(cosine[c][:, others].max()) if bank.mask[c].any() and others.any() else float("nan")
        each = ClassHealth(
            name=name,
            live=int(bank.mask[c].sum()),
            merged=bank.merged[c],
            effective=float(torch.special.entr(weight).sum().exp()) if len(weight) else 0.0,
            cohesion=float((weight * bank.cohesion[c][bank.mask[c]]).sum()) if len(weight) else float("nan"),
            nearest_other=nearest,
        )
        classes.append(each)
    purity = {} if sources is None else _purity(bank, class_names, z, labels, sources)
    notes = (*_class_notes(classes), *_source_notes(purity, sources or ()))
    return BankHealth(tuple(classes), purity, notes)


def _class_notes(classes: Sequence[ClassHealth]) -> list[str]:
    """Write one note for all classes with the same problem."""
    empty = [each.name for each in classes if not each.live]
    merged = [f"{each.name} {each.merged}" for each in classes if each.merged]
    close = [f"{each.name} {each.nearest_other:.3f}" for each in classes if each.nearest_other > _CLOSE]
    notes = {
        "classes without a prototype, which can never be retrieved": empty,
        "near-duplicate prototypes that were merged": merged,
        "prototypes that nearly touch one of another class (cosine)": close,
    }
    return [f"{what}: {', '.join(which)}" for what, which in notes.items() if which]


def _purity(
    bank: PrototypeBank, class_names: Sequence[str], z: Tensor, labels: Tensor, sources: Sequence[str]
) -> dict[str, tuple[tuple[str, float], ...]]:
    def nearest(rows: Tensor, of_rows: Tensor) -> Tensor:
        """Return the number of the nearest prototype of each row's own class."""
        similarity = bank.similarity(rows).masked_fill(~bank.mask, -torch.inf)
        return similarity[torch.arange(len(of_rows)), of_rows].argmax(1)

    own = by_rows(nearest, z, labels, width=bank.mask.numel())
    result = {}
    for c, name in enumerate(class_names):
        entries = []
        for k in range(int(bank.mask[c].sum())):
            members = ((labels == c) & (own == k)).nonzero().flatten().tolist()
            counts = Counter(sources[i] for i in members)
            source, count = counts.most_common(1)[0] if members else ("", 0)
            entries.append((source, count / max(1, len(members))))
        result[name] = tuple(entries)
    return result


def _source_notes(purity: Mapping[str, tuple[tuple[str, float], ...]], sources: Sequence[str]) -> list[str]:
    """Note prototypes almost wholly from one source, unless that source is most of the data."""
    notes = []
    for source, count in Counter(sources).items():
        share_of_all = count / len(sources)
        suspect = [
            f"{name} ({k})"
            for name, entries in purity.items()
            for k, (commonest, share) in enumerate(entries)
            if commonest == source and share >= _PURE
        ]
        if suspect and share_of_all < _PURE - 0.2:
            which = ", ".join(suspect)
            notes.append(f"prototypes almost wholly from {source!r}, {share_of_all:.0%} of the data: {which}")
    return notes
