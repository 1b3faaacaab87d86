"""TOML into a tree of frozen dataclasses and back. Types are checked; a misspelt key is answered with the right one."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from tdumpra.errors import TdumpraError

T = TypeVar("T")
_OUTPUTS = {".npz", ".csv", ".parquet"}  # what one may hand over in place of a configuration


class ConfigError(TdumpraError):
    """A configuration file says something that it cannot say."""


def read_tree(path: str | Path, kind: type[T], **defaults: Any) -> T:
    """Read a file into ``kind``, a dataclass of plain values and dataclasses.

    ``defaults`` stand for what the file itself leaves out, also where a file that it extends says something else.
    """
    files = _read_files(path)
    own, *bases = files.values()
    try:
        return from_plain(_merge({**defaults, **own}, *bases), kind)
    except ConfigError as error:
        culprit = next((file for file, content in files.items() if _mistake(content, kind) == str(error)), path)
        raise ConfigError(f"{culprit}: {error}") from error


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return a file's plain values over those of the file that it extends, whatever they mean."""
    return _merge(*_read_files(path).values())


def _read_files(path: str | Path) -> dict[Path, dict[str, Any]]:
    """Return the content of a file and of those that it extends, the file itself first."""
    files: dict[Path, dict[str, Any]] = {}
    file, seen = Path(path), set()
    while True:
        files[file] = content = _read_file(file)
        seen.add(file.resolve())
        base = content.pop("extends", None)
        if base is None:
            return files
        if not isinstance(base, str):
            raise ConfigError(f"{file}: extends must be a string, the path of another file, not {base!r}")
        extending, file = file, file.parent / base
        if file.resolve() in seen:
            raise ConfigError(f"files extend each other in a circle: {' -> '.join(map(str, [*files, file]))}")
        if not file.is_file():
            raise ConfigError(f"{extending} extends {file}, which does not exist")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = ": for saved outputs there is  tdumpra attach" if path.suffix in _OUTPUTS else ""
        raise ConfigError(f"{path} is not valid TOML: {error}{hint}") from error


def _merge(*contents: dict[str, Any]) -> dict[str, Any]:
    """Return tables joined key by key; of other values the first content's is taken."""
    merged: dict[str, Any] = {}
    for content in contents:
        for key, value in content.items():
            if key not in merged:
                merged[key] = value
            elif isinstance(value, dict) and isinstance(merged[key], dict):
                merged[key] = _merge(merged[key], value)
    return merged


def _mistake(content: dict[str, Any], kind: type[Any]) -> str | None:
    try:
        from_plain(content, kind)
    except ConfigError as error:
        return str(error)
    return None


def from_plain(content: dict[str, Any], kind: type[T], where: str = "") -> T:
    """Plain values into a dataclass; what is left out keeps its default."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {}
    for key, value in content.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(fields))}"
            raise ConfigError(f"unknown key {where}{key} ({hint})")
        values[key] = _convert(value, fields[key], f"{where}{key}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"[{where.rstrip('.')}] {error}" if where else str(error)) from error


def to_toml(tree: Any) -> str:
    """The tree as TOML, every value written out; ``None`` is left out, as TOML has no word for it."""
    return "\n".join(_table_lines(dataclasses.asdict(tree), "")).strip() + "\n"


def _table_lines(table: dict[str, Any], name: str) -> list[str]:
    lines = [f"\n[{name}]"] if name else []
    lines += [
        f"{key} = {_literal(value)}"
        for key, value in table.items()
        if value is not None and not isinstance(value, dict)
    ]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += _table_lines(value, f"{name}.{key}" if name else key)
    return lines


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(item) for item in value)}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)  # TOML writes strings, integers and booleans as JSON does


def _convert(value: Any, kind: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments, name)
    if origin is typing.Literal:
        if value not in arguments:
            raise ConfigError(f"{name} must be one of {', '.join(map(repr, arguments))}, not {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{name} must be a list, not {value!r}")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise ConfigError(f"{name} must have {len(arguments)} entries, not {len(value)}")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(
            _convert(item, each, f"{name}[{i}]") for i, (item, each) in enumerate(zip(value, kinds, strict=True))
        )
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{name} must be a table [{name}], not {value!r}")
        return from_plain(value, kind, f"{name}.")
    return _convert_plain(value, kind, name)


def _convert_union(value: Any, kinds: tuple[Any, ...], name: str) -> Any:
    problems = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _convert(value, kind, name)
        except ConfigError as error:
            problems.append(error)
    raise problems[0]


def _convert_plain(value: Any, kind: type, name: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        words = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
        raise ConfigError(f"{name} must be {words.get(kind, kind.__name__)}, not {value!r}")
    return value
