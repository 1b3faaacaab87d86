"""The page of settings, from the dataclasses that read them: names, types, defaults, and the comment beside each."""

from __future__ import annotations

import dataclasses
import inspect
import io
import re
import tokenize
import types
import typing
from typing import Any

from tdumpra.runs.config import Config

_HEAD = """\
# Settings of a run

A run is described by one TOML file. What it leaves out keeps its default; a misspelt key is answered with the right
one, a value of the wrong type with what is allowed. The file that a run leaves in its folder (`config.toml`) has every
value written out. [Your own data](own-data.md) and [your own model](own-model.md) have examples. In the repository,
`configs/` has files to start from, and `studies/` those behind the [results](results/index.md).

With `extends = "base.toml"` at the top, a file says only what differs from another one: tables are joined key by key,
lists and single values replace those of the other file. A run whose own file has no `name` is called after that
file. With `recipe = "paper"` everything that a file leaves out has the value that the paper states, or ours where the
paper states none ([all of them, with their sources](paper-notes.md#the-papers-setting)); what the file itself names
wins. Any setting can be changed for one command: `--set train.epochs=5 --set network.backbone=resnet18`, and
`--seeds 0,1`.

Relative paths of files (`extends`, `data.source`, `data.test_source`, `data.split_file`, `data.duplicates`,
`network.weights`, `evaluate.metadata`, `outputs`) count from the file that names them; on the command line they count
from the working folder. Folders of runs (`folder`, `data.cache`, `bank.space`, `evaluate.baseline`) always count from
the working folder, where `runs/` lies.

This page is written by the dataclasses themselves when the site is built.
"""

_WORDS = {int: "whole number", float: "number", str: "string", bool: "true or false"}


def config_page() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *_section(Config, "")])


def _section(kind: type, name: str, title: str | None = None) -> list[str]:
    title = title or f"## `[{name}]` {{ #{name.replace('.', '-')} }}" if name else "## At the top of the file { #top }"
    lines = [title, "", _summary(kind), "", "| key | type | default | meaning |", "|---|---|---|---|"]
    hints, notes = typing.get_type_hints(kind), comments(kind)
    inner: list[str] = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            inner += ["", *_section(hint, f"{name}.{field.name}" if name else field.name)]
            continue
        item = next(iter(typing.get_args(hint)), None)
        if dataclasses.is_dataclass(item) and isinstance(item, type):
            inner += ["", *_section(item, field.name, title=f"## `[[{field.name}]]` {{ #{field.name} }}")]
        cells = (f"`{field.name}`", _type(hint), _default(field), notes.get(field.name, ""))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return lines + inner


def comments(kind: type) -> dict[str, str]:
    """The comment beside each field of a dataclass, by its name."""
    found: dict[str, str] = {}
    name, fresh = "", True
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(kind)).readline):
        if token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            fresh = True
        elif token.type == tokenize.COMMENT:
            if name and not fresh:
                found[name] = token.string.lstrip("# ").replace("``", "`")
        elif fresh:
            name, fresh = token.string, False
            if token.string == "def":
                break
    return found


def _summary(kind: type) -> str:
    """The docstring, one paragraph per line."""
    text = re.sub(r"``([^`]+)``", r"`\1`", inspect.getdoc(kind) or "")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(each) for each in arguments if each is not type(None))
    if origin is typing.Literal:
        return ", ".join(f"`{_toml(each)}`" for each in arguments)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of {_plural(arguments[0])}"
        return f"list of {len(arguments)} {_plural(arguments[0])}"
    return _WORDS.get(hint, "table")


def _plural(hint: Any) -> str:
    return (
        f"{_type(hint)}s"
        if hint in (int, float, str) or dataclasses.is_dataclass(hint)
        else _type(hint).replace("list", "lists", 1)
    )


def _default(field: dataclasses.Field[Any]) -> str:
    return "" if field.default in (None, dataclasses.MISSING) else f"`{_toml(field.default)}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(each) for each in value)}]"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f'"{value}"' if isinstance(value, str) else str(value)
