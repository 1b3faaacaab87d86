"""Where a model comes from: an entry for each command that made it or one of its ancestors, chained by hashes.

Each entry's ``chain`` is the SHA-256 of the entry before it and of its own contents, so an entry cannot be changed,
dropped or moved without a trace. Like a checksum, it finds accidents and careless edits: whoever rewrites all of it can
chain it anew, and only a keyed seal tells that (:mod:`tdumpra.seals`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tdumpra import __version__
from tdumpra.artifacts import jsonable
from tdumpra.errors import ArtifactError
from tdumpra.values import check_list, check_table, check_text

_DIGEST = re.compile("[0-9a-f]{64}")
_FOLDERS = re.compile(r"^(\w+:)?.*[/\\]")
_NO_PLACES = ("new_classes", "class_names", "stays")


class Entry(NamedTuple):
    """One step of a model's history."""

    command: str  # run, attach, adapt, bank add, …
    settings: Mapping[str, Any]
    time: str  # ISO 8601, UTC
    version: str  # of tdumpra
    inputs: Mapping[str, str]  # fingerprints of data and of other files that went in
    parent: str | None  # SHA-256 of the bytes of the model that this one was made from
    chain: str

    def computed(self, before: str) -> str:
        """Return the chain that this entry must have behind an entry of the chain ``before``."""
        content = {name: value for name, value in self._asdict().items() if name != "chain"}
        text = json.dumps(jsonable(content), sort_keys=True, ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def append(
    entries: Sequence[Entry],
    *,
    command: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
    parent: str | None = None,
) -> tuple[Entry, ...]:
    """Return a history with one more step, made now by this version. Settings lose the folders of this machine.

    ``SOURCE_DATE_EPOCH`` in the environment stands for now, so that equal inputs can give equal bytes.
    """
    stated = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.fromtimestamp(int(stated), UTC) if stated.isdecimal() else datetime.now(UTC)
    now = moment.isoformat(timespec="seconds")
    entry = Entry(command, _portable(jsonable(settings)), now, __version__, dict(inputs), parent, "")
    return (*entries, entry._replace(chain=entry.computed(entries[-1].chain if entries else "")))


def check(entries: Sequence[Entry]) -> None:
    """Raise ``ArtifactError`` unless every entry is as it was written, behind the one that it was written behind."""
    before = ""
    for number, entry in enumerate(entries, start=1):
        if entry.computed(before) != entry.chain:
            raise ArtifactError(
                f"step {number} of {len(entries)} of the history ({entry.command}, {entry.time}) was changed, or a "
                "step before it was dropped or moved: its chain does not fit"
            )
        if number > 1 and entry.parent is None:
            raise ArtifactError(f"step {number} of {len(entries)} of the history ({entry.command}) names no parent")
        before = entry.chain


def to_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return entries as plain values."""
    return [dict(jsonable(entry._asdict())) for entry in entries]


def from_json(value: Any) -> tuple[Entry, ...]:
    """Read what :func:`to_json` returned; the chain itself is checked by :func:`check`."""
    return tuple(_entry(check_table(each, "an entry of the history")) for each in check_list(value, "lineage"))


def _refuse_depth(value: Any, left: int = 32) -> None:
    """Refuse settings that are nested deeper than any are, before whatever walks them runs out of stack."""
    if isinstance(value, dict | list):
        if not left:
            raise ValueError("settings are nested too deeply")
        for each in value.values() if isinstance(value, dict) else value:
            _refuse_depth(each, left - 1)


def _entry(said: dict[str, Any]) -> Entry:
    _refuse_depth(said["settings"])
    inputs = check_table(said["inputs"], "inputs")
    for name in ("chain", *(["parent"] if said["parent"] is not None else [])):
        if not _DIGEST.fullmatch(check_text(said[name], name)):
            raise ValueError(f"{name} must be a SHA-256, not {said[name]!r}")
    return Entry(
        settings=check_table(said["settings"], "settings"),
        inputs={name: check_text(each, f"inputs.{name}") for name, each in inputs.items()},
        parent=said["parent"],
        **{name: check_text(said[name], name) for name in ("command", "time", "version", "chain")},
    )


def _portable(value: Any) -> Any:
    """Return settings without the folders of this machine, which a model that is handed on should not tell.

    Names of classes and sentences may hold a slash, and are no places.
    """
    if isinstance(value, dict):
        return {key: each if key in _NO_PLACES else _portable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_portable(each) for each in value]
    return _FOLDERS.sub(lambda found: found[1] or "", value) if isinstance(value, str) else value
