"""The bank's part of a report: its health, and each prototype with the training cases it stands for."""

from __future__ import annotations

from typing import Any

from tdumpra.method.bank import PrototypeBank
from tdumpra.report import kit
from tdumpra.report.drawing import csv_text
from tdumpra.report.material import Material
from tdumpra.report.sections import download, number
from tdumpra.report.summary import sentence

_MOST_CLASSES = 40
_MOST_PICTURES = 800  # some 3 KB each: the page must stay small enough to be sent around
_PICTURES, _NAMES = 4, 3  # of each prototype


def prototypes(material: Material) -> dict[str, Any] | str:
    """Health, notes and a gallery; pictures where the model has any, else the names of the cases."""
    if material.decision is None:
        return material.missing["cases"]
    bank, health, names = material.decision.bank, material.health, material.class_names
    live = int(bank.mask.sum())
    rows = (
        []
        if health is None
        else [
            [
                each.name,
                str(each.live),
                str(each.merged),
                f"{each.effective:.1f}",
                number(each.cohesion, 3),
                number(each.nearest_other, 3),
            ]
            for each in health.classes
        ]
    )
    shown = names[:_MOST_CLASSES]
    pictures = max(0, min(_PICTURES, _MOST_PICTURES // max(1, live)))
    return {
        "words": f"The bank holds {live:,} prototypes of {bank.n_classes} classes, {bank.width} numbers each. Each "
        "stands for a group of training cases of one class; retrieval compares a new case with all of them.",
        "notes": _gathered(() if health is None else health.notes),
        "health": rows,
        "missing": sentence(material.missing["thumbnails"]) if "thumbnails" in material.missing else None,
        "classes": [{"name": name, "prototypes": _of_class(material, c, pictures)} for c, name in enumerate(shown)],
        "capped": f"The first {len(shown)} of {len(names)} classes are shown." if len(shown) < len(names) else None,
        "data": download(csv_text(_data(bank, names))),
    }


def _of_class(material: Material, c: int, pictures: int) -> list[dict[str, Any]]:
    if material.decision is None:
        return []
    bank, thumbnails = material.decision.bank, material.thumbnails
    purity = {} if material.health is None else material.health.purity
    found = []
    for k in range(int(bank.mask[c].sum())):
        exemplars = bank.exemplars[c][k]
        pure = purity.get(material.class_names[c], ())
        found.append(
            {
                "number": k + 1,
                "weight": float(bank.weight[c, k]),
                "cohesion": float(bank.cohesion[c, k]),
                "images": [
                    (kit.data_uri(thumbnails[each.id].numpy(), quality=78), each.id)
                    for each in [each for each in exemplars if each.id in thumbnails][:pictures]
                ],
                "nearest": ", ".join(each.id for each in exemplars[:_NAMES]),
                "purity": f"{pure[k][1]:.0%} from {pure[k][0]}" if k < len(pure) and pure[k][0] else "",
            }
        )
    return found


def _gathered(notes: tuple[str, ...]) -> list[str]:
    """A few notes as they are; many as the first and their number."""
    return list(notes) if len(notes) <= 3 else [*notes[:2], f"and {len(notes) - 2} more of the kind: see the table"]


def _data(bank: PrototypeBank, names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {
            "class": name,
            "prototype": k + 1,
            "share_of_class": round(float(bank.weight[c, k]), 6),
            "cohesion": round(float(bank.cohesion[c, k]), 6),
            "nearest_training_cases": " ".join(each.id for each in bank.exemplars[c][k]),
        }
        for c, name in enumerate(names)
        for k in range(int(bank.mask[c].sum()))
    ]
