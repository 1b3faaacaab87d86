"""The site builds without a warning, works without a network, and names everything that there is."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from markdown import markdown
from markdown_blocks import ROOT

import tdumpra
from sitegen.cli_page import SECTIONS, cli_page, commands
from sitegen.config_page import comments, config_page
from sitegen.docstrings import to_markdown
from sitegen.hooks import ROOT_PAGES, benchmark_table, list_results
from sitegen.mathml import InlineMath, to_mathml
from tdumpra.locks import exclusive
from tdumpra.runs.config import Config, TrainConfig

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site: the one that TDUMPRA_SITE names, else one of the tests' own, built once for all processes."""
    if built := os.environ.get("TDUMPRA_SITE"):
        return Path(built).resolve()
    base: Path = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, finished = shared / "site", shared / "site-is-built"
    (shared / "site.lock").touch()
    with exclusive(shared / "site.lock"):
        if not finished.exists():
            build(folder)
            finished.touch()
    return folder


def build(folder: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()


def ids(page: Path) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8")))


class TestSite:
    def test_every_page_is_there(self, site):
        pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
        pages |= {Path(page).with_suffix(".html") for page in (*ROOT_PAGES.values(), "cli.md", "configuration.md")}
        for page in pages:
            built = page.with_name("index.html") if page.stem == "README" else page
            assert (site / built).is_file(), page

    def test_nothing_is_fetched_from_elsewhere(self, site):
        for path in site.rglob("*.html"):
            text = path.read_text(encoding="utf-8")
            assert not re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?:https?:)?//[^"]+', text), path
        for path in site.rglob("*.css"):
            assert not re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")), path

    def test_equations_are_drawn_by_the_browser(self, site):
        method = (site / "method.html").read_text(encoding="utf-8")
        assert method.count('display="block"') >= 10
        assert "$`" not in method

    def test_the_api_page_has_every_public_name(self, site):
        anchors = ids(site / "api.html")
        for name in tdumpra.__all__:
            value = getattr(tdumpra, name)
            if name != "__version__":
                assert f"{value.__module__}.{value.__qualname__}" in anchors, name

    def test_the_command_page_has_every_command(self, site):
        assert {"data audit", "demo", "explain", "report", "run"} < commands().keys()
        assert {name.replace(" ", "-") for name in commands()} <= ids(site / "cli.html")

    def test_links_of_the_readme_lead_somewhere(self, site):
        links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
        assert len(links) > 10
        for link in links:
            path, _, anchor = link.partition("#")
            assert (ROOT / path).is_file(), link
            if anchor:
                assert anchor in ids(site / Path(path).relative_to("docs").with_suffix(".html")), link

    @pytest.mark.skipif(CHROMIUM is None, reason="there is no browser here")
    @pytest.mark.filterwarnings("ignore::ResourceWarning")
    def test_in_a_browser_from_the_disk(self, site):
        from playwright.sync_api import sync_playwright

        asked: list[str] = []
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 390, "height": 800})
            page.on("request", lambda request: asked.append(request.url))
            for name in ("index", "method", "cli", "configuration", "api", "results/index"):
                page.goto(f"{site.as_uri()}/{name}.html")
                width = page.evaluate("document.documentElement.scrollWidth")
                assert width <= 390, f"{name} is {width} px wide on a phone"
            page.set_viewport_size({"width": 1280, "height": 800})
            page.click("input[name=query]")
            page.keyboard.type("certify")
            page.wait_for_selector(".md-search-result__item")  # the worker that is none
            browser.close()
        assert asked
        assert all(url.startswith(("file:", "data:", "about:")) for url in asked)


class TestGeneratedPages:
    def test_a_command_without_a_section_is_refused(self, monkeypatch):
        monkeypatch.setitem(SECTIONS, "First steps", ("demo",))
        with pytest.raises(ValueError, match="differ: attach"):
            cli_page()

    def test_options_have_their_help_and_default(self):
        assert "| `--n-prototypes` | Prototypes per class. | `5` |" in cli_page()
        assert "tdumpra predict [OPTIONS] MODEL IMAGES…" in cli_page()

    def test_every_setting_has_a_row(self):
        page = config_page()

        def check(kind: type, section: str) -> None:
            rows = page.split(f"`[{section}]`" if section else "At the top", 1)[1].split("\n## ", 1)[0]
            for field in dataclasses.fields(kind):
                inner = type(field.default_factory()) if callable(field.default_factory) else None
                if inner is not None and dataclasses.is_dataclass(inner):
                    check(inner, f"{section}.{field.name}" if section else field.name)
                else:
                    assert f"| `{field.name}` | " in rows

        check(Config, "")

    def test_a_row(self):
        row = '| `schedule` | `"cosine"`, `"constant"` | `"cosine"` |  |'
        assert row in config_page()
        assert "| `folds` | whole number | `0` | cross-fit" in config_page()

    def test_comments_belong_to_their_own_field(self):
        @dataclass
        class Settings:
            """Summary."""

            first: int = 1  # about the first
            second: tuple[int, ...] = (1, 2)
            # about nothing in particular
            third: str = "#"  # about ``third``

            def method(self) -> None:
                pass  # about no field

        assert comments(Settings) == {"first": "about the first", "third": "about `third`"}
        assert comments(TrainConfig)["accumulate"].startswith("batches whose gradients")

    def test_benchmarks_come_from_their_file(self, tmp_path):
        (tmp_path / "a.json").write_text(
            '{"rows": [{"name": "step", "against": "peer", "ours": 2676.4, "peer": 2854.2, "ratio": 0.9377, '
            '"unit": "views/s", "goal": "≥ 0.95 ×", "met": false}]}',
            encoding="utf-8",
        )
        row = "| step, against peer | 2,676 views/s | 2,854 views/s | 0.94 | ≥ 0.95 × ✗ |"
        assert benchmark_table([tmp_path / "a.json"]).splitlines()[-1] == row

    def test_pages_of_results_are_listed_once(self, tmp_path):
        (tmp_path / "results").mkdir()
        for name in ("index", "ham10000", "isic2019"):
            (tmp_path / "results" / f"{name}.md").write_text(f"# About {name}\n")
        nav: list[Any] = [
            {"Home": "index.md"},
            {"Results": [{"Overview": "results/index.md"}, {"Card": "model-card.md"}]},
        ]
        list_results(nav, tmp_path)
        pages = [page for entry in nav[1]["Results"] for page in entry.values()]
        assert pages == ["results/index.md", "results/ham10000.md", "results/isic2019.md", "model-card.md"]


class TestEquations:
    def test_within_a_line(self):
        html = markdown("The weight $`\\alpha < 1`$ and `code`.", extensions=[InlineMath()])
        assert html.count("<math") == 1
        assert "&#x003B1;" in html or "α" in html
        assert "<code>code</code>" in html

    def test_what_cannot_be_drawn_is_refused(self):
        with pytest.raises(ValueError, match=r"no MathML for \\nonsense"):
            to_mathml(r"\nonsense{x}")

    def test_in_docstrings(self):
        text = "Of :class:`Bank` and ``x``, :math:`\\kappa`.\n\n.. math:: a\n    + b\n\nAttributes:\n    z: the rows.\n"
        found = to_markdown(text)
        assert "Of `Bank` and `x`, <math" in found
        assert found.count('class="equation"') == 1
        assert "- `z`: the rows." in found
        assert ".. math" not in found
