"""Reports of runs on images, up to a look at them in a real browser."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from parsed_page import parse
from PIL import Image
from tiny_config import write_config

from tdumpra.cli import main as cli
from tdumpra.data.images.framing import Framing
from tdumpra.data.manifest import Record
from tdumpra.data.sources.files import FileReader
from tdumpra.errors import UnreadableError
from tdumpra.networks.model_file import Model
from tdumpra.report.material import Pictures, gather
from tdumpra.report.qualitative import draw_cases
from tdumpra.report.runs import write_report
from tdumpra.runs.config import read_config
from tdumpra.runs.outputs import all_outputs

pytestmark = pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")

SOURCE = "synthetic:n=160,size=32"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two seeds of a tiny network on synthetic lesions, and what their command printed last."""
    root = tmp_path_factory.mktemp("images")
    changes = {"name": "tiny & <small>", "seeds": "[0, 1]", "source": SOURCE, "train": "learning_rate = 1e-2"}
    write_config(root / "c.toml", root / "cache", folder=root / "run", bootstrap=100, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tdumpra", "run", str(root / "c.toml")])
        with pytest.raises(SystemExit, match="0"):
            cli.main()
    torch.use_deterministic_algorithms(False)
    return root / "run"


@pytest.fixture(scope="module")
def seed(run):
    return run / "seed-0"


@pytest.fixture(scope="module")
def page(seed):
    return parse((seed / "report" / "index.html").read_text())


def test_the_run_ends_with_a_report_of_all_seeds(run):
    page = parse((run / "report" / "index.html").read_text())
    evaluations = [json.loads((run / f"seed-{seed}" / "evaluation.json").read_text()) for seed in (0, 1)]
    opened, n = (sum(each["gate"][key] for each in evaluations) for key in ("opened", "n"))
    expected = f"opened on {opened} of {n} cases of 2 seeds" if opened else f"stayed shut on all {n} cases of 2 seeds"
    assert expected in page.one("h1").text
    means = [each["comparators"]["student"]["accuracy"] for each in evaluations]
    results, paired = page.all("table", class_="results")
    assert f"{sum(means) / 2:.4f}" in results.text
    assert "logit_adjusted" in paired.text
    links = [link.attributes["href"] for link in page.one("section", id="seeds").all("a")]
    assert links == ["../seed-0/report/index.html", "../seed-1/report/index.html"]
    assert all((run / "report" / link).resolve().is_file() for link in links)


def test_training_curves_prototypes_and_environment(page, seed):
    assert len(page.one("section", id="training").all("svg")) == 2
    bank = page.one("section", id="prototypes")
    live = int(Model.read(seed / "model.safetensors").decision.bank.mask.sum())
    assert len(bank.all("div", class_="prototype")) == live
    assert len(bank.all("img")) >= live
    assert "torch" in page.one("section", id="environment").text
    assert "Protocol grouped" in page.one("section", id="data").text
    assert "0 of" in page.one("section", id="data").text
    assert page.one("p", class_="eyebrow").text == "tiny & <small>, seed 0"


@pytest.mark.slow
def test_a_run_too_short_to_note_its_loss(seed, tmp_path):
    folder = copied(seed, tmp_path / "short")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(line for line in lines if '"validation"' in line))
    training = parse(write_report(folder, limit=0).read_text()).one("section", id="training")
    assert len(training.all("svg")) == 1
    said = "no curve of the training loss: it is noted every 1 steps (train.log_every), and the run took fewer"
    assert said in training.text
    (folder / "metrics.jsonl").unlink()
    training = parse(write_report(folder, limit=0).read_text()).one("section", id="training")
    assert "no training curves: metrics.jsonl is empty or not there" in training.text


def test_classes_go_by_the_datas_names(page):
    rows = page.one("section", id="classes").one("tbody").all("tr")
    assert [row.all("th")[0].text for row in rows] == ["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]


def test_cards_have_pictures(page):
    cards = page.one("ul", class_="gallery").all("li")
    assert cards
    assert all(len(card.all("img")) == 1 for card in cards)


def test_the_qualitative_figure(page, seed):
    assert (seed / "report" / "qualitative.png").read_bytes().startswith(b"\x89PNG")
    assert (seed / "report" / "qualitative.pdf").read_bytes().startswith(b"%PDF")
    section = page.one("section", id="cases")
    assert "at random" in section.text
    (figure,) = [image for image in section.all("img") if "posteriors" in image.attributes["alt"]]
    assert figure.attributes["alt"].count("retrieval ") == 4  # what retrieval says of each case


def test_the_cases_of_the_figure_are_drawn_at_random(run):
    material = gather(all_outputs(read_config(run.parent / "c.toml"))[0])
    assert material.pictures is not None
    assert material.decided is not None
    rows, _ = draw_cases(material, material.pictures)
    assert rows == draw_cases(material, material.pictures)[0]  # the same figure every time
    confidence = material.decided.signals.gamma_cls
    assert len(set(rows)) == 4
    assert sorted(confidence[rows].tolist()) != sorted(confidence.tolist())[:4]


def copied(seed: Path, place: Path) -> Path:
    shutil.copytree(seed, place, ignore=shutil.ignore_patterns("report", "checkpoints"))
    return place


def test_images_that_have_moved(seed, tmp_path):
    folder = copied(seed, tmp_path / "moved")
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace(SOURCE, "folder:/Nowhere/at/ALL"))
    page = parse(write_report(folder).read_text())
    said = page.one("section", id="cases").text
    assert "No pictures of the cases: " in said
    assert "write it again with tdumpra report from a folder in which that leads to the images" in said
    assert "/Nowhere/at/ALL" in page.one("section", id="cases").text
    assert page.one("section", id="prototypes").all("img")  # the model keeps its own
    assert not (folder / "report" / "qualitative.png").exists()


def test_a_model_without_thumbnails(seed, tmp_path):
    from dataclasses import replace

    folder = copied(seed, tmp_path / "private")
    replace(Model.read(seed / "model.safetensors"), thumbnails={}).write(folder / "model.safetensors")
    page = parse(write_report(folder, limit=3).read_text())
    assert "the model was saved without thumbnails" in page.one("section", id="prototypes").text.lower()
    assert not page.one("section", id="prototypes").all("img")
    assert page.one("section", id="prototypes").all("div", class_="prototype")
    case = next((folder / "report" / "cases").glob("*.html")).read_text()
    assert "the model was saved without thumbnails" in parse(case).text.lower()


@pytest.mark.parametrize("name", ["model.safetensors", "split.json", "environment.json"])
def test_a_disk_that_fails_gives_no_report_rather_than_a_poorer_one(seed, tmp_path, monkeypatch, name):
    """What cannot be read now may be whole, and a report that lacks it would be kept for good."""
    fail_to_read(monkeypatch, name)
    with pytest.raises(UnreadableError, match=rf"{name}.*: Input/output error"):
        write_report(seed, tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_a_picture_on_a_disk_that_fails(tmp_path, monkeypatch):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    record = Record(id="a", path=tmp_path / "a.png", label=0, group="a")
    pictures = Pictures({"a": record}, FileReader(), Framing(height=8, width=8))
    assert pictures.read("a") is not None
    monkeypatch.setattr(Image, "open", lambda *args, **options: failing_disk())
    with pytest.raises(UnreadableError, match=r"image a: .*Input/output error"):
        pictures.read("a")
    monkeypatch.undo()
    (tmp_path / "a.png").unlink()
    assert pictures.read("a") is None


def failing_disk() -> NoReturn:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def fail_to_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let every file of that name fail when its contents are asked for."""
    for method in ("read_bytes", "read_text"):
        real = getattr(Path, method)

        def read(self: Path, *args: Any, real: Any = real, **options: Any) -> Any:
            return failing_disk() if self.name == name else real(self, *args, **options)

        monkeypatch.setattr(Path, method, read)


def test_evaluated_without_a_model(seed, tmp_path):
    """``tdumpra evaluate`` writes no model: the page shows the same gate, without pictures of training cases."""
    folder = copied(seed, tmp_path / "evaluated")
    (folder / "model.safetensors").unlink()
    page = parse(write_report(folder, limit=2).read_text())
    assert page.one("h1").text == parse((seed / "report" / "index.html").read_text()).one("h1").text
    assert "no model.safetensors" in page.one("section", id="prototypes").text


def test_an_evaluation_of_something_else_is_refused(seed, tmp_path):
    from tdumpra.artifacts import read_json, write_json
    from tdumpra.errors import ArtifactError

    folder = copied(seed, tmp_path / "other")
    evaluation = read_json(folder / "evaluation.json", kind="evaluation", schema=1)
    evaluation["made_from"] = "something else"
    write_json(folder / "evaluation.json", kind="evaluation", schema=1, content=evaluation)
    with pytest.raises(ArtifactError, match="changed since it was evaluated"):
        write_report(folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield opened
        opened.close()


def look(browser: Any, path: Path, *, width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page as a reader has it, and everything that it complains of or asks the network for."""
    tab = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda each: complaints.extend([each.url] * (not each.url.startswith(("file:", "data:")))))
    tab.goto(path.as_uri())
    return tab, complaints


@pytest.mark.parametrize("kind", ["attached", "seed"])
def test_from_the_gallery_into_a_case(browser, request, kind):
    folder = request.getfixturevalue(kind)
    tab, complaints = look(browser, folder / "report" / "index.html")
    gate = json.loads((folder / "evaluation.json").read_text())["gate"]
    assert kind == "seed" or (gate["fixed"] and gate["broken"])  # one of the two has something to count
    said = tab.inner_text("h1")
    assert (f"opened on {gate['opened']} of {gate['n']}" if gate["opened"] else f"all {gate['n']} cases") in said
    for outcome in ("fixed", "broken"):
        button = tab.locator(f"[data-filter={outcome}]")
        assert button.count() == bool(gate[outcome])
        if gate[outcome]:
            button.click()
            assert tab.locator(".gallery li:visible").count() == min(gate[outcome], 24)
    tab.locator("[data-filter='']").click()
    card = tab.locator(".gallery li:visible").first
    name, truth = card.locator(".id").inner_text().split()[0], card.locator(".truth").inner_text().split()[1]
    card.click()
    assert tab.url.endswith(f"/cases/{name}.html")
    text = tab.inner_text("body")
    assert name in text
    assert truth in text
    tab.get_by_role("link", name="Report").first.click()
    assert tab.url.endswith("/index.html#cases")
    assert complaints == []


def test_paging_shows_every_card_once(browser, seed):
    tab, complaints = look(browser, seed / "report" / "index.html")
    total, seen = tab.locator(".gallery li").count(), []
    while True:
        seen += tab.locator(".gallery li:visible .id").all_inner_texts()
        more = tab.locator("[data-step='1']")
        if not more.is_visible() or more.is_disabled():
            break
        more.click()
    assert len(seen) == len(set(seen)) == total
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_runs_over_the_edge(browser, run, width, scheme):
    for path in (run / "report" / "index.html", run / "seed-0" / "report" / "index.html"):
        tab, complaints = look(browser, path, width=width, scheme=scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert complaints == []


@pytest.mark.parametrize("width", [1152, 1200, 1280])
def test_the_table_of_comparators_fits_beside_the_contents(browser, attached, width):
    tab, _ = look(browser, attached / "report" / "index.html", width=width)
    hidden = "(() => { const e = document.querySelector('#results .scroll'); return e.scrollWidth - e.clientWidth; })()"
    assert tab.evaluate(hidden) <= 0


def test_a_table_that_goes_on_has_a_shadow(browser, attached):
    tab, _ = look(browser, attached / "report" / "index.html", width=700)
    place = tab.locator("#results .scroll").first
    place.scroll_into_view_if_needed()

    def edges() -> tuple[float, float]:
        """Brightness of a column of pixels at the left and right edge, below the text of the head."""
        pixels = np.asarray(Image.open(io.BytesIO(place.screenshot())).convert("L"), dtype=float)
        return float(np.median(pixels[:, 1])), float(np.median(pixels[:, -2]))

    left, right = edges()
    assert right < left - 20
    place.evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    left, right = edges()
    assert left < right - 20


def test_on_a_phone_row_names_stay_while_the_figures_scroll(browser, attached):
    tab, _ = look(browser, attached / "report" / "index.html", width=390)
    place = tab.locator("#results .scroll").first
    hidden = place.evaluate("e => { e.scrollLeft = e.scrollWidth; return e.scrollLeft; }")
    assert hidden > 50
    name, box = place.locator("th[scope=row]").first.bounding_box(), place.bounding_box()
    assert abs(name["x"] - box["x"]) <= 1
    assert name["width"] < box["width"] / 2


def test_on_paper_nothing_is_cut_off(browser, run):
    for path in (run / "report" / "index.html", run / "seed-0" / "report" / "index.html"):
        tab, _ = look(browser, path, width=690)  # A4 less its margins, at 96 dots per inch
        tab.emulate_media(media="print")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 690
        assert not tab.locator(".toc, .filters").first.is_visible()


def test_dark_pages_are_dark_and_their_charts_follow(browser, seed):
    def brightness(colour: str) -> float:
        red, green, blue = (float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
        return (red + green + blue) / 3

    found = {}
    for scheme in ("light", "dark"):
        tab, _ = look(browser, seed / "report" / "index.html", scheme=scheme)
        text = tab.evaluate("getComputedStyle(document.querySelector('#results svg text')).fill")
        found[scheme] = brightness(tab.evaluate("getComputedStyle(document.body).backgroundColor")), brightness(text)
    assert found["light"][0] > 200 > 140 > found["light"][1]
    assert found["dark"][0] < 60 < 100 < found["dark"][1]


def test_all_cards_without_scripts(browser, seed):
    tab = browser.new_context(java_script_enabled=False).new_page()
    tab.goto((seed / "report" / "index.html").as_uri())
    assert tab.locator(".gallery li:visible").count() == tab.locator(".gallery li").count() > 0
    assert not tab.locator(".filters").is_visible()
