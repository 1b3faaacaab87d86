"""What training leaves in its folder: checkpoints and a log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdumpra.artifacts import jsonable, write_bytes
from tdumpra.errors import TdumpraError


class RunFolderError(TdumpraError):
    """A run folder is in use, cannot be written to, or belongs to another configuration."""


@dataclass(frozen=True, slots=True)
class TrainingFiles:
    """Paths of one training, and its log."""

    root: Path

    def checkpoint(self, name: str) -> Path:
        """``last`` or ``best``."""
        return self.root / "checkpoints" / f"{name}.safetensors"

    @property
    def metrics(self) -> Path:
        """One JSON object per line, as training goes."""
        return self.root / "metrics.jsonl"

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add a line to ``metrics.jsonl``. A crash can cut the last line short; readers leave such a line out."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(jsonable(row)) + "\n")
        except OSError as error:
            raise RunFolderError(f"cannot write {self.metrics}: {error.strerror or error}") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl`` that are whole."""
        if not self.metrics.exists():
            return []
        rows = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return rows

    def rewind_metrics(self, step: int, epoch: int) -> None:
        """Drop what was logged after ``step``, and of validations after ``epoch``, when training goes on from there."""
        rows = [
            row
            for row in self.read_metrics()
            if row.get("step", 0) <= step and ("validation" not in row or row["epoch"] <= epoch)
        ]
        if rows or self.metrics.exists():
            write_bytes(self.metrics, "".join(json.dumps(row) + "\n" for row in rows).encode())
