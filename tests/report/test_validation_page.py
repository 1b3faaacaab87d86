from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from local_models import local_arrays, model_of_arrays
from parsed_page import parse

from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.models.local_rows import read_rows
from tdumpra.models.opened import open_model
from tdumpra.models.validate import Floor, validate
from tdumpra.report.validation_page import write_validation_page

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_model(model_of_arrays(tmp_path_factory.mktemp("arrays")))


def test_the_page_tells_figures_shift_and_floors(model, tmp_path):
    sex = np.where(np.arange(160) % 2, EVIL, "male")
    local = read_rows(model, str(local_arrays(tmp_path / "away.npz", sex=sex)))
    document = validate(
        model, local, "away.npz", floors=[Floor("accuracy", 0.99)], settings=EvaluateConfig(bootstrap=20)
    )
    text = write_validation_page(document, tmp_path / "out").read_text()
    page = parse(text)
    assert EVIL not in text
    assert "https://" not in text
    sections = {each.attributes["id"] for each in page.all("section")}
    assert sections >= {"summary", "shift", "results", "operating_points"}
    assert "at least 0.99 was asked for" in page.one("div", class_="badges").text
    assert f"{document['evaluation']['comparators']['gate']['accuracy']:.3f}" in page.one(id="summary").text
    assert "familiarity" in page.one(id="shift").text
    assert page.one(id="parts").text.count("male") == 1
    links = [each.attributes["href"][1:] for each in page.one("nav", class_="toc").all("a")]
    assert set(links) <= sections


def test_without_labels_the_page_has_the_shift_alone(model, tmp_path):
    local = read_rows(model, str(local_arrays(tmp_path / "away.npz")))
    bare = local._replace(rows=replace(local.rows, y=np.full(160, -1)))
    page = parse(write_validation_page(validate(model, bare, "away.npz"), tmp_path / "out").read_text())
    assert [each.attributes["id"] for each in page.all("section")] == ["summary", "shift", "about"]
