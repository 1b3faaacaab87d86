"""The folder of a scoring job: what was asked for, the parts that are finished, and the proof that all are there.

A part is one Parquet file, written whole or not at all, and the checksum of its bytes is in its name:
``parts/part-00012-0123456789abcdef.parquet``. So a part is there and right, or it is not there, and any number of
processes may work on a folder without a coordinator.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tdumpra.artifacts import fingerprint, jsonable, read_json, write_json
from tdumpra.errors import ArtifactError, MissingExtraError
from tdumpra.foreign import cannot_read, is_fault, open_parquet, reading, refuse_endless
from tdumpra.limits import refuse_above
from tdumpra.locks import exclusive
from tdumpra.scoring.listing import Entry
from tdumpra.values import check_count, check_text
from tdumpra.writing import make_folder, write_bytes

if TYPE_CHECKING:
    import pyarrow as pa

KIND, SCHEMA = "scoring", 1
_PART = re.compile(r"part-(\d{5,})-([0-9a-f]{16})\.parquet")
_LISTED = "listing.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a folder is to hold. Every process that joins must ask for the same."""

    model: str  # fingerprint of the model file
    class_names: tuple[str, ...]
    source: str
    engine: str
    mode: str
    embeddings: bool
    part_size: int

    def check(self) -> None:
        """Refuse what no job asks for: a folder may come from anyone."""
        for name in ("model", "source", "engine", "mode"):
            check_text(getattr(self, name), name)
        for name in self.class_names:
            check_text(name, "a class")
        if not isinstance(self.embeddings, bool):
            raise TypeError(f"embeddings must be true or false, not {self.embeddings!r}")
        check_count(self.part_size, "part_size")

    def differences(self, other: Plan) -> list[str]:
        """Return the names of what ``other`` asks for differently."""
        mine, theirs = asdict(self), asdict(other)
        return [name for name in mine if mine[name] != theirs[name]]


class Part(NamedTuple):
    """A range of the listing, scored together."""

    number: int
    start: int
    stop: int


class Checked(NamedTuple):
    """What a look at every byte of the folder found."""

    inputs: int
    rows: int
    broken: Counter[str]  # rows without a prediction, by reason
    parts: dict[int, Path]
    missing: list[int]  # numbers of parts that are not there
    damaged: list[Path]  # files of missing parts whose bytes or rows are not what they say
    surplus: list[Path]  # files of parts beside the right ones: whoever reads the whole folder gets rows twice

    @property
    def complete(self) -> bool:
        """Return whether every input has exactly one row."""
        return not self.missing and not self.surplus


class ScoreFolder:
    """A folder of results. Make or join one with :meth:`join`, read one with :meth:`open`."""

    def __init__(self, path: Path, plan: Plan, entries: Sequence[Entry]) -> None:
        self.path, self.plan, self.entries = path, plan, entries
        self.identity = fingerprint(repr(plan), *(entry.id for entry in entries))

    @classmethod
    def join(cls, path: Path, plan: Plan, list_entries: Callable[[], Sequence[Entry]]) -> ScoreFolder:
        """Start a job, or join one that another process or an earlier run began."""
        make_folder(path / "parts")
        with exclusive(path / ".lock", inherited=False):
            if not (path / "plan.json").exists():
                _write_listing(path / _LISTED, list_entries())
                listing = fingerprint((path / _LISTED).read_bytes())
                write_json(path / "plan.json", kind=KIND, schema=SCHEMA, content={**asdict(plan), "listing": listing})
        folder = cls.open(path)
        if differing := folder.plan.differences(plan):
            name = differing[0]
            raise ArtifactError(
                f"{path} holds results of another job: {name.replace('_', ' ')} was {getattr(folder.plan, name)!r} "
                f"and is {getattr(plan, name)!r}; give another --out"
            )
        return folder

    @classmethod
    def open(cls, path: Path) -> ScoreFolder:
        """Read the plan and the listing of a folder."""
        if not (path / "plan.json").is_file():
            raise ArtifactError(f"{path} holds no scoring job: it has no plan.json")
        content = read_json(path / "plan.json", kind=KIND, schema=SCHEMA)
        with reading(path / "plan.json", "plan", ArtifactError):
            listed, plan = content.pop("listing"), Plan(**{**content, "class_names": tuple(content["class_names"])})
            plan.check()
        data = _bytes_of(path / _LISTED) if (path / _LISTED).is_file() else b""
        if fingerprint(data) != listed:
            raise ArtifactError(f"{path / _LISTED} was altered or is missing: score into a new folder")
        return cls(path, plan, _read_listing(path / _LISTED))

    def parts(self, shard: int = 1, shards: int = 1) -> list[Part]:
        """Return the parts of one shard, every ``shards``-th, the first one for ``shard=1``."""
        size, n = self.plan.part_size, len(self.entries)
        every = [Part(i, start, min(start + size, n)) for i, start in enumerate(range(0, n, size))]
        return every[shard - 1 :: shards]

    def entries_of(self, part: Part) -> Sequence[Entry]:
        """Return the images of a part."""
        return self.entries[part.start : part.stop]

    def finished(self) -> dict[int, Path]:
        """Return the files of the parts that are there and right; a damaged one counts as missing."""
        files = self._files()
        found = {part.number: self._right_one(part, files.get(part.number, [])) for part in self.parts()}
        return {number: right[0] for number, right in found.items() if right is not None}

    def unfinished(self, parts: Sequence[Part]) -> list[Part]:
        """Return those of some parts that are still to do."""
        done = self.finished()
        return [part for part in parts if part.number not in done]

    def _files(self) -> dict[int, list[Path]]:
        """Return the files of each part; two processes that scored one at the same time may have written two."""
        found: dict[int, list[Path]] = {}
        for path in sorted((self.path / "parts").iterdir()):
            if named := _PART.fullmatch(path.name):
                found.setdefault(int(named[1]), []).append(path)
        return found

    def write_part(self, part: Part, table: pa.Table) -> None:
        """Write the rows of a part."""
        data = table_bytes(table.replace_schema_metadata({"tdumpra": f"{self.identity} {part.number}"}))
        path = self.path / "parts" / f"part-{part.number:05d}-{fingerprint(data)}.parquet"
        write_bytes(path, data)

    def check(self) -> Checked:
        """Look at every part: its bytes, its rows, and that no input is missing or there twice."""
        files = self._files()
        parts: dict[int, Path] = {}
        missing, damaged, surplus = list[int](), list[Path](), list[Path]()
        broken: Counter[str] = Counter()
        rows = 0
        for part in self.parts():
            there = files.pop(part.number, [])
            right = self._right_one(part, there)
            if right is None:
                missing.append(part.number)
                damaged += there
                continue
            parts[part.number], errors = right
            rows += len(errors)
            broken.update(error for error in errors if error)
            surplus += [path for path in there if path != right[0]]
        surplus += [path for there in files.values() for path in there]  # of numbers that this job has not
        return Checked(len(self.entries), rows, broken, parts, missing, damaged, surplus)

    def _right_one(self, part: Part, paths: Sequence[Path]) -> tuple[Path, list[str | None]] | None:
        """Return the first right file of a part, with its errors: every process takes the same one."""
        for path in paths:
            errors = self._errors_of(path, part)
            if errors is not None:
                return path, errors
        return None

    def _errors_of(self, path: Path, part: Part) -> list[str | None] | None:
        """Return the column of errors of a part that is right, else ``None``."""
        if not _is_whole(path):
            return None
        with open_parquet(path, ArtifactError) as file:
            own = file.metadata.get(b"tdumpra", b"").decode()
            table = file.load(["id", "error"])
        expected = [entry.id for entry in self.entries_of(part)]
        if own != f"{self.identity} {part.number}" or table["id"].to_pylist() != expected:
            return None
        errors: list[str | None] = table["error"].to_pylist()
        return errors

    def write_manifest(self, checked: Checked) -> None:
        """Write the proof: every part with its checksum and rows, and the counts over all."""
        parts = [{"file": checked.parts[part.number].name, "rows": part.stop - part.start} for part in self.parts()]
        content = {
            **asdict(self.plan), "inputs": checked.inputs, "rows": checked.rows,
            "broken": dict(checked.broken.most_common()), "parts": parts,
        }  # fmt: skip
        path = self.path / "manifest.json"
        with suppress(ArtifactError):  # it is not there yet, or not as it was
            if read_json(path, kind="scored", schema=SCHEMA) == jsonable(content):  # the disk may be one to read only
                return
        write_json(path, kind="scored", schema=SCHEMA, content=content)

    def drop_manifest(self) -> None:
        """Remove the proof of a folder that is not complete any more."""
        (self.path / "manifest.json").unlink(missing_ok=True)


def merge_folders(folders: Sequence[Path], out: Path) -> ScoreFolder:
    """Copy the parts of folders that machines filled apart into one; all must be of the same job."""
    first, *others = (ScoreFolder.open(path) for path in folders)
    for folder in others:
        if folder.identity != first.identity:
            differing = folder.plan.differences(first.plan)
            what = differing[0].replace("_", " ") if differing else "the list of images"
            raise ArtifactError(f"{folder.path} is of another job than {first.path}: {what} differs")
    merged = ScoreFolder.join(out, first.plan, lambda: first.entries)
    if merged.identity != first.identity:
        raise ArtifactError(f"{out} holds results of another job than {first.path}: the list of images differs")
    for folder in (first, *others):
        done = merged.finished()
        for number, file in folder.finished().items():
            if number not in done:
                write_bytes(out / "parts" / file.name, file.read_bytes())
    return merged


def _is_whole(path: Path) -> bool:
    """Return whether a part's bytes are those that its name speaks of."""
    named = _PART.fullmatch(path.name)
    try:
        return named is not None and fingerprint(_bytes_of(path)) == named[2]
    except OSError as error:
        if is_fault(error):  # it may be whole
            raise cannot_read(path, error) from error
        return False
    except ArtifactError:
        return False


def _bytes_of(path: Path) -> bytes:
    """Read a file of the folder whole, if it is one and not too large."""
    refuse_endless(path, ArtifactError)
    if reason := refuse_above("artifact_bytes", path.stat().st_size, "bytes"):
        raise ArtifactError(f"{path}: {reason}")
    return path.read_bytes()


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", "tdumpra score") from error
    return pyarrow.parquet


def table_bytes(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file with page checksums.

    Names repeat, and a dictionary shortens them; numbers hardly ever do, and one lengthens embeddings by half.
    """
    buffer = io.BytesIO()
    names = [each.name for each in table.schema if str(each.type) == "string"]
    _parquet().write_table(table, buffer, write_page_checksum=True, use_dictionary=names)
    return buffer.getvalue()


def _write_listing(path: Path, entries: Sequence[Entry]) -> None:
    _parquet()
    import pyarrow as pa

    columns = dict(zip(Entry._fields, zip(*entries, strict=True), strict=True))
    write_bytes(path, table_bytes(pa.table({name: list(column) for name, column in columns.items()})))


def _read_listing(path: Path) -> list[Entry]:
    with open_parquet(path, ArtifactError) as file:
        table = file.load(Entry._fields)
        for name in Entry._fields:
            wanted = "int64" if name in ("start", "size") else "string"
            if str(table[name].type) != wanted or table[name].null_count:
                raise TypeError(f"its column {name!r} must hold {wanted}, and not {table[name].type} or nothing")
        return [Entry(*row) for row in zip(*(table[name].to_pylist() for name in Entry._fields), strict=True)]
