"""The page of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from tdumpra.cli.bank import STAGE
from tdumpra.cli.main import app

# In the order in which a newcomer meets them; `cli_page` refuses a command that is missing here.
SECTIONS = {
    "First steps": ("demo", "attach"),
    "Data": ("data inspect", "data audit", "data prepare"),
    "Runs": ("run", "train", "embed", "bank", "tune", "evaluate"),
    "A model's life": ("validate", "adapt", "bank list", "bank diff", "bank add", "bank remove", "history", "card"),
    "Predictions and evidence": ("predict", "score", "explain", "report", "export", "seal", "verify"),
    "Server": (
        "serve",
        "account add",
        "account password",
        "account token",
        "account link",
        "account unlink",
        "account disable",
        "account list",
        "audit verify",
        "audit head",
        "audit replay",
    ),
    "Experiments": ("ablate", "sweep", "search", "reproduce", "bench"),
}

_HEAD = """\
# Command line

Every command takes `--help`. Results go to `--out DIR`; `--json` prints them and nothing else. Commands that take a
configuration also take `--set KEY=VALUE`, as often as you like, and `--seeds 0,1`. A mistake ends in one sentence on
standard error and exit code 2, Ctrl-C in exit code 130. With `TDUMPRA_TRACEBACK=1` in the environment you also see
where the mistake was found.

This page is written by the commands themselves when the site is built.
"""


def commands() -> dict[str, Any]:
    """Every command by the words that call it."""
    return dict(_walk(typer.main.get_command(app), ""))


def _walk(group: Any, words: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(None):  # asked, not looked up: a group may load its commands on demand
        command = group.get_command(None, name)
        if name == STAGE:  # ``tdumpra bank CONFIG`` has no word of its own
            yield words.strip(), command
        elif hasattr(command, "list_commands"):
            yield from _walk(command, f"{words}{name} ")
        else:
            yield words + name, command


def cli_page() -> str:
    """The page as Markdown."""
    known = commands()
    placed = {name for names in SECTIONS.values() for name in names}
    if differing := known.keys() ^ placed:
        raise ValueError(f"SECTIONS and the command line differ: {', '.join(sorted(differing))}")
    parts = [_HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_describe(name, known[name]) for name in names]
    return "\n".join(parts)


def _describe(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    usage = " ".join(["tdumpra", name, *(["[OPTIONS]"] if options else []), *map(_placeholder, arguments)])
    lines = [f"### `tdumpra {name}` {{ #{name.replace(' ', '-')} }}\n", f"{command.help}\n", f"```text\n{usage}\n```\n"]
    if arguments or options:
        lines += ["| | | default |", "|---|---|---|"]
        lines += [f"| `{_placeholder(each)}` | {_cell(each.help)} | {_default(each)} |" for each in arguments]
        lines += [f"| {_spelling(each)} | {_cell(each.help)} | {_default(each)} |" for each in options]
    return "\n".join(lines) + "\n"


def _placeholder(argument: Any) -> str:
    word = argument.name.upper() + ("…" if argument.nargs == -1 else "")
    return word if argument.required else f"[{word}]"


def _spelling(option: Any) -> str:
    return ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or callable(value):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value.as_posix() if isinstance(value, Path) else value}`"
