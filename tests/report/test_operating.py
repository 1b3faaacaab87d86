from __future__ import annotations

import base64
import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from parsed_page import Element, parse

from tdumpra.report import operating
from tdumpra.report.material import Material, gather
from tdumpra.report.report import write_page
from tdumpra.report.summary import Said
from tdumpra.runs.config import read_config
from tdumpra.runs.outputs import all_outputs

MOVES = {"gained": 3.0, "lost": 1.0, "falsely_called": 2.0}
COUNTS = {"opened": 120.0, "fixed": 40.5, "broken": 20.25, "by_class": {"mel": MOVES, "nv": {**MOVES, "lost": 4.0}}}
POINT = {"sensitivity": 0.61, "interval": [0.55, 0.67]}
FIELDS: dict[str, Any] = {
    "per_1000": {"test": COUNTS, "validation": {**COUNTS, "opened": 100.0}},
    "operating_points": {
        who: {name: {"0.8": {**POINT, "sensitivity": 0.7}, "0.95": POINT} for name in ("mel", "nv")}
        for who in ("student", "gate")
    },
    "cost_curve": {
        "theta": [0.0, 0.7, 1.0],
        "asked": [0.0, 0.31, 1.0],
        "gate": {"accuracy": [0.8, 0.83, 0.83], "balanced_accuracy": [0.6, 0.7, 0.7], "nll": [0.5, 0.4, 0.4]},
        "average": {"accuracy": [0.8, 0.82, 0.82], "balanced_accuracy": [0.6, 0.65, 0.66], "nll": [0.5, 0.4, 0.4]},
    },
    "rivals": {
        "logit_adjusted": {"temperature": 1.25, "exponent": 0.35},
        "paper_gate": {"thresholds": {"theta": 0.7, "entropy": None}, "calibrated": None, "rule": "linear"},
    },
    "gate": {"thresholds": {"theta": 0.7}},
}


def rows_of(link: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(base64.b64decode(link.split(",")[1]).decode())))


@pytest.mark.parametrize(
    "section", [operating.per_1000, operating.operating_points, operating.cost_curve, operating.rivals]
)
def test_what_an_evaluation_does_not_have_is_left_out(section):
    assert section({"gate": {}}) is None


class TestPer1000:
    def test_validation_and_test_side_by_side(self):
        found = operating.per_1000(FIELDS)
        assert found is not None
        assert found["parts"] == ["validation", "test"]
        assert [row["cells"] for row in found["rows"]] == [["100.0", "120.0"], ["40.5", "40.5"], ["20.2", "20.2"]]
        assert found["by_class"][1] == {"name": "nv", "cells": ["3.0", "3.0", "4.0", "4.0", "2.0", "2.0"]}
        assert {row["part"] for row in rows_of(found["data"])} == {"validation", "test"}

    def test_without_an_estimate_there_is_test_alone(self):
        found = operating.per_1000({"per_1000": {"test": COUNTS, "validation": None}})
        assert found is not None
        assert found["parts"] == ["test"]
        assert found["by_class"][0]["cells"] == ["3.0", "1.0", "2.0"]


class TestOperatingPoints:
    def test_every_row_at_every_specificity_with_its_interval(self):
        found = operating.operating_points(FIELDS)
        assert found is not None
        assert [each["name"] for each in found] == ["mel", "nv"]
        assert [row["name"] for row in found[0]["rows"]] == ["student", "gate"]
        assert found[0]["rows"][1]["cells"] == [
            {"value": "0.700", "spread": "0.550–0.670"},
            {"value": "0.610", "spread": "0.550–0.670"},
        ]
        assert len(rows_of(found[0]["data"])) == 4

    @pytest.mark.parametrize("interval", [None, [None, None], [float("nan")] * 2])
    def test_one_that_is_undefined(self, interval):
        point = {"sensitivity": None, "interval": interval}
        found = operating.operating_points({"operating_points": {"gate": {"mel": {"0.9": point}}}})
        assert found is not None
        assert found[0]["rows"][0]["cells"] == [{"value": "undefined", "spread": ""}]


class TestCostCurve:
    def test_the_share_at_the_theta_in_use(self):
        found = operating.cost_curve(FIELDS)
        assert found is not None
        assert "31%" in found["words"]
        rows = rows_of(found["chart"]["data"])
        assert len(rows) == 6
        assert {row["path"] for row in rows} == {"gate", "average"}
        assert float(rows[-1]["nll"]) == 0.4

    @pytest.mark.parametrize("thresholds", [[{"theta": 0.7}, {"theta": 0.8}], {"theta": 0.75}])
    def test_folds_and_a_theta_between_the_points_have_no_such_share(self, thresholds):
        found = operating.cost_curve({**FIELDS, "gate": {"thresholds": thresholds}})
        assert found is not None
        assert "%" not in found["words"]


def test_rivals_tell_what_they_chose():
    found = operating.rivals(FIELDS)
    assert found is not None
    assert [row["chosen"] for row in found] == ["temperature 1.25, exponent 0.35", "theta 0.7, rule linear"]
    folds = operating.rivals({"rivals": {"second": [{"temperature": 1.0}, {"temperature": 2.0}]}})
    assert folds is not None
    assert folds[0]["chosen"] == "fold 0: temperature 1, fold 1: temperature 2".replace(", fold", "; fold")


@pytest.fixture(scope="module")
def material(attached: Path) -> Material:
    found = gather(all_outputs(read_config(attached / "config.toml"))[0])
    fields = {name: value for name, value in FIELDS.items() if name != "gate"}
    power = "with 400 lesions a net gain of 2.0 images per 100 can be proven"
    certificate = {"sentence": f"{power}; certified at level 0.05", "guarantee": "a promise"}
    return replace(
        found,
        evaluation={**found.evaluation, **fields, "certified": True},
        tuning={**found.tuning, "certificate": certificate},
    )


@pytest.fixture(scope="module")
def page(material: Material, tmp_path_factory: pytest.TempPathFactory) -> Element:
    return parse(write_page(material, tmp_path_factory.mktemp("operating"), limit=0).read_text())


def test_the_first_lines_say_whether_the_gate_is_certified(page):
    assert page.one("header").one("p", class_="standing").text == str(Said("certified", {}))
    assert "400 lesions" in page.one("section", id="summary").text  # what so many can prove


def test_sections_stand_in_the_contents_and_on_the_page(page):
    links = {link.attributes["href"] for link in page.one("nav", aria_label="Contents").all("a")}
    for name in ("per_1000", "operating_points", "cost_curve"):
        assert f"#{name}" in links
        assert page.one("section", id=name).text


def test_of_an_evaluation_without_them_there_are_no_empty_sections(material, tmp_path):
    evaluation = {name: value for name, value in material.evaluation.items() if name not in FIELDS or name == "gate"}
    bare = parse(write_page(replace(material, evaluation=evaluation), tmp_path, limit=0).read_text())
    links = [link.attributes["href"] for link in bare.one("nav", aria_label="Contents").all("a")]
    assert all(len(bare.all(None, id=link[1:])) == 1 for link in links)
    assert not bare.all("section", id="cost_curve")
