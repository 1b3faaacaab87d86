"""The bank's section of a report: its health, and each prototype with the training cases it stands for."""

from __future__ import annotations

from typing import Any

from tdumpra.method.bank import PrototypeBank
from tdumpra.report import kit
from tdumpra.report.material import Material
from tdumpra.report.sections import csv_link

_MOST_CLASSES = 40
_MOST_PICTURES = 800  # some 3 KB each: the page must stay small enough to be sent around
_PICTURES, _NAMES = 4, 3  # of each prototype


def prototypes(material: Material, bank: PrototypeBank) -> dict[str, Any]:
    """Return health, notes and a gallery; with pictures where the model has any, else the names of the cases."""
    health, names = material.health, material.class_names
    notes = () if health is None else health.notes
    pictures = min(_PICTURES, _MOST_PICTURES // max(1, int(bank.mask.sum())))
    found = [
        _prototype(material, bank, c, k, pictures if c < _MOST_CLASSES else 0)
        for c in range(bank.n_classes)
        for k in range(int(bank.mask[c].sum()))
    ]
    shown = names[:_MOST_CLASSES]
    return {
        "words": f"The bank holds {len(found):,} prototypes of {bank.n_classes} classes, {bank.width} numbers each. "
        "Each stands for a group of training cases of one class; retrieval compares a new case with all of them.",
        "notes": notes if len(notes) <= 3 else [*notes[:2], f"and {len(notes) - 2} more of the kind: see the table"],
        "health": () if health is None else health.classes,
        "missing": material.missing.get("thumbnails"),
        "classes": {name: [each for each in found if each["class"] == name] for name in shown},
        "capped": f"The first {len(shown)} of {len(names)} classes are shown." if len(shown) < len(names) else None,
        "named": _NAMES,
        "data": csv_link(
            [
                {
                    "class": each["class"],
                    "prototype": each["number"],
                    "share_of_class": round(each["weight"], 6),
                    "cohesion": round(each["cohesion"], 6),
                    "nearest_training_cases": " ".join(each["nearest"]),
                }
                for each in found
            ]
        ),
    }


def _prototype(material: Material, bank: PrototypeBank, c: int, k: int, pictures: int) -> dict[str, Any]:
    name, thumbnails = material.class_names[c], material.thumbnails
    nearest = [each.id for each in bank.exemplars[c][k]]
    purity = () if material.health is None else material.health.purity.get(name, ())
    return {
        "class": name,
        "number": k + 1,
        "weight": float(bank.weight[c, k]),
        "cohesion": float(bank.cohesion[c, k]),
        "nearest": nearest,
        "images": [
            (kit.data_uri(thumbnails[each].numpy(), quality=78), each)
            for each in [each for each in nearest if each in thumbnails][:pictures]
        ],
        "purity": f"{purity[k][1]:.0%} from {purity[k][0]}" if k < len(purity) and purity[k][0] else "",
    }
