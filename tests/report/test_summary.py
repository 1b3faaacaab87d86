from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import pytest

from tdumpra.evaluation.story import moved
from tdumpra.report.kit import signed
from tdumpra.report.summary import VERDICTS, Expected, Said, headline, judged, p_text, summarise, verdict


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


def kinds(said: Iterable[Said]) -> list[str]:
    return [each.kind for each in said]


def values(said: Iterable[Said], kind: str) -> Mapping[str, Any]:
    (found,) = (each.values for each in said if each.kind == kind)
    return found


def test_the_headline_is_the_verdict_with_the_counts():
    said = summarise(evaluation()).headline
    assert said == Said("chance", {"cases": "1,879 cases", "opened": 47, "moved": moved(evaluation()["gate"])})
    assert headline(evaluation()) == str(said)
    assert "moved 45 labels: 20 fixed, 23 broken, 2 wrong before and after" in str(said)
    assert VERDICTS["chance"] in str(said)


@pytest.mark.parametrize("kind", ["shut", "idle", "chance", "better", "worse"])
def test_every_verdict_has_a_sentence(kind):
    assert "9 cases" in str(Said(kind, {"cases": "9 cases", "opened": 3, "moved": "moved 3 labels"}))


def test_seeds_are_counted_together():
    said = summarise({**evaluation(n=5637), "seeds": [0, 1, 2]}).headline
    assert said.values["cases"] == "5,637 cases of 3 seeds"


class TestTiles:
    BETTER: ClassVar = {"fixed": 40, "broken": 3, "sign_flip_p": 0.001}

    def test_changes_and_what_is_undefined(self):
        tiles = summarise(evaluation()).tiles
        assert [tile.value for tile in tiles] == ["2.5%", "20 : 23", "−0.0016", "+0.0000", "undefined"]

    def test_nothing_is_coloured_where_nothing_is_proven(self):
        assert [tile.tone for tile in summarise(evaluation()).tiles] == ["", "", "unproven", "unproven", ""]

    def test_without_intervals_of_the_change_only_accuracy_can_be_proven(self):
        tiles = summarise(evaluation(**self.BETTER)).tiles
        assert [tile.tone for tile in tiles[2:4]] == ["good", "unproven"]
        tiles = summarise(evaluation(fixed=3, broken=40, sign_flip_p=0.001)).tiles
        assert [tile.tone for tile in tiles[2:4]] == ["bad", "unproven"]

    @pytest.mark.parametrize(
        ("interval", "tone"), [([0.01, 0.03], "good"), ([-0.03, -0.01], "bad"), ([-0.01, 0.03], "unproven")]
    )
    def test_the_interval_of_the_change_decides(self, interval, tone):
        lead = {"interval": interval, "difference": 0.0}
        against = dict.fromkeys(("accuracy", "balanced_accuracy", "ece"), lead)
        document = evaluation(**self.BETTER) | {"paired": {"student": against}}
        document["comparators"]["gate"]["ece"] = 0.05
        tiles = summarise(document).tiles[2:]
        assert [tile.tone for tile in tiles] == [tone] * 3
        assert tiles[0].interval == f"95% interval {signed(interval[0])} to {signed(interval[1])}"
        # a smaller error is the better one: its change has the other sign than the gate's lead
        assert tiles[2].interval == f"95% interval {signed(-interval[1])} to {signed(-interval[0])}"

    def test_the_gates_own_interval_where_there_is_none_of_the_change(self):
        document = evaluation() | {"intervals": {"gate": {"accuracy": [0.78, 0.82]}}, "bootstrap": {"level": 0.9}}
        accuracy, balanced = summarise(document).tiles[2:4]
        assert accuracy.interval.startswith("90%")
        assert accuracy.interval.endswith("0.780 to 0.820")
        assert balanced.interval == ""


@pytest.mark.parametrize(("alone", "tone"), [(0.034, "unproven"), (0.05, "good")])
def test_what_a_temperature_does_alone_is_no_credit_of_the_gate(alone, tone):
    scores = {"accuracy": 0.8, "balanced_accuracy": 0.6}
    comparators = {
        "student": {**scores, "ece": 0.128}, "gate": {**scores, "ece": 0.0364}, "temperature": {**scores, "ece": alone}
    }  # fmt: skip
    lead = {"student": {"ece": {"interval": [0.05, 0.12]}}}
    tile = summarise({**evaluation(), "comparators": comparators, "paired": lead}).tiles[-1]
    assert (tile.value, tile.tone) == ("−0.0916", tone)
    assert tile.words == f"calibration error: 0.1280 → 0.0364; a temperature alone: {alone:.4f}"


@pytest.mark.parametrize(
    ("accuracy", "balanced", "rare"),
    [(0.79, 0.63, "gained"), (0.81, 0.58, "lost"), (0.81, 0.61, None), (0.79, None, None), (0.8, 0.63, None)],
)
def test_why_accuracy_and_balanced_accuracy_part_ways(accuracy, balanced, rare):
    document = evaluation()
    document["comparators"]["gate"] |= {"accuracy": accuracy, "balanced_accuracy": balanced}
    said = summarise(document).sentences
    assert ("parted_ways" in kinds(said)) == (rare is not None)
    if rare is not None:
        assert values(said, "parted_ways")["rare"] == rare


def test_seeds_in_which_retrieval_won_are_counted():
    winners = {"0": "retrieval", "1": "neither", "2": "retrieval", "3": "no retrieval"}
    by_seed = {seed: {"retrieval_worth": {"winner": winner}} for seed, winner in winners.items()}
    said = summarise({**evaluation(), "by_seed": by_seed}).sentences
    assert values(said, "seeds_won") == {"seeds": 4, "won": 2, "lost": 1, "tied": 1}
    assert "tuning" not in kinds(said)  # each seed has its own


def test_what_to_be_careful_about():
    careless = {**evaluation(), "grouped": False, "notes": ["a note", "seed 3: another"]}
    leak = {"images": 19, "of": 50, "share": 0.38}
    cautions = summarise(careless, leak).cautions
    assert kinds(cautions) == ["note", "note", "ungrouped", "leak"]
    assert values(cautions, "leak") == leak
    assert [str(each) for each in cautions[:2]] == ["A note.", "Seed 3: another."]
    assert "19 of 50 test images (38.0%)" in str(cautions[3])
    assert summarise(evaluation()).cautions == []


def test_the_bound_on_harm_is_said_where_the_gate_opened():
    assert values(summarise(evaluation()).sentences, "tests")["harm"] == 0.0174
    assert "tests" not in kinds(summarise(evaluation(opened=0, fixed=0, broken=0)).sentences)


@pytest.mark.parametrize(("p", "said"), [(0.237, "p = 0.24"), (1.0, "p = 1"), (0.0, "p < 0.001"), (0.001, "p = 0.001")])
def test_small_p_values_are_bounds(p, said):
    assert p_text(p) == said


def test_what_became_of_the_cases_that_the_classifier_is_unsure_of() -> None:
    part = {"below": 0.7, "n": 1359, "comparators": {"student": {"accuracy": 0.5}, "gate": {"accuracy": 0.625}}}
    told = summarise({**evaluation(), "ambiguous": part}).sentences
    assert values(told, "unsure") == {"n": 1359, "below": 0.7, "before": 0.5, "after": 0.625}
    assert "unsure" not in kinds(summarise({**evaluation(), "ambiguous": {**part, "n": 0}}).sentences)


def test_every_sentence_is_finished() -> None:
    """No value is left out, and each ends in one full stop."""
    found = {"retrieval_worth": {"sentence": "neither won"}}
    room = {"headroom": 0.1, "oracle_accuracy": 0.9, "accuracy": 0.82, "classifier_accuracy": 0.8}
    said = [str(each) for each in summarise({**evaluation(**room), **found}).sentences]
    assert "Against what needs no bank: neither won." in said
    assert all(each.endswith(".") and "{" not in each and ".." not in each for each in said)


ESTIMATE = {
    "rows": 200, "opened": 30, "fixed": 9, "broken": 5, "accuracy": 0.82, "base_accuracy": 0.8, "objective": 0.66,
    "base_objective": 0.6, "maximised": "balanced_accuracy", "sentence": "out of fold nine were fixed",
}  # fmt: skip


class TestStanding:
    @pytest.mark.parametrize(("certified", "kind"), [(True, "certified"), (False, "not granted"), (None, "not asked")])
    def test_certified_or_not_or_not_asked(self, certified, kind):
        said = summarise({**evaluation(), "certified": certified}).standing
        assert said is not None
        assert said.kind == kind
        assert str(said).endswith(".")

    def test_an_evaluation_that_does_not_say(self):
        assert summarise(evaluation()).standing is None

    def test_proof_and_estimate_are_sentences_of_their_own(self):
        proof = {"sentence": "with 400 lesions 2 points can be proven; certified", "guarantee": "a promise"}
        document = {**evaluation(), "tuning": f"tried; {proof['sentence']}; {ESTIMATE['sentence']}"}
        told = summarise(
            document, gates=[{"certificate": proof, "out_of_fold": ESTIMATE, "expected": ESTIMATE}]
        ).sentences
        assert values(told, "tuning") == {"tuning": "tried"}
        assert values(told, "certificate") == proof
        assert values(told, "estimate") == {"sentence": ESTIMATE["sentence"]}

    def test_a_failed_proof_is_not_told_twice(self):
        proof = {"sentence": "not certified, so the gate stays shut", "guarantee": "a promise"}
        told = summarise({**evaluation(), "tuning": proof["sentence"]}, gates=[{"certificate": proof}]).sentences
        assert "tuning" not in kinds(told)
        assert "certificate" in kinds(told)


class TestExpected:
    def test_beside_the_figures_of_test(self):
        tiles = summarise(evaluation(), gates=[{"out_of_fold": ESTIMATE, "expected": ESTIMATE}]).tiles
        assert [tile.expected.rpartition(": ")[2] for tile in tiles[2:]] == ["+0.0200", "+0.0600", ""]
        assert tiles[0].expected.endswith("15.0%")
        assert tiles[1].expected.endswith("9 : 5 of 200")

    def test_only_what_was_estimated(self):
        of_f1 = {**ESTIMATE, "maximised": "macro_f1"}
        assert summarise(evaluation(), gates=[{"expected": of_f1}]).tiles[3].expected == ""
        assert {tile.expected for tile in summarise(evaluation(), gates=[{"expected": None}]).tiles} == {""}

    def test_tunings_are_taken_together_and_a_shared_one_once(self):
        other = {**ESTIMATE, "fixed": 1, "accuracy": 0.8}
        gates = [{"expected": each} for each in (ESTIMATE, other, ESTIMATE)]
        tiles = summarise(evaluation(), gates=gates).tiles
        assert tiles[1].expected.endswith("10 : 10 of 400")
        assert tiles[2].expected.endswith("+0.0100")


def test_over_seeds_the_interval_must_agree_with_the_test():
    gate = {**evaluation()["gate"], "opened": 20, "fixed": 15, "broken": 2, "sign_flip_p": 0.001}
    for interval, expected in (([0.001, 0.02], "better"), ([0.0, 0.02], "chance"), ([-0.01, 0.02], "chance")):
        lead = {"paired": {"student": {"accuracy": {"difference": 0.01, "interval": interval}}}}
        assert judged({"gate": gate, "resampled": "lesions and seeds", **lead}) == expected
        assert judged({"gate": gate, "resampled": "lesions", **lead}) == "better"  # one seed: the test is of its rows


def test_a_choice_that_was_not_taken_is_not_expected():
    taken = {
        "rows": 100, "opened": 10, "fixed": 5, "broken": 2, "accuracy": 0.83, "base_accuracy": 0.8, "objective": 0.7,
        "base_objective": 0.6, "maximised": "balanced_accuracy", "sentence": "s",
    }  # fmt: skip
    shut = {**taken, "opened": 0, "fixed": 0, "broken": 0, "accuracy": 0.8, "objective": 0.6}
    expected = Expected.of([{"out_of_fold": taken, "expected": taken}, {"out_of_fold": taken, "expected": shut}])
    assert "5 : 2 of 200" in expected.counts()
    assert "5.0%" in expected.share("opened")
