"""Every code block of the README and the pages is true: Python runs, commands run, settings are read, equations parse.

Blocks of one page run in order, in one folder and one namespace, as a reader would run them. ``doc_world`` says what
stands for the large things that pages speak of.
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import doc_world
import pytest
import torch
from markdown_blocks import PAGES, ROOT, Block, blocks

from sitegen.mathml import to_mathml
from tdumpra.cli import experiments, run
from tdumpra.cli import main as cli
from tdumpra.runs.config import read_config
from tdumpra.server import run as server

pytestmark = [  # the notes that miniature data earn
    pytest.mark.filterwarnings(r"ignore:n_prototypes=\d is more than"),
    pytest.mark.filterwarnings("ignore:validation is small"),
]

SLOW = (
    "deploying.md",
    "own-model.md",
    "new-hospital.md",
    "report.md",
    "ham10000.md",
    "ham10000-supplement.md",
    "several-machines.md",
)
BLOCKS = {page: blocks(page) for page in PAGES}
RUNNING = [page for page, found in BLOCKS.items() if any(each.language in ("python", "console") for each in found)]

# What a page takes from another: a file that is shown there, and what is done with it.
BEFORE = {
    "docs/own-model.md": ("docs/own-data.md", "cases.csv", ""),
    "docs/deploying.md": ("docs/tutorial.md", "lesions.toml", ""),
    "docs/report.md": ("docs/tutorial.md", "lesions.toml", "run lesions.toml"),
    "docs/scoring.md": ("docs/tutorial.md", "lesions.toml", ""),
    "docs/serving.md": ("docs/tutorial.md", "lesions.toml", ""),
    "docs/several-machines.md": ("docs/tutorial.md", "lesions.toml", ""),
    "docs/model-life.md": ("docs/tutorial.md", "lesions.toml", "run lesions.toml"),
}

# Writing a report takes seconds, and has tests of its own: elsewhere runs end before it.
REPORTING = {"docs/tutorial.md", "docs/report.md"}


class Page:
    """A page on its way: its folder, its namespace, and the command line."""

    def __init__(self, root: Path, names: dict[str, Any], tdumpra: Callable[[list[str]], str], prepend: Any) -> None:
        self.root, self.names, self.tdumpra, self.prepend = root, dict(names), tdumpra, prepend

    def python(self, block: Block) -> None:
        if block.title is not None:
            (self.root / block.title).write_text(block.text, encoding="utf-8")
            return
        lines = "\n" * (block.line - 1) + block.text  # a traceback then names the page's own line
        exec(compile(lines, str(block.page), "exec"), self.names)

    def toml(self, block: Block) -> None:
        path = self.root / (block.title or "fragment.toml")
        path.write_text(block.text, encoding="utf-8")
        read_config(path)
        if block.title is not None:
            doc_world.shrink(path, path)

    def csv(self, block: Block) -> None:
        assert block.title is not None, f"{block.place}: a table is a file: give it a title"
        doc_world.write_table(self.root / block.title, block.text)

    def console(self, block: Block) -> None:
        for command, expected in commands(block):
            words = shlex.split(doc_world.respell(command), comments=True)
            while "=" in words[0]:
                assert words.pop(0) == "PYTHONPATH=.", block.place
                self.prepend(str(self.root))
            if words[0] == "tdumpra":
                refuse_other_output(self.tdumpra(words[1:]), expected, block)
            else:
                CHECKED_ONLY[words[0]](words)

    def math(self, block: Block) -> None:
        assert "<math" in to_mathml(block.text, block=True)

    def text(self, block: Block) -> None:
        """A diagram; a command in it would escape being run."""
        assert not re.search(r"^\s*(\$|tdumpra|python|import|from)\b", block.text, re.MULTILINE), block.place

    def bibtex(self, block: Block) -> None:
        assert block.text.count("{") == block.text.count("}")
        assert block.text.startswith("@")
        assert "author" in block.text
        assert "title" in block.text


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """Each command of a console block with the lines that are shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            assert found, f"{block.place}: output before the first command"
            found[-1][1].append(line)
    return found


def refuse_other_output(output: str, expected: list[str], block: Block) -> None:
    """The shown lines occur in this order; ``…`` stands for anything."""
    said, position = " ".join(output.split()), 0
    for line in expected:
        pattern = ".*?".join(re.escape(part.strip()) for part in line.split("…") if part.strip())
        match = re.compile(pattern).search(said, position)
        assert match, f"{block.place}: {line!r} is not in the output:\n{output}"
        position = match.end()


def make(words: list[str]) -> None:
    assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words


def pip(words: list[str]) -> None:
    package, _, extra = words[-1].removesuffix("]").partition("[")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert package in (project["name"], ".")  # from an index, or from the clone
    assert not extra or extra in project["optional-dependencies"]


def python(words: list[str]) -> None:
    if words[1] == "-m":
        assert (ROOT / f"{words[2].replace('.', '/')}.py").is_file()
        return
    assert words[1] == "benchmarks/run.py"
    names = words[2 : words.index("--out")] if "--out" in words else words[2:]
    assert all((ROOT / "benchmarks" / f"{name}.py").is_file() for name in names)


def launcher(words: list[str]) -> None:
    command = words[words.index("tdumpra") + 1]
    assert any(each.name == command for each in cli.app.registered_commands), words


def job_array(words: list[str]) -> None:
    launcher(shlex.split(words[-1]))


def variables(words: list[str]) -> None:
    assert "=" in words[1], words


def cluster(words: list[str]) -> None:
    assert words[1] in ("start", "stop"), words


# Not run here, and why: `make`, simulations and the benchmarks take minutes and have tests of their own, `pip` changes
# the environment, launchers and clusters need several machines. That they name what exists is checked.
CHECKED_ONLY: dict[str, Callable[[list[str]], None]] = {
    "make": make, "pip": pip, "python": python, "srun": launcher, "torchrun": launcher, "sbatch": job_array,
    "export": variables, "ray": cluster,
}  # fmt: skip


def wait_for_no_request(service: Any, listener: Any) -> None:
    """In the place of a server's loop, which ends with Ctrl-C: everything was opened, and is closed again."""
    service.close()
    listener.close()


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    return doc_world.arrays()


@pytest.fixture
def page(tmp_path, monkeypatch, capsys, names, plain_charts) -> Page:
    doc_world.furnish(tmp_path, names)
    for folder in ("configs", "studies/ham10000"):
        whole = tmp_path / f"{folder}-whole"  # beside the small ones, so that its relative paths mean the same
        shutil.copytree(ROOT / folder, whole, ignore=lambda _, names: [n for n in names if not n.endswith(".toml")])
        (tmp_path / folder).mkdir(parents=True)
        for path in sorted(whole.glob("*.toml")):
            doc_world.shrink(path, tmp_path / folder / path.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TDUMPRA_PASSWORD", "asked for on a page's terminal")
    monkeypatch.setattr(server, "run", wait_for_no_request)
    monkeypatch.setattr(server, "listen", lambda _: socket.socket())  # pages are tried side by side, on one port

    def tdumpra(arguments: list[str]) -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["tdumpra", *arguments])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            torch.use_deterministic_algorithms(False)
        captured = capsys.readouterr()
        assert code == 0, f"tdumpra {shlex.join(arguments)} ended with {code}:\n{captured.err}"
        return str(captured.out)

    return Page(tmp_path, names, tdumpra, monkeypatch.syspath_prepend)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow) if path.name in SLOW else path for path in RUNNING],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_the_blocks_of_a_page_run(path, page, monkeypatch):
    name = path.relative_to(ROOT).as_posix()
    if name not in REPORTING:
        for module in (experiments, run):
            monkeypatch.setattr(module, "finish_with_report", lambda *_, **__: None)
    before = BEFORE.get(name)
    if before is not None:
        elsewhere, title, command = before
        block = next(each for each in BLOCKS[ROOT / elsewhere] if each.title == title)
        getattr(page, block.language)(block)
        if command:
            page.tdumpra(command.split())
    for block in BLOCKS[path]:
        getattr(page, block.language)(block)


@pytest.mark.parametrize("path", [path for path in BLOCKS if path not in RUNNING], ids=lambda path: path.name)
def test_other_pages_have_settings_and_equations_only(path, page):
    for block in BLOCKS[path]:
        getattr(page, block.language)(block)


def test_no_block_escapes():
    handled = {name for name in vars(Page) if not name.startswith("_")}
    assert sum(len(found) for found in BLOCKS.values()) > 40
    for found in BLOCKS.values():
        for block in found:
            assert block.language in handled, f"{block.place}: nothing checks a block of {block.language!r}"
    for path in PAGES:  # indented code would be seen by nothing here
        indented = re.findall(r"^\n {4}(?:\$ |>>> |tdumpra |import |from )", path.read_text(), re.MULTILINE)
        assert not indented, path
