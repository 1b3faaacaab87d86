from __future__ import annotations

from typing import Any

import pytest

from tdumpra.report.summary import headline, p_text, summarise, verdict


def evaluation(**gate: Any) -> dict[str, Any]:
    scores = {"accuracy": 0.8, "balanced_accuracy": 0.6, "ece": 0.07}
    counts = {"n": 1879, "opened": 47, "flipped": 45, "fixed": 20, "broken": 23, "mcnemar_p": 0.76, "sign_flip_p": 0.8}
    return {
        "rows": {"train": 6763, "val": 752, "test": 1879},
        "grouped": True,
        "tuning": "many settings were tried",
        "comparators": {"student": scores, "gate": {**scores, "accuracy": 0.7984, "ece": None}},
        "gate": {**counts, "harm_upper": 0.0174, **gate},
    }


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ({}, "chance"),
        ({"fixed": 40, "broken": 3, "sign_flip_p": 0.001}, "better"),
        ({"fixed": 3, "broken": 40, "sign_flip_p": 0.001}, "worse"),
        ({"fixed": 40, "broken": 3, "sign_flip_p": None, "mcnemar_p": 0.001}, "better"),
        ({"fixed": 40, "broken": 3, "sign_flip_p": 0.2, "mcnemar_p": 0.001}, "chance"),  # the lesions' test has the say
        ({"fixed": 5, "broken": 5, "sign_flip_p": 0.001}, "chance"),
        ({"fixed": 0, "broken": 0, "sign_flip_p": 1.0}, "idle"),
        ({"opened": 0, "fixed": 0, "broken": 0, "sign_flip_p": 1.0}, "shut"),
    ],
)
def test_the_verdict_follows_the_counts(gate, expected):
    assert verdict(evaluation(**gate)["gate"]) == expected


def test_the_headline_has_the_counts_and_the_verdict():
    assert headline(evaluation()) == (
        "The gate opened on 47 of 1,879 cases, fixed 20 and broke 23: not better than chance."
    )


def test_a_shut_gate_is_said_to_be_shut():
    said = headline(evaluation(opened=0, fixed=0, broken=0))
    assert said == "The gate stayed shut on all 1,879 cases: every prediction is the classifier’s own."


def test_seeds_are_counted_together():
    assert "5,637 cases of 3 seeds" in headline({**evaluation(n=5637), "seeds": [0, 1, 2]})


def test_tiles_show_changes_and_what_is_undefined():
    tiles = summarise(evaluation()).tiles
    assert [tile.value for tile in tiles] == ["2.5%", "20 : 23", "−0.0016", "+0.0000", "undefined"]
    assert [tile.tone for tile in tiles] == ["", "", "bad", "", ""]


@pytest.mark.parametrize(("alone", "tone"), [(0.034, ""), (0.05, "good")])
def test_what_a_temperature_does_alone_is_no_credit_of_the_gate(alone, tone):
    scores = {"accuracy": 0.8, "balanced_accuracy": 0.6}
    comparators = {
        "student": {**scores, "ece": 0.128}, "gate": {**scores, "ece": 0.0364}, "temperature": {**scores, "ece": alone}
    }  # fmt: skip
    tile = summarise({**evaluation(), "comparators": comparators}).tiles[-1]
    assert (tile.value, tile.tone) == ("−0.0916", tone)
    assert tile.words == f"calibration error: 0.1280 → 0.0364; a temperature alone: {alone:.4f}"


@pytest.mark.parametrize(
    ("accuracy", "balanced", "said"),
    [
        (0.79, 0.63, "rare classes gained, common ones lost."),
        (0.81, 0.58, "rare classes lost, common ones gained."),
        (0.81, 0.61, None),
        (0.79, None, None),
        (0.8, 0.63, None),
    ],
)
def test_why_accuracy_and_balanced_accuracy_part_ways(accuracy, balanced, said):
    document = evaluation()
    document["comparators"]["gate"] |= {"accuracy": accuracy, "balanced_accuracy": balanced}
    about = [each for each in summarise(document).sentences if "different ways" in each]
    assert (about == []) if said is None else about[0].endswith(said)


def test_seeds_in_which_retrieval_won_are_counted():
    winners = {"0": "retrieval", "1": "neither", "2": "retrieval", "3": "no retrieval"}
    by_seed = {seed: {"retrieval_worth": {"winner": winner}} for seed, winner in winners.items()}
    assert (
        "Against what needs no bank, retrieval won in 2 of 4 seeds, retrieval lost in 1, nobody won in 1."
        in summarise({**evaluation(), "by_seed": by_seed}).sentences
    )


def test_what_to_be_careful_about():
    by_seed = {"2": {"notes": ["a note"]}, "3": {"notes": ["a note", "another"]}}
    careless = {**evaluation(), "grouped": False, "by_seed": by_seed, "notes": ["a note", "another"]}
    leak = {"images": 19, "of": 50, "share": 0.38}
    cautions = summarise(careless, leak).cautions
    assert cautions[0] == "A note."
    assert cautions[1] == "Seed 3: Another."
    assert "No groups were given" in cautions[2]
    assert "19 of 50 test images (38.0%)" in cautions[3]
    assert summarise(evaluation()).cautions == []


def test_the_bound_on_harm_is_said_where_the_gate_opened():
    assert any("fewer than 1.7% of cases" in sentence for sentence in summarise(evaluation()).sentences)
    assert not any("fewer than" in s for s in summarise(evaluation(opened=0, fixed=0, broken=0)).sentences)


@pytest.mark.parametrize(("p", "said"), [(0.237, "p = 0.24"), (1.0, "p = 1"), (0.0, "p < 0.001"), (0.001, "p = 0.001")])
def test_small_p_values_are_bounds(p, said):
    assert p_text(p) == said


def test_what_became_of_ambiguous_cases() -> None:
    part = {"below": 0.7, "n": 1359, "comparators": {"student": {"accuracy": 0.5}, "gate": {"accuracy": 0.625}}}
    told = summarise({**evaluation(), "ambiguous": part}).sentences
    assert any("On the 1,359 ambiguous cases" in each and "from 0.5000 to 0.6250" in each for each in told)
    assert not any("ambiguous" in each for each in summarise({**evaluation(), "ambiguous": {**part, "n": 0}}).sentences)
