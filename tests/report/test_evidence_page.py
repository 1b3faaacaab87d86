from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from parsed_page import Element, parse
from tests.support import THRESHOLDS

from tdumpra import GateThresholds, PrototypeBank
from tdumpra.core.chances import CalibratedGate
from tdumpra.method.decision import Decision
from tdumpra.method.evidence import NOT_ASKED, Evidence, explain
from tdumpra.report import kit
from tdumpra.report.evidence_page import NO_IMAGE, SHOWN_CLASSES, SHOWN_EXEMPLARS, Heatmap, evidence_page

NAMES = ("nevus", "melanoma", "keratosis")
GREY = np.full((20, 24, 3), 128, np.uint8)
UNSURE, SURE, MELANOMA = [0.5, 0.3, 0.2], [0.8, 0.1, 0.1], [0.1, 1.0, 0.2]


@pytest.fixture(scope="module")
def decision() -> Decision:
    """One prototype for each class, along an axis, and six training images of six lesions around each."""
    rng = np.random.default_rng(0)
    z = np.eye(3).repeat(6, 0) + 0.05 * rng.normal(size=(18, 3))
    ids = [f"{NAMES[i // 6]}-{i % 6}" for i in range(18)]
    bank = PrototypeBank.fit(z, np.arange(18) // 6, 1, [f"lesion-{i}" for i in range(18)], ids=ids)
    return Decision(bank=bank, thresholds=THRESHOLDS, kappa=4.0, prior=torch.ones(3) / 3)


def evidence(decision: Decision, p: list[float] = UNSURE, z: list[float] = MELANOMA, **arguments: Any) -> Evidence:
    rows = (torch.tensor([row], dtype=torch.float64) for row in (p, z))
    return explain(decision, *rows, **{"class_names": NAMES, **arguments})


def page(found: Evidence, **arguments: Any) -> Element:
    return parse(evidence_page(found, **{"case_id": "case 7", **arguments}))


def pictures_of(found: Evidence) -> dict[str, np.ndarray]:
    return dict.fromkeys(found.exemplar_ids, GREY)


class TestWhatHappened:
    def test_moved(self, decision):
        found = replace(evidence(decision), familiarity=50.0)
        shown = page(found)
        assert shown.one("h1").text == "Prediction: melanoma"
        assert (
            shown.one("p", class_="lead").text == "The second opinion changed this prediction from nevus to melanoma."
        )
        assert shown.one("p", class_="sentence").text.lower() == f"{found.sentence}.".lower()
        assert {each.text for each in shown.one("header").all(class_="badge")} == {"Gate open", "Moved from nevus"}

    def test_moved_to_a_class_that_neither_path_named(self, decision):
        thresholds = GateThresholds(theta=0.6, beta=0.0, margin=0.0, delta=0.0, alpha=0.5)
        found = evidence(replace(decision, thresholds=thresholds), [0.5, 0.48, 0.02], [0.0, 1.0, 1.05])
        shown = page(found)
        assert shown.one("h1").text == "Prediction: melanoma"
        assert shown.one("p", class_="lead").text == (
            "Both opinions together changed this prediction from nevus to melanoma, which is the first choice of "
            "neither: the second opinion alone is keratosis."
        )
        assert "Neither path's first choice" in {each.text for each in shown.one("header").all(class_="badge")}

    @pytest.mark.parametrize(
        ("p", "z", "changes", "said"),
        [
            (
                SURE,
                MELANOMA,
                {},
                "The second opinion (melanoma) was not followed. The prediction is the classifier's own.",
            ),
            ([0.2, 0.5, 0.3], MELANOMA, {}, "Classifier and second opinion agree on melanoma."),
            (
                UNSURE,
                MELANOMA,
                {"alpha": 0.95},
                "The second opinion (melanoma) was heard, and the prediction stays nevus.",
            ),
        ],
    )
    def test_not_moved(self, decision, p, z, changes, said):
        found = evidence(replace(decision, thresholds=replace(THRESHOLDS, **changes)), p, z)
        shown = page(found)
        assert said in shown.one("p", class_="lead").text
        assert "Unchanged" in shown.one("header").text

    @pytest.mark.parametrize(
        ("p", "truth", "word", "meaning"),
        [
            (UNSURE, "melanoma", "Fixed", "The classifier alone was wrong, and the gate made the prediction right."),
            (UNSURE, "nevus", "Broken", "The classifier alone was right, and the gate made the prediction wrong."),
            (UNSURE, "keratosis", "Wrong", "The gate moved the prediction from one wrong class to another."),
            (SURE, "nevus", "Right", "The prediction is right, as the classifier alone was."),
            (SURE, "keratosis", "Wrong", "The prediction is wrong, as the classifier alone was."),
        ],
    )
    def test_the_reference_label(self, decision, p, truth, word, meaning):
        shown = page(evidence(decision, p), truth=truth)
        badges = [each.text for each in shown.one("header").all(class_="badge")]
        assert badges[-2:] == [f"Reference label: {truth}", word]
        assert f"The reference label is {truth} . {meaning}" in shown.one("main").text

    def test_without_reference_nothing_is_said_of_it(self, decision):
        assert "eference" not in page(evidence(decision)).text


class TestOpinions:
    def test_three_bars_for_each_class_with_their_numbers(self, decision):
        found = evidence(decision)
        rows = page(found).one("table", class_="opinions").one("tbody").all("tr")
        assert [row.one("th").text for row in rows] == [NAMES[c] for c in np.argsort([-p for p in found.p])]
        for row in rows:
            c = NAMES.index(row.one("th").text)
            columns = (found.p_classifier, found.p_similarity, found.p)
            assert [cell.text.split(" %")[0] for cell in row.all("td")] == [f"{100 * p[c]:.1f}" for p in columns]
            bars = [bar.attributes["style"] for bar in row.all("i")]
            assert bars == [f"width: {100 * p[c]:.1f}%" for p in columns]
        firsts = [i for row in rows for i, cell in enumerate(row.all("td")) if "first choice" in cell.text]
        assert sorted(firsts) == [0, 1, 2]

    def test_many_classes_are_cut_and_the_rest_is_counted(self):
        n = SHOWN_CLASSES + 9
        bank = PrototypeBank.fit(np.eye(n), np.arange(n), 1)
        decision = Decision(bank=bank, thresholds=THRESHOLDS, prior=torch.ones(n) / n)
        p = torch.linspace(1, 3, n)[None] / torch.linspace(1, 3, n).sum()
        shown = page(explain(decision, p, torch.eye(n)[:1]))
        rows = shown.one("table", class_="opinions").one("tbody").all("tr")
        assert len(rows) == SHOWN_CLASSES
        assert "0" in [row.one("th").text for row in rows]  # retrieval's choice, which the classifier likes least
        assert "9 further classes have at most 4." in shown.text


class TestClauses:
    def test_what_asks_nothing_is_no_condition(self, decision):
        found = evidence(replace(decision, thresholds=replace(THRESHOLDS, beta=0.0)))
        shown = page(found)
        rows = shown.one("table", class_="clauses").one("tbody").all("tr")
        assert "beta" not in [row.attributes["data-clause"] for row in rows]
        (free,) = (clause for clause in found.clauses if not clause.asked)
        assert free.statement.removesuffix(NOT_ASKED) in shown.one("p", data_unasked="").text

    def test_a_gate_whose_clauses_all_ask_something_has_no_such_note(self, decision):
        assert not page(evidence(decision)).all("p", data_unasked="")

    @pytest.mark.parametrize("changes", [{}, {"theta": 0.4}, {"beta": 0.99, "delta": 0.69}, {"entropy": 0.1}])
    def test_each_with_value_threshold_and_result_in_words(self, decision, changes):
        found = evidence(replace(decision, thresholds=replace(THRESHOLDS, **changes)))
        rows = page(found).one("table", class_="clauses").one("tbody").all("tr")
        assert [row.attributes["data-clause"] for row in rows] == [clause.name for clause in found.clauses]
        for row, clause in zip(rows, found.clauses, strict=True):
            assert row.one(class_="statement").text == clause.statement
            assert row.one(class_="result").text == ("✓ holds" if clause.holds else "✗ fails")
            if clause.name != "disagreement":
                assert float(row.one(class_="value").text) == pytest.approx(clause.value, abs=0.005)
                word = "below" if clause.name == "theta" else "above"
                assert row.one(class_="needed").text == f"{word} {clause.threshold:.2f}"
        title = "Why the gate opened" if found.opened else "Why the gate stayed shut"
        assert title in [each.text for each in page(found).all("h2")]

    def test_a_calibrated_gate(self, decision):
        gate = CalibratedGate((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), 0.05)
        open_wide = GateThresholds(theta=1.0, beta=0.0, margin=0.0, delta=0.0, alpha=0.3)
        found = evidence(replace(decision, calibrated=gate, thresholds=open_wide))
        rows = page(found).one("table", class_="clauses").one("tbody").all("tr")
        assert "Is retrieval likelier to be right?" in rows[0].text
        assert rows[0].one(class_="needed").text == "above 0.05"

    def test_a_gate_that_tuning_left_shut(self, decision):
        shown = page(evidence(replace(decision, thresholds=GateThresholds.shut())))
        assert "left the gate shut for every case" in shown.text
        assert "Guarantee: gate shut" in [each.text for each in shown.all("h2")]


class TestPrototypes:
    def test_two_sides_with_cosine_share_and_labels(self, decision):
        found = evidence(decision, group="elsewhere")
        shown = page(found, pictures=pictures_of(found))
        articles = shown.all("article")
        assert len(articles) == len(found.matches) == 3
        assert articles[0].one("h3").text == "melanoma · prototype 1"
        for article, match in zip(articles, found.matches, strict=True):  # supporting first; each side nearest first
            assert f"cosine {match.cosine:.3f}" in article.text
            assert f"share {100 * match.share:.0f} %" in article.text
            images = article.all("img")
            assert len(images) == SHOWN_EXEMPLARS
            for image, exemplar in zip(images, match.exemplars, strict=False):
                assert image.attributes["alt"] == f"Training image {exemplar.id}, labelled {match.name}"
                assert image.attributes["src"].startswith("data:image/jpeg;base64,")
        assert ["strongest opposing" in each.text for each in articles] == [False, True, False]
        assert "Training images of this case's own group (elsewhere) are never shown." in shown.text

    def test_an_opposing_prototype_beyond_the_nearest_is_shown_too(self):
        z = np.concatenate([np.eye(8)[:1] + 0.6 * np.eye(8)[1:7], np.eye(8)[7:]])
        with pytest.warns(UserWarning, match="class 1 has 1"):
            bank = PrototypeBank.fit(z, [0] * 6 + [1], 6)
        decision = Decision(bank=bank, thresholds=THRESHOLDS, prior=torch.ones(2) / 2)
        found = explain(decision, torch.tensor([[0.9, 0.1]]), torch.from_numpy(z[:1]), class_names=NAMES[:2])
        assert found.opposing is not None
        assert found.opposing not in found.matches
        articles = page(found).all("article")
        assert len(articles) == 6
        assert "farther than the 5 nearest" in articles[-1].text
        assert "strongest opposing" in articles[-1].text

    def test_no_prototype_of_the_final_class_is_near(self, decision):
        found = evidence(decision, SURE)
        few = replace(found, matches=tuple(m for m in found.matches if m.label != found.label))
        assert "None of the 2 nearest prototypes is one of nevus." in page(few).text

    def test_the_cases_own_lesion_never_shows(self, decision):
        nearest = evidence(decision).matches[0].exemplars[0]
        found = evidence(decision, group=nearest.group)
        shown = page(found, pictures={**pictures_of(found), nearest.id: GREY})
        assert nearest.id not in [image.attributes["alt"].split()[2].rstrip(",") for image in shown.all("img")]
        assert nearest.id not in shown.one("main").text
        assert "1 more left out: the case's own group." in shown.all("article")[0].text

    def test_where_all_are_of_the_own_lesion_the_page_says_so(self, decision):
        found = evidence(decision, group="own")
        match = replace(found.matches[0], exemplars=(), own=6)
        shown = page(replace(found, matches=(match, *found.matches[1:])))
        assert "All 6 training images kept for this prototype show the case's own group" in shown.all("article")[0].text

    def test_an_unknown_lesion_is_a_caution(self, decision):
        assert "No lesion or patient was named for this case." in page(evidence(decision)).text


class TestPictures:
    def test_image_and_heatmap(self, decision):
        shown = page(evidence(decision), image=GREY, saliency=Heatmap(GREY, "Orange counts."))
        case, heat = shown.one("div", class_="case-pictures").all("img")
        assert case.attributes["alt"] == "The case, case 7"
        assert heat.attributes["alt"] == "Map over the case. Orange counts."

    def test_no_image(self, decision):
        shown = page(evidence(decision))
        assert NO_IMAGE in shown.text
        assert not shown.all("img")
        assert "the file moved" in page(evidence(decision), no_image="the file moved").text

    def test_missing_pictures_are_named_with_the_reason(self, decision):
        found = evidence(decision)
        some = dict(list(pictures_of(found).items())[:3])
        shown = page(found, pictures=some, missing_reason="they are private")
        wanted = [each.id for match in found.matches for each in match.exemplars[:SHOWN_EXEMPLARS]]
        missing = shown.one("div", class_="missing")
        assert f"No picture of {len(wanted) - 3} of these training images: they are private." in missing.text
        assert all(name in missing.one("details").text for name in wanted if name not in some)
        assert len(shown.all("img")) == 3

    def test_without_any_picture_ids_and_labels_are_left(self, decision):
        found = evidence(decision)
        shown = page(found)
        assert not shown.all(class_="no-picture")
        for article, match in zip(shown.all("article"), found.matches, strict=True):
            assert [each.text for each in article.all(class_="id")] == [e.id for e in match.exemplars[:SHOWN_EXEMPLARS]]
            assert f"all labelled {match.name}" in article.text


class TestReading:
    @pytest.mark.parametrize(
        ("value", "word", "caution"),
        [
            (0.0, "unfamiliar", True),
            (0.9, "unfamiliar", True),
            (3.0, "unusual", True),
            (5.0, "less typical than most", False),
            (25.0, "familiar", False),
            (100.0, "familiar", False),
        ],
    )
    def test_familiarity(self, decision, value, word, caution):
        shown = page(replace(evidence(decision), familiarity=value))
        assert f"Familiarity: {word}" in [each.text for each in shown.all("h2")]
        assert ("read with care" in shown.one("header").text) == caution

    def test_a_division_by_the_prior_is_said(self, decision):
        said = [page(evidence(replace(decision, fused_exponent=t))).text for t in (0.0, 0.3)]
        assert ["divided by the class shares to the power 0.3" in text for text in said] == [False, True]

    def test_the_guarantee(self, decision):
        held = page(evidence(decision))  # alpha 0.1: 0.9 · 0.2 ≥ 0.1 · 0.6
        assert "Guarantee: holds" in held.text
        assert "10 % classifier and 90 % retrieval." in held.text
        assert "an open gate always ends in retrieval's class" in held.text
        log = replace(decision, rule="log-linear")
        assert "Guarantee: does not hold" in page(evidence(log)).text
        assert "(multiplied, not added)" in page(evidence(log)).text

    def test_how_to_read_and_what_it_is_not(self, decision):
        shown = page(evidence(decision))
        assert "How to read this page" in [each.text for each in shown.all("h2")]
        assert "not a medical device" in shown.one("footer").text


EVIL = "<script>alert(1)</script>"


def test_names_and_ids_cannot_become_markup(decision):
    names = ("nevus", f'{EVIL}"onerror="x', "{{ 7 * 7 }}")
    found = evidence(decision, class_names=names, group=EVIL)
    wild = replace(
        found.matches[0], exemplars=tuple(e._replace(id=f"{EVIL}{e.id}") for e in found.matches[0].exemplars)
    )
    found = replace(found, matches=(wild, *found.matches[1:]))
    html = evidence_page(
        found, case_id=EVIL, truth=EVIL, image=GREY, pictures=pictures_of(found), notes=[EVIL], missing_reason=EVIL,
        back_link=("../index.html", EVIL), saliency=Heatmap(GREY, EVIL),
    )  # fmt: skip
    assert EVIL not in html
    shown = parse(html)
    assert len(shown.all("script")) == 1  # the page's own
    assert not [each for each in shown.all() if "onerror" in each.attributes]
    assert f"Prediction: {names[1]}" == shown.one("h1").text
    assert EVIL in shown.one("title").text
    assert "{{ 7 * 7 }}" in shown.text


def test_the_data_behind_the_page(decision):
    found = evidence(decision)
    link = page(found, truth="nevus").one("a", download=kit.page_name("case 7").replace(".html", ".json"))
    head, _, data = link.attributes["href"].partition(",")
    content = json.loads(base64.b64decode(data))
    assert head == "data:application/json;charset=utf-8;base64"
    assert content["reference_label"] == "nevus"
    assert content["p_similarity"] == list(found.p_similarity)
    assert content["matches"][0]["cosine"] == found.matches[0].cosine


def test_nothing_is_fetched(decision):
    found = evidence(decision)
    shown = page(found, image=GREY, pictures=pictures_of(found), back_link=("index.html", "All cases"))
    assert all(each.attributes["src"].startswith("data:") for each in shown.all("img"))
    assert not shown.all("link")
    assert [a.attributes["href"] for a in shown.all("a") if not a.attributes["href"].startswith(("#", "data:"))] == [
        "index.html"
    ]
