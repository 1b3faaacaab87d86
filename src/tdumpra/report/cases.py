"""Single test cases: which of them are shown, as cards in the report and as a page of evidence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tdumpra.artifacts import make_folder, write_bytes
from tdumpra.errors import ArtifactError
from tdumpra.method.evidence import explain
from tdumpra.report import kit
from tdumpra.report.drawing import csv_text
from tdumpra.report.evidence_page import evidence_page
from tdumpra.report.material import Material
from tdumpra.report.summary import sentence

SHOWN = 96  # evidence pages
FOLDER = "cases"
_CARD_SIZE = 168
_A_FEW = 12  # the part of the room that any outcome can count on
OUTCOMES = {
    "fixed": "fixed",
    "broken": "broken",
    "moved": "still wrong",
    "kept": "label kept",
    "shut": "gate shut",
}


class Outcomes(NamedTuple):
    """What happened to each test row, and how sure the classifier was of it."""

    names: np.ndarray  # keys of OUTCOMES, or "" for the rest
    confidence: np.ndarray

    def count(self, name: str) -> int:
        """Rows with this outcome."""
        return int((self.names == name).sum())

    def rows(self, name: str) -> np.ndarray:
        """Their numbers, the least sure first."""
        rows = np.flatnonzero(self.names == name)
        ordered: np.ndarray = rows[np.argsort(self.confidence[rows], kind="stable")]
        return ordered


class Gallery(NamedTuple):
    """Cards of the cases that have a page, how many there are of each outcome, and what is not shown."""

    cards: list[dict[str, Any]]
    counts: dict[str, dict[str, Any]]  # outcome to words, shown, of
    sentence: str


def outcomes(material: Material) -> Outcomes:
    """Each test row's outcome; rows whose gate is shut count only where the two paths disagree."""
    splits, decided = material.splits, material.decided
    if splits is None or decided is None:
        raise ArtifactError("single cases need the outputs they came from")
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
    """At most ``limit`` rows: those fixed and broken first, in equal measure; then other openings; then shut ones.

    Of each other outcome a few always have a place. Shut rows fill a quarter of the room at most, unless the gate never
    opened.
    """
    fixed, broken = (found.rows(name).tolist() for name in ("fixed", "broken"))
    kept_free = {name: min(found.count(name), limit // _A_FEW) for name in ("moved", "kept", "shut")}
    room = limit - sum(kept_free.values())
    take_fixed = min(len(fixed), max(room // 2, room - len(broken)))
    chosen = {"fixed": fixed[:take_fixed], "broken": broken[: room - take_fixed]}
    for name in ("moved", "kept", "shut"):
        del kept_free[name]
        left = limit - sum(map(len, chosen.values())) - sum(kept_free.values())
        opened = any(chosen.values())
        chosen[name] = found.rows(name).tolist()[: min(left, limit // 4) if name == "shut" and opened else left]
    return chosen


def write_cases(material: Material, out: Path, *, limit: int = SHOWN) -> Gallery:
    """Write the pages of chosen cases below ``out``, and give their cards."""
    found = outcomes(material)
    chosen = choose(found, limit)
    folder = out / FOLDER
    make_folder(folder)
    for stale in folder.glob("*.html"):  # of an earlier report, which may have shown others
        stale.unlink()
    files = page_names({row: case_name(material, row) for rows in chosen.values() for row in rows})
    cards = [_card(material, name, row, files[row]) for name, rows in chosen.items() for row in rows]
    for card in cards:
        write_bytes(folder / card["file"], _page(material, card.pop("row"), card.pop("pixels")).encode())
    # by doubt, not by success: what was fixed must not come first
    cards.sort(key=lambda card: (card["outcome"] == "shut", card["confidence"]))
    shown = {
        name: {"words": OUTCOMES[name], "shown": len(rows), "of": found.count(name)} for name, rows in chosen.items()
    }
    return Gallery(cards, {name: each for name, each in shown.items() if each["of"]}, _how_many(shown))


def _how_many(shown: dict[str, dict[str, Any]]) -> str:
    total, of = (sum(each[key] for each in shown.values()) for key in ("shown", "of"))
    if total == of:
        return f"All {of:,} of them are shown."
    parts = [
        f"{each['words']} {each['shown']:,}" + ("" if each["shown"] == each["of"] else f" of {each['of']:,}")
        for each in shown.values()
        if each["of"]
    ]
    return f"{total:,} of {of:,} are shown, the least sure of each kind: {', '.join(parts)}. The table has all."


def case_name(material: Material, row: int) -> str:
    """The id that a case came with, or its row number."""
    ids = material.splits.test.ids if material.splits is not None else None
    return f"row {row}" if ids is None else str(ids[row])


def page_names(names: Mapping[int, str]) -> dict[int, str]:
    """A file for each row: of the case's name, and of its row too where the name is not its own."""
    taken = Counter(kit.page_name(name).lower() for name in names.values())  # Windows and Macs do not tell a from A
    return {
        row: kit.page_name(name if taken[kit.page_name(name).lower()] == 1 else f"{name} (row {row})")
        for row, name in names.items()
    }


def _card(material: Material, outcome: str, row: int, file: str) -> dict[str, Any]:
    splits, decided, names = material.splits, material.decided, material.class_names
    if splits is None or decided is None:
        raise ArtifactError("single cases need the outputs they came from")
    pixels = None if material.pictures is None else material.pictures.read(case_name(material, row))
    return {
        "id": case_name(material, row),
        "file": file,
        "outcome": outcome,
        "truth": names[int(splits.test.y[row])],
        "before": names[int(decided.p_cls[row].argmax())],
        "after": names[int(decided.p[row].argmax())],
        "similar": names[int(decided.p_sim[row].argmax())],
        "confidence": float(decided.signals.gamma_cls[row]),
        "image": None if pixels is None else kit.data_uri(pixels, size=_CARD_SIZE, quality=80),
        "pixels": pixels,
        "row": row,
    }


def _page(material: Material, row: int, pixels: np.ndarray | None) -> str:
    splits, decision = material.splits, material.decision
    if splits is None or decision is None:
        raise ArtifactError("single cases need the outputs they came from")
    test = splits.test
    group = None if test.groups is None else str(test.groups[row])
    evidence = explain(
        decision, test.p[row : row + 1], test.z[row : row + 1], class_names=material.class_names, group=group
    )
    options: dict[str, Any] = {}
    if "pictures" in material.missing:
        options["no_image"] = sentence(material.missing["pictures"])
    if "thumbnails" in material.missing:
        options["missing_reason"] = material.missing["thumbnails"]
    return evidence_page(
        evidence,
        case_id=case_name(material, row),
        image=pixels,
        truth=material.class_names[int(test.y[row])],
        pictures=material.thumbnails,
        back_link=("../index.html#cases", "Report"),
        **options,
    )


def cases_csv(material: Material) -> str:
    """Every test case: truth, what each path said and how surely, and what the gate did."""
    splits, decided, names = material.splits, material.decided, np.array(material.class_names, dtype=object)
    if splits is None or decided is None:
        raise ArtifactError("single cases need the outputs they came from")
    found = outcomes(material)
    columns: dict[str, Any] = {
        "id": [case_name(material, row) for row in range(len(splits.test))],
        "group": [""] * len(splits.test) if splits.test.groups is None else splits.test.groups.tolist(),
        "truth": names[splits.test.y.numpy()].tolist(),
        "classifier": names[decided.p_cls.argmax(1).numpy()].tolist(),
        "retrieval": names[decided.p_sim.argmax(1).numpy()].tolist(),
        "final": names[decided.p.argmax(1).numpy()].tolist(),
        "opened": decided.opened.int().tolist(),
        "outcome": found.names.tolist(),
        **{
            name: [round(value, 6) for value in getattr(decided.signals, name).tolist()]
            for name in ("gamma_cls", "gamma_sim", "margin_sim", "js")
        },
    }
    return csv_text([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])
