"""Pages in a real browser: what only layout can tell."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import fit_and_tune, make_problem

from tdumpra.method.evidence import Evidence
from tdumpra.report.evidence_page import Heatmap, evidence_page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

LONG = "seborrhoeic_keratosis_of_an_unreasonably_long_name"
WIDTHS = (320, 390, 768, 1280)

# what stands outside the window, and what holds more than it can show
OUTSIDE = """() => [...document.querySelectorAll("main *")]
  .filter(e => !e.closest(".hidden-text, .scroll, details"))
  .filter(e => { const b = e.getBoundingClientRect(); return b.width && (b.right > innerWidth + 1 || b.left < -1); })
  .map(e => e.outerHTML.slice(0, 80))"""
OVERFULL = """() => [...document.querySelectorAll(".cell, h1, h2, h3, .badge, th, td, figcaption")]
  .filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """A case with an open gate, names that do not fit and ids that do not break."""
    problem = make_problem()
    fitted = fit_and_tune(problem)
    rows = (fitted.explain(p, z) for p, z in zip(problem.test.p, problem.test.z, strict=True))
    found = next(each for each in rows if each.opened)
    names = ("b" * 40, LONG, "mel", "a name of several words")
    wide = [replace(match, name=names[match.label]) for match in found.shown]
    return replace(found, class_names=names, matches=tuple(wide[: len(found.matches)]))


@pytest.fixture(scope="module")
def page_file(evidence, tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (192, 256, 3), dtype=np.uint8)
    path: Path = tmp_path_factory.mktemp("pages") / "case.html"
    html = evidence_page(
        evidence, case_id="c" * 60, image=picture, truth="mel", saliency=Heatmap(picture, "Orange counts. " * 12),
        pictures=dict.fromkeys(evidence.exemplar_ids[::2], picture), back_link=("index.html", "All cases"),
    )  # fmt: skip
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield launched
        launched.close()


@pytest.fixture
def visit(browser, page_file):
    """Opens the page and collects what the browser complains about and what it asks of the network."""
    contexts = []

    def open_page(width: int = 1280, scheme: str = "light", **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.trouble = []
        page.on("console", lambda message: page.trouble.append(message.text))
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.on(
            "request",
            lambda request: None if request.url.startswith(("data:", "file:")) else page.trouble.append(request.url),
        )
        page.goto(page_file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_sticks_out(visit, width):
    page = visit(width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate(OVERFULL) == []
    assert page.trouble == []


def brightness(page: Any, selector: str, value: str) -> float:
    colour = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{value}")
    return float(np.mean([float(part) for part in colour.strip("rgba()").split(",")[:3]]))


def test_dark_and_light_by_the_readers_setting_and_by_the_button(visit):
    light, dark = visit(scheme="light"), visit(scheme="dark")
    assert brightness(light, "body", "backgroundColor") > 200 > 60 > brightness(light, "body", "color")
    assert brightness(dark, "body", "backgroundColor") < 40 < 200 < brightness(dark, "body", "color")
    button = dark.get_by_role("button")
    assert button.inner_text() == "Light page"
    button.click()
    assert brightness(dark, "body", "backgroundColor") > 200
    assert button.inner_text() == "Dark page"
    dark.reload()
    assert brightness(dark, "body", "backgroundColor") > 200  # remembered


def test_paper_is_white_also_for_a_reader_of_dark_pages(visit):
    page = visit(scheme="dark")
    page.get_by_role("button").click()
    page.get_by_role("button").click()  # dark by choice
    page.emulate_media(media="print")
    assert brightness(page, "body", "backgroundColor") == 255
    assert brightness(page, "body", "color") < 60
    assert not page.get_by_role("button").is_visible()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_clauses_are_readable_as_the_evidence_has_them(visit, evidence, width):
    page = visit(width)
    rows = page.locator("tr[data-clause]")
    asked = [clause for clause in evidence.clauses if clause.asked]
    assert rows.count() == len(asked)
    for i, clause in enumerate(asked):
        text = rows.nth(i).inner_text()
        assert clause.statement in text
        assert ("holds" if clause.holds else "fails") in text
        assert rows.nth(i).locator(".value").is_visible()


def test_bars_are_as_long_as_their_probabilities(visit, evidence):
    page = visit(1280)
    for i, name in enumerate(evidence.class_names):
        row = page.locator(".opinions tbody tr", has=page.get_by_role("rowheader", name=name, exact=True))
        shares = row.locator(".bar").evaluate_all(
            "bars => bars.map(b => b.firstElementChild.getBoundingClientRect().width / b.getBoundingClientRect().width)"
        )
        expected = [evidence.p_classifier[i], evidence.p_similarity[i], evidence.p[i]]
        assert shares == pytest.approx(expected, abs=0.01)


def test_without_scripts_all_is_there_but_the_button(visit, evidence):
    page = visit(390, java_script_enabled=False)
    assert not page.get_by_role("button").is_visible()
    assert page.get_by_text(evidence.sentence[1:]).is_visible()


def test_every_picture_loads(visit):
    page = visit()
    widths = page.locator("img").evaluate_all("images => images.map(image => image.naturalWidth)")
    assert len(widths) > 4
    assert min(widths) > 0
