"""Read TOML into a tree of frozen dataclasses, and write it. An unknown key is answered with the nearest one."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tdumpra.errors import TdumpraError, nearest

T = TypeVar("T")
Plain = dict[str, Any]
_OUTPUTS = {".npz", ".csv", ".parquet"}  # often passed by mistake in place of a configuration


class ConfigError(TdumpraError):
    """A configuration says something that it cannot say."""


def read_tree(
    path: str | Path | None,
    kind: type[T],
    *,
    changes: Sequence[str] = (),
    adapt: Callable[[Plain, Path], Plain] = lambda content, folder: content,
    below: Callable[[Plain], Plain] = lambda content: {},
    **defaults: Any,
) -> T:
    """Read a TOML file into ``kind``, a dataclass of plain values and dataclasses.

    Args:
        path: the file; without one, ``changes`` and ``defaults`` say everything.
        kind: the dataclass.
        changes: ``KEY=VALUE`` each, which override the file; the last one wins.
        adapt: is given the plain values of one file and its folder, and returns the values to read.
        below: is given the values of all files and changes, and returns values for the keys that they leave out.
        defaults: values of keys that the file itself leaves out, even if a file that it extends sets them.
    """

    def adapted(name: str, content: Plain, folder: Path) -> Plain:
        try:
            return adapt(content, folder)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error

    given = {f"--set {change}": _parse_change(change) for change in reversed(changes)}
    contents = {name: adapted(name, content, Path()) for name, content in given.items()}
    files = {} if path is None else _read_files(path)
    contents |= {str(file): adapted(str(file), content, file.parent) for file, content in files.items()}
    above = [*contents.values()]
    above.insert(len(contents) - len(files) + 1, defaults)
    said = _merge(*above)
    try:
        return from_plain(_merge(said, below(said)), kind)
    except ConfigError as error:
        culprit = next((name for name, content in contents.items() if _mistake(content, kind) == str(error)), path)
        raise ConfigError(f"{culprit}: {error}" if culprit else str(error)) from error


def read_toml(path: str | Path) -> Plain:
    """Return a file's plain values over those of the file that it extends, unchecked."""
    return _merge(*_read_files(path).values())


def _parse_change(change: str) -> Plain:
    """Return ``train.epochs=5`` as nested tables; a value that is no TOML is a string."""
    key, equals, text = change.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not equals or not all(names):
        raise ConfigError(f"--set takes KEY=VALUE, as in  --set train.epochs=5,  not {change!r}")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    content: Any = parsed["value"] if len(parsed) == 1 else text.strip()
    for name in reversed(names):
        content = {name: content}
    return typing.cast(Plain, content)


def _read_files(path: str | Path) -> dict[Path, Plain]:
    """Return the content of a file and of those that it extends, the file itself first."""
    files: dict[Path, Plain] = {}
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


def _read_file(path: Path) -> Plain:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = ": for saved outputs there is  tdumpra attach" if path.suffix in _OUTPUTS else ""
        raise ConfigError(f"{path} is not valid TOML: {error}{hint}") from error
    except RecursionError:
        raise ConfigError(f"{path} nests its values too deeply") from None


def _merge(*contents: Plain) -> Plain:
    """Return tables joined key by key; of other values the first content's is taken."""
    merged: Plain = {}
    for content in contents:
        for key, value in content.items():
            if key not in merged:
                merged[key] = value
            elif isinstance(value, dict) and isinstance(merged[key], dict):
                merged[key] = _merge(merged[key], value)
    return merged


def _mistake(content: Plain, kind: type[Any]) -> str | None:
    try:
        from_plain(content, kind)
    except ConfigError as error:
        return str(error)
    return None


def from_plain(content: Plain, kind: type[T], where: str = "") -> T:
    """Build a dataclass from plain values; keys that are left out keep their defaults."""
    complete = getattr(kind, "complete", None)  # of a class whose tables may extend others
    try:
        content = complete(content) if complete else content
    except ValueError as error:
        raise ConfigError(f"{where}{error}") from error
    hints = typing.get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {}
    for key, value in content.items():
        if key not in fields:
            hint = nearest(key, fields) or f"; there are {', '.join(sorted(fields))}"
            raise ConfigError(f"unknown key {where}{key}{hint}")
        values[key] = _convert(value, fields[key], f"{where}{key}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"[{where.rstrip('.')}] {error}" if where else str(error)) from error


def to_toml(tree: Any) -> str:
    """Return a dataclass, or its plain values, as TOML; ``None`` is left out, as TOML has no word for it."""
    return "\n".join(_table_lines(tree if isinstance(tree, dict) else dataclasses.asdict(tree), "")).strip() + "\n"


def _table_lines(table: Plain, name: str) -> list[str]:
    lines, tables = [], []
    for key, value in table.items():
        below = f"{name}.{key}" if name else key
        if isinstance(value, dict):
            tables += [f"\n[{below}]", *_table_lines(value, below)]
        elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            tables += [line for each in value for line in (f"\n[[{below}]]", *_table_lines(each, below))]
        elif value is not None:
            lines.append(f"{key} = {_literal(value)}")
    return lines + tables


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
        if not isinstance(value, list | tuple):
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
    if value is None and type(None) in kinds:
        return None
    problems = []
    for kind in sorted(kinds, key=lambda kind: dataclasses.is_dataclass(kind) != isinstance(value, dict)):
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
