"""Single test cases: which of them are shown, as cards in the report and as a page of evidence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tdumpra.errors import ArtifactError
from tdumpra.method.decision import Decided, Decision
from tdumpra.method.evidence import Evidence, explain
from tdumpra.method.output_files import SplitOutputs
from tdumpra.report import kit
from tdumpra.report.drawing import csv_text
from tdumpra.report.evidence_page import evidence_page
from tdumpra.report.material import Material
from tdumpra.writing import make_folder, write_bytes

SHOWN = 96  # evidence pages
FOLDER = "cases"
_CARD_SIZE = 168
_A_FEW = 12  # the part of the room that any outcome can count on
OUTCOMES = {"fixed": "fixed", "broken": "broken", "moved": "still wrong", "kept": "label kept", "shut": "gate shut"}


class Outcomes(NamedTuple):
    """The outcome of each test row, and how sure the classifier was of it."""

    names: np.ndarray  # keys of OUTCOMES, or "" for the rest
    confidence: np.ndarray

    def rows(self, name: str) -> list[int]:
        """Return the rows with this outcome, the least sure first."""
        rows = np.flatnonzero(self.names == name)
        ordered: list[int] = rows[np.argsort(self.confidence[rows], kind="stable")].tolist()
        return ordered


def known(material: Material) -> tuple[SplitOutputs, Decision, Decided]:
    """Return what single cases are made of; an error where a run's outputs are lost."""
    splits, decision, decided = material.splits, material.decision, material.decided
    if splits is None or decision is None or decided is None:
        raise ArtifactError("single cases need the outputs they came from")
    return splits, decision, decided


def evidence_of(material: Material, row: int) -> Evidence:
    """Explain the decision on one test row."""
    splits, decision, _ = known(material)
    test, only = splits.test, slice(row, row + 1)
    group = None if test.groups is None else str(test.groups[row])
    return explain(decision, test.p[only], test.z[only], class_names=material.class_names, group=group)


def case_name(material: Material, row: int) -> str:
    """Return the id of a test case, or its row number."""
    ids = known(material)[0].test.ids
    return f"row {row}" if ids is None else str(ids[row])


def outcomes(material: Material) -> Outcomes:
    """Return each test row's outcome; rows whose gate is shut count only where the two paths disagree."""
    splits, _, decided = known(material)
    y = splits.test.y
    before, after, similar = (p.argmax(1) for p in (decided.p_cls, decided.p, decided.p_sim))
    names = np.full(len(y), "", dtype="<U6")
    names[(~decided.opened & (before != similar)).numpy()] = "shut"
    names[decided.opened.numpy()] = "kept"
    names[(decided.opened & (before != after)).numpy()] = "moved"
    names[((before == y) & (after != y)).numpy()] = "broken"
    names[((before != y) & (after == y)).numpy()] = "fixed"
    return Outcomes(names, decided.signals.gamma_cls.double().numpy())


def choose(found: Outcomes, limit: int) -> dict[str, list[int]]:
    """Choose at most ``limit`` rows: fixed and broken in equal measure, then other openings, then shut ones.

    A few of each other outcome always have a place. Shut rows fill a quarter of the room at most, unless the gate never
    opened.
    """
    fixed, broken = (found.rows(name) for name in ("fixed", "broken"))
    kept_free = {name: min(len(found.rows(name)), limit // _A_FEW) for name in ("moved", "kept", "shut")}
    room = limit - sum(kept_free.values())
    take_fixed = min(len(fixed), max(room // 2, room - len(broken)))
    chosen = {"fixed": fixed[:take_fixed], "broken": broken[: room - take_fixed]}
    for name in ("moved", "kept", "shut"):
        del kept_free[name]
        left = limit - sum(map(len, chosen.values())) - sum(kept_free.values())
        opened = any(chosen.values())
        chosen[name] = found.rows(name)[: min(left, limit // 4) if name == "shut" and opened else left]
    return chosen


def write_cases(material: Material, out: Path, *, limit: int = SHOWN) -> dict[str, Any]:
    """Write the pages of chosen cases below ``out``; return their cards, counts, and a sentence on what is shown."""
    found = outcomes(material)
    chosen = choose(found, limit)
    folder = out / FOLDER
    make_folder(folder)
    files = page_names({row: case_name(material, row) for rows in chosen.values() for row in rows})
    cards = []
    for outcome, rows in chosen.items():
        for row in rows:
            pixels = None if material.pictures is None else material.pictures.read(case_name(material, row))
            write_bytes(folder / files[row], _page(material, row, pixels).encode())
            cards.append({"file": files[row], "outcome": outcome, **_card(material, row, pixels)})
    for page in folder.glob("*.html"):
        if page.name not in files.values():  # of an earlier report, which showed others
            page.unlink()
    # by doubt, not by success: what was fixed must not come first
    cards.sort(key=lambda card: (card["outcome"] == "shut", card["confidence"]))
    shown = {
        name: {"words": OUTCOMES[name], "shown": len(rows), "of": len(found.rows(name))}
        for name, rows in chosen.items()
        if found.rows(name)
    }
    return {"cards": cards, "counts": shown, "sentence": _how_many(shown), "folder": FOLDER}


def _how_many(shown: Mapping[str, Mapping[str, Any]]) -> str:
    total, of = (sum(each[key] for each in shown.values()) for key in ("shown", "of"))
    if total == of:
        return f"All {of:,} of them are shown."
    parts = [
        f"{each['words']} {each['shown']:,}" + ("" if each["shown"] == each["of"] else f" of {each['of']:,}")
        for each in shown.values()
    ]
    return f"{total:,} of {of:,} are shown, the least sure of each kind: {', '.join(parts)}. The table has all."


def page_names(names: Mapping[int, str]) -> dict[int, str]:
    """Return a file name for each row: the case's name, with its row number where several share the name."""
    taken = Counter(kit.page_name(name).lower() for name in names.values())  # Windows and Macs do not tell a from A
    return {
        row: kit.page_name(name if taken[kit.page_name(name).lower()] == 1 else f"{name} (row {row})")
        for row, name in names.items()
    }


def _card(material: Material, row: int, pixels: np.ndarray | None) -> dict[str, Any]:
    splits, _, decided = known(material)
    columns = {"before": decided.p_cls, "after": decided.p, "similar": decided.p_sim}
    return {
        "id": case_name(material, row),
        "truth": material.class_names[int(splits.test.y[row])],
        **{name: material.class_names[int(p[row].argmax())] for name, p in columns.items()},
        "confidence": float(decided.signals.gamma_cls[row]),
        "image": None if pixels is None else kit.data_uri(pixels, size=_CARD_SIZE, quality=80),
    }


def _page(material: Material, row: int, pixels: np.ndarray | None) -> str:
    options: dict[str, Any] = {}
    if "pictures" in material.missing:
        options["no_image"] = kit.sentence(material.missing["pictures"])
    if "thumbnails" in material.missing:
        options["missing_reason"] = material.missing["thumbnails"]
    return evidence_page(
        evidence_of(material, row),
        case_id=case_name(material, row),
        image=pixels,
        truth=material.class_names[int(known(material)[0].test.y[row])],
        pictures=material.thumbnails,
        back_link=("../index.html#cases", "Report"),
        **options,
    )


def cases_csv(material: Material) -> str:
    """Return every test case as CSV: truth, what each path said and how surely, and what the gate did."""
    splits, _, decided = known(material)
    test, names = splits.test, np.array(material.class_names, dtype=object)
    columns: dict[str, Any] = {
        "id": [case_name(material, row) for row in range(len(test))],
        "group": [""] * len(test) if test.groups is None else test.groups.tolist(),
        "truth": names[test.y.numpy()].tolist(),
        "classifier": names[decided.p_cls.argmax(1).numpy()].tolist(),
        "retrieval": names[decided.p_sim.argmax(1).numpy()].tolist(),
        "final": names[decided.p.argmax(1).numpy()].tolist(),
        "opened": decided.opened.int().tolist(),
        "outcome": outcomes(material).names.tolist(),
        **{
            name: [round(value, 6) for value in getattr(decided.signals, name).tolist()]
            for name in ("gamma_cls", "gamma_sim", "margin_sim", "js")
        },
    }
    return csv_text([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])
