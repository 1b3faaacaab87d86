"""Hooks of mkdocs (see ``mkdocs.yml``): our Markdown extension, and the pages that no one writes by hand."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs loads this file by its path

from mkdocs.structure.files import File, Files  # noqa: E402

from sitegen.cli_page import cli_page  # noqa: E402
from sitegen.config_page import config_page  # noqa: E402
from sitegen.mathml import InlineMath  # noqa: E402

ROOT_PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}

_BENCHMARKS = re.compile(r"<!-- benchmarks: ([^>]+) -->")
_FILE = re.compile(r"<!-- file: (\S+)\.(\w+) -->")


def on_config(config: Any) -> Any:
    """Read equations within lines, and list every page of results."""
    config.markdown_extensions.append(InlineMath())
    list_results(config.nav, Path(config.docs_dir))
    return config


def list_results(nav: list[dict[str, Any]], docs: Path) -> None:
    """Put the pages of ``results/`` that the navigation does not name after its overview."""
    section: list[dict[str, str]] = next(part["Results"] for part in nav if "Results" in part)
    named = {page for entry in section for page in entry.values()}
    for path in sorted((docs / "results").glob("*.md"), reverse=True):
        page = path.relative_to(docs).as_posix()
        if page not in named:
            title = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
            section.insert(1, {title: page})


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and those that live in the root of the repository."""
    pages = {"cli.md": cli_page(), "configuration.md": config_page()}
    pages |= {page: root_page(name) for name, page in ROOT_PAGES.items()}
    for page, content in pages.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Put files, and the figures of benchmarks, where a page asks for them."""
    docs = Path(config.docs_dir)
    markdown = _BENCHMARKS.sub(lambda found: benchmark_table([docs / name for name in found[1].split()]), markdown)
    return _FILE.sub(lambda found: file_block(*found.groups()), markdown)


def file_block(name: str, suffix: str) -> str:
    """A file of the repository as a block of code."""
    text = (ROOT / f"{name}.{suffix}").read_text(encoding="utf-8")
    return f'```{suffix} title="{name}.{suffix}"\n{text}```'


def benchmark_table(paths: list[Path]) -> str:
    """The rows of some benchmarks' JSON files as a table."""
    lines = ["| what | ours | peer | ratio | aim |", "|---|--:|--:|--:|--:|"]
    for path in paths:
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            ours, peer = (f"{row[side]:,.4g} {row['unit']}" for side in ("ours", "peer"))
            aim = f"{row['goal']} {'✓' if row['met'] else '✗'}"
            lines.append(f"| {row['name']}, against {row['against']} | {ours} | {peer} | {row['ratio']:.2f} | {aim} |")
    return "\n".join(lines)


def root_page(name: str) -> str:
    """A file of the root as a page of the site: its links lead to pages."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    for source, page in ROOT_PAGES.items():
        text = text.replace(f"]({source}", f"]({page}")
    return re.sub(r"\]\(README\.md\)", "](index.md)", text)
