"""The table of ``docs/reliability.md``, from the records that ``make campaign`` leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parents[1] / "docs" / "results" / "reliability"
OUTCOMES = ("tried", "refused", "made again", "read", "traceback", "silently wrong")
WORDS = {
    "damage": "flipped bits and cuts",
    "altered": "altered files of users",
    "swaps": "files of other runs",
    "kills": "SIGKILL",
    "faults": "a fault of the disk",
    "archives": "changes of an archive",
    "images": "hostile images",
}


def records() -> list[dict[str, Any]]:
    """Return the records in the order of their campaigns."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json"))]
    return sorted(found, key=lambda record: (list(WORDS).index(record["campaign"]), record["kind"]))


def reliability() -> list[list[str]]:
    """Return a row for each record."""
    rows = [["campaign", "on", *OUTCOMES]]
    rows += [
        [WORDS[record["campaign"]], record["kind"], *(f"{record[name]:,}" for name in OUTCOMES)] for record in records()
    ]
    return rows
