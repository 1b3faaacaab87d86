"""Reports of saved outputs, from the command line's own entry point, and what stands in them."""

from __future__ import annotations

import base64
import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from parsed_page import Element, parse
from tests.support import make_problem, save_problem

from tdumpra.evaluation.comparators import words_of
from tdumpra.report.kit import signed
from tdumpra.report.summary import p_text


@pytest.fixture(scope="module")
def page(attached):
    return parse((attached / "report" / "index.html").read_text())


@pytest.fixture(scope="module")
def evaluation(attached):
    return json.loads((attached / "evaluation.json").read_text())


def downloads(page: Element) -> dict[str, list[dict[str, str]]]:
    """The files inside a page, as rows."""
    found = {}
    for link in page.all("a"):
        if "download" in link.attributes and link.attributes["href"].startswith("data:text/csv"):
            text = base64.b64decode(link.attributes["href"].split(",", 1)[1]).decode()
            found[link.attributes["download"]] = list(csv.DictReader(io.StringIO(text)))
    return found


def rows_of(attached: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((attached / "report" / "data" / "cases.csv").read_text())))


def test_the_headline_is_the_gates_count(page, evaluation):
    gate = evaluation["gate"]
    assert gate["opened"] > 0  # else there is nothing to check
    said = page.one("h1").text
    assert f"opened on {gate['opened']} of {gate['n']} cases" in said
    assert f"{gate['fixed']} fixed, {gate['broken']} broken" in said


def test_the_contents_lead_to_sections_that_exist(page):
    links = [link.attributes["href"] for link in page.one("nav", aria_label="Contents").all("a")]
    assert len(links) == 17
    assert all(len(page.all(None, id=link[1:])) == 1 for link in links)


def test_every_comparator_stands_in_the_table_with_its_interval(page, evaluation):
    rows = {
        row.all("th")[0].one("small").text: row for row in page.all("table", class_="results")[0].one("tbody").all("tr")
    }
    assert list(rows) == list(evaluation["comparators"])
    assert rows["student"].one("th").children[0] == words_of("student")
    low, high = evaluation["intervals"]["gate"]["accuracy"]
    first = rows["gate"].all("td")[0].text
    assert first == f"{evaluation['comparators']['gate']['accuracy']:.4f} {low:.3f}–{high:.3f}"


def test_every_chart_has_words_and_numbers(page):
    charts = page.all("figure", class_="chart")
    assert len(charts) >= 7
    for chart in charts:
        assert len(chart.one("svg").attributes["aria-label"]) > 30
        assert any("download" in link.attributes for link in chart.all("a"))
    assert all(rows for rows in downloads(page).values())


def test_the_downloaded_confusion_is_that_of_the_cases(page, attached):
    cases = rows_of(attached)
    for row in downloads(page)["confusion.csv"]:
        for column, predicted in (("before", "classifier"), ("after", "final")):
            count = sum(c["truth"] == row["truth"] and c[predicted] == row["predicted"] for c in cases)
            assert int(row[column]) == count


def test_the_table_of_cases_agrees_with_the_evaluation(attached, evaluation):
    cases = rows_of(attached)
    gate = evaluation["gate"]
    assert len(cases) == gate["n"]
    assert sum(case["opened"] == "1" for case in cases) == gate["opened"]
    for outcome in ("fixed", "broken"):
        assert sum(case["outcome"] == outcome for case in cases) == gate[outcome]
    assert {case["id"] for case in cases} == set(make_problem().test.ids)


def test_cards_lead_to_pages_of_the_same_case(page, attached):
    cards = page.one("ul", class_="gallery").all("li")
    assert cards
    assert len(cards) == len(list((attached / "report" / "cases").glob("*.html")))
    for card in cards[:5]:
        link = card.one("a")
        case = parse((attached / "report" / link.attributes["href"]).read_text())
        assert link.one("span", class_="id").text.split()[0] in case.one("h1").text + case.text
        assert case.all("a", href="../index.html#cases")


def test_the_funnel_ends_at_the_open_cases(page, evaluation):
    counts = [int(step.all("span")[-1].text.replace(",", "")) for step in page.one("ol", class_="funnel").all("li")]
    assert counts[0] == evaluation["gate"]["n"]
    assert counts[-1] == counts[-2] == evaluation["gate"]["opened"]
    assert counts == sorted(counts, reverse=True)


def test_what_is_absent_is_named(page):
    assert "no training curves: outputs came from a file" in page.one("section", id="training").text
    assert "No pictures: outputs came from a file" in page.one("section", id="cases").text


def test_nothing_is_fetched(attached):
    for path in (attached / "report").rglob("*.html"):
        tree = parse(path.read_text())
        for tag, name in (("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src")):
            assert all(each.attributes.get(name, "data:").startswith("data:") for each in tree.all(tag))
        assert "url(http" not in path.read_text()
        assert not any(link.attributes["href"].startswith("http") for link in tree.all("a"))


def test_writing_it_again_changes_nothing(attached, tdumpra):
    before = {path: path.read_bytes() for path in (attached / "report").rglob("*.*")}
    ran = tdumpra("report", attached)
    assert ran.code == 0, ran.err
    assert ran.out.strip() == f"Report: {attached / 'report' / 'index.html'}"
    assert {path: path.read_bytes() for path in (attached / "report").rglob("*.*")} == before


def test_another_folder_and_fewer_cases(attached, tdumpra, tmp_path, plain_charts):
    ran = tdumpra("report", attached, "--out", tmp_path / "there", "--cases", 7, "--json")
    assert json.loads(ran.out) == {"report": str(tmp_path / "there" / "index.html")}
    assert len(list((tmp_path / "there" / "cases").glob("*.html"))) == 7
    said = parse((tmp_path / "there" / "index.html").read_text()).one("section", id="cases").text
    assert "7 of " in said
    assert "are shown" in said
    assert tdumpra("report", attached, "--out", tmp_path / "there", "--cases", 0).code == 0
    assert not list((tmp_path / "there" / "cases").glob("*.html"))
    assert tdumpra("report", attached, "--cases", -1).code == 2


def test_names_with_markup_are_escaped(tdumpra, tmp_path):
    path = save_problem(
        tmp_path / "o.npz", id=np.array([f'<img src=x onerror="alert({i})">' for i in range(600)]),
        group=np.array([f"<i>{i}" for i in range(600)]),
        classes=np.array(["<script>alert(1)</script>", '"&quot;', "</title>", "plain"]),
    )  # fmt: skip
    ran = tdumpra("attach", path, "--out", tmp_path / "run")
    assert ran.code == 0, ran.err
    for page in (tmp_path / "run" / "report").rglob("*.html"):
        text = page.read_text()
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "<script>alert(1)</script>" in parse(text).text  # as words


def test_a_gate_that_stays_shut(tdumpra, tmp_path, plain_charts):
    z = np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)  # retrieval knows nothing
    path = save_problem(tmp_path / "o.npz", z=z)
    assert tdumpra("attach", path, "--out", tmp_path / "run").code == 0
    page = parse((tmp_path / "run" / "report" / "index.html").read_text())
    gate = json.loads((tmp_path / "run" / "evaluation.json").read_text())["gate"]
    assert gate["opened"] == 0
    assert "stayed shut" in page.one("h1").text
    assert "Tuning left the gate shut" in page.one("section", id="gate").text
    assert "a reference gate is moved instead" in page.one("section", id="sweeps").text
    assert page.one("ul", class_="gallery").all("li", data_outcome="shut")


@pytest.mark.slow
def test_ids_that_are_given_twice(tdumpra, tmp_path):
    path = save_problem(tmp_path / "o.npz", id=np.repeat("a", 600))
    assert tdumpra("attach", path, "--out", tmp_path / "run").code == 0
    cards = parse((tmp_path / "run" / "report" / "index.html").read_text()).one("ul", class_="gallery").all("li")
    links = {card.one("a").attributes["href"] for card in cards}
    assert len(links) == len(cards) > 1
    for card in cards:
        case = parse((tmp_path / "run" / "report" / card.one("a").attributes["href"]).read_text())
        truth = card.one("span", class_="truth").text.split(" · ")[0].removeprefix("truth: ")
        assert f"Reference label: {truth}" in case.one("header").text


@pytest.mark.slow
def test_without_groups_and_ids(tdumpra, tmp_path):
    path = save_problem(tmp_path / "o.npz", leave_out=("group", "id"))
    assert tdumpra("attach", path, "--out", tmp_path / "run").code == 0
    page = parse((tmp_path / "run" / "report" / "index.html").read_text())
    assert "No groups were given" in page.one("section", id="summary").text
    assert "nobody can say" in page.one("section", id="data").text
    assert "row " in page.one("ul", class_="gallery").text


def test_outputs_that_have_moved_or_changed(tdumpra, tmp_path, plain_charts):
    path = save_problem(tmp_path / "o.npz")
    assert tdumpra("attach", path, "--out", tmp_path / "run", "--no-report").code == 0
    assert not (tmp_path / "run" / "report").exists()
    save_problem(path, seed=1)
    assert tdumpra("report", tmp_path / "run").code == 0
    index = tmp_path / "run" / "report" / "index.html"
    assert "changed since it was evaluated" in parse(index.read_text()).one("section", id="cases").text
    path.unlink()
    assert tdumpra("report", tmp_path / "run").code == 0
    page = parse(index.read_text())
    assert "does not exist" in page.one("section", id="cases").text
    assert len(page.all("table", class_="results")[0].one("tbody").all("tr")) > 8  # the figures are there all the same


def only_settings(folder: Path, text: str) -> None:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(text)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: None, "is not a folder"),
        (lambda folder: folder.mkdir(), "holds no run"),
        (lambda folder: only_settings(folder, 'outputs = ["a.npz"]'), "tdumpra evaluate"),
        (lambda folder: only_settings(folder, ""), "no trained network yet: run tdumpra train CONFIG"),
        (
            lambda folder: only_settings(folder, "[network]\nfinished = true"),
            "no outputs yet: run tdumpra embed CONFIG",
        ),
        (lambda folder: only_settings(folder / "seed-0", ""), "seed-0 has no trained network yet"),
    ],
)
def test_a_folder_that_is_no_run(tdumpra, tmp_path, make, sentence):
    make(tmp_path / "run")
    ran = tdumpra("report", tmp_path / "run")
    assert ran.code == 2
    assert sentence in ran.err
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.parametrize("module", ["jinja2", "matplotlib.figure"])
def test_without_the_extra(tdumpra, tmp_path, monkeypatch, attached, module):
    from tdumpra.report import kit

    monkeypatch.setitem(sys.modules, module, None)
    kit._environment.cache_clear()
    ran = tdumpra("report", attached, "--out", tmp_path / "there")
    assert ran.code == 2
    assert "pip install 'tdumpra[report]'" in ran.err
    ran = tdumpra("attach", save_problem(tmp_path / "o.npz"), "--out", tmp_path / "run")
    assert ran.code == 0
    assert "no report:" in ran.out
    assert "pip install 'tdumpra[report]'" in ran.out
    kit._environment.cache_clear()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two models, one of them with two seeds, and the configuration that names their files."""
    root = tmp_path_factory.mktemp("saved")
    (root / "c.toml").write_text("[bank]\nn_prototypes = 3\n[evaluate]\nbootstrap = 50\n")
    for kind, seed in (("ce", 0), ("ce", 1), ("joint", 0)):
        file = save_problem(root / f"{kind}{seed}.npz", seed)
        with (root / "c.toml").open("a") as config:
            config.write(f'[[outputs]]\nfile = "{file.name}"\nbackbone = "net"\ntraining = "{kind}"\nseed = {seed}\n')
    return root


@pytest.mark.slow
def test_models_seeds_and_their_links(saved, tdumpra, monkeypatch, tmp_path):
    ran = tdumpra("run", saved / "c.toml", "--out", saved / "run")
    assert ran.code == 0, ran.err
    report = saved / "run" / "report"
    assert f"Report: {report / 'index.html'}" in ran.out
    models = parse((report / "index.html").read_text())
    links = [link.attributes["href"] for link in models.one("section", id="models").all("a")]
    assert links == ["net_ce/index.html", "net_joint/index.html"]
    seeds = parse((report / links[0]).read_text())
    assert "cases of 2 seeds" in seeds.one("h1").text
    evaluation = json.loads((saved / "run" / "evaluation.json").read_text())["models"]["net_ce"]
    assert f"± {evaluation['comparators_std']['gate']['accuracy']:.4f}" in seeds.one("section", id="results").text
    assert p_text(evaluation["gate"]["sign_flip_p"]) in seeds.one("section", id="summary").text
    lead = evaluation["paired"]["logit_adjusted"]["balanced_accuracy"]
    paired = "The gate against its rivals"
    assert paired in seeds.one("section", id="results").text
    low, high = map(signed, lead["interval"])
    assert f"{signed(lead['difference'])} {low} to {high}" in seeds.one("section", id="results").text
    for link in seeds.one("section", id="seeds").all("a"):
        of_seed = report / "net_ce" / link.attributes["href"]
        assert parse(of_seed.read_text()).all("a", href="../index.html")
    assert "net_joint, seed 0" in parse((report / links[1]).read_text()).text
    # and from another folder, since paths in the kept configuration count from its own place
    monkeypatch.chdir(tmp_path)
    assert tdumpra("report", saved / "run", "--out", tmp_path / "there", "--cases", 1).code == 0
    assert (tmp_path / "there" / "net_ce" / "seed-1" / "cases").is_dir()


@pytest.mark.slow
def test_seeds_whose_gate_was_chosen_on_all_of_them(tdumpra, tmp_path):
    """The report shows the gate that was chosen on the validation rows of both seeds."""
    files = [str(save_problem(tmp_path / f"net_ce_seed{seed}.npz", seed)) for seed in (0, 1)]
    (tmp_path / "c.toml").write_text(
        f'outputs = {files}\n[bank]\nn_prototypes = 3\n[tune]\npreset = "paper-swapped"\npool_seeds = true\n'
        "[evaluate]\nbootstrap = 10\n"
    )
    ran = tdumpra("run", tmp_path / "c.toml", "--out", tmp_path / "run")
    assert (ran.code, "no report" in ran.out) == (0, False), ran
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    for seed in ("0", "1"):
        page = parse((tmp_path / "run" / "report" / f"seed-{seed}" / "index.html").read_text())
        opened = evaluation["by_seed"][seed]["gate"]["opened"]
        assert opened > 0
        assert f"opened on {opened} of" in page.one("h1").text
