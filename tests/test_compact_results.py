from __future__ import annotations

import json
from typing import Any

import pytest

from sitegen.compact_results import compact, write_compact
from tdumpra.artifacts import write_json
from tdumpra.errors import ArtifactError


def of_a_seed(accuracy: float) -> dict[str, Any]:
    return {
        "comparators": {"gate": {"accuracy": accuracy}},
        "gate": {"fixed": 3},
        "intervals": {"gate": {"accuracy": [0.0, 1.0]}},
        "per_class": {"gate": {"mel": {"recall": 0.1 + 0.2, "f1": 0.5}}},
        "calibration": {"gate": {"bins": [1, 2]}, "student": {"bins": [3, 4]}},
        "selective": {"gate": {"aurc": 0.1}},
        "retrieval_worth": {"winner": "neither"},
    }


def over_seeds() -> dict[str, Any]:
    by_seed = {"0": of_a_seed(0.7), "1": of_a_seed(0.9)}
    comparators = {"gate": {"accuracy": 0.8}}
    return {"seeds": [0, 1], "comparators": comparators, "notes": ["one"], "by_seed": by_seed, "name": "ours"}


def test_sections_that_no_page_reads_are_left_out():
    found = compact(over_seeds())
    assert found.keys() == {"seeds", "comparators", "by_seed", "name"}
    assert found["by_seed"]["1"] == {
        "comparators": {"gate": {"accuracy": 0.9}},
        "gate": {"fixed": 3},
        "retrieval_worth": {"winner": "neither"},
        "calibration": {"gate": {"bins": [1, 2]}},
        "recall": {"gate": {"mel": 0.1 + 0.2}},
    }


def test_operating_points_are_kept_of_melanoma():
    points = {"mel": {"0.9": {"sensitivity": 0.6}}, "nv": {"0.9": {"sensitivity": 0.9}}}
    found = compact({**over_seeds(), "operating_points": {"gate": points}, "per_1000": {"test": {"fixed": 3.0}}})
    assert found["operating_points"] == {"gate": {"mel": points["mel"]}}
    assert found["per_1000"] == {"test": {"fixed": 3.0}}


def test_one_seed_is_kept_as_several_are():
    found = compact({"seeds": [4], "name": "ours", **of_a_seed(0.7)})
    assert found["comparators"] == {"gate": {"accuracy": 0.7}}
    assert found["by_seed"] == {"4": compact(over_seeds())["by_seed"]["0"]}


def test_a_folder_keeps_evaluations_and_tables(tmp_path):
    whole, target = tmp_path / "whole", tmp_path / "compact"
    for name in ("system", "ablation"):
        (whole / name).mkdir(parents=True)
    write_json(whole / "system" / "evaluation.json", kind="evaluation", schema=1, content=over_seeds())
    for name in ("ablation.csv", "ablation.json", "sweep_theta.csv", "sweep_theta.png"):
        (whole / "ablation" / name).write_text(f"of {name}")
    written = write_compact(whole, target)
    names = {"system/evaluation.json", "ablation/ablation.csv", "ablation/sweep_theta.csv"}
    assert {path.relative_to(target).as_posix() for path in written} == names
    assert {path.relative_to(target).as_posix() for path in target.rglob("*.*")} == names
    assert (target / "ablation" / "ablation.csv").read_text() == "of ablation.csv"
    text = (target / "system" / "evaluation.json").read_text(encoding="utf-8")
    assert json.loads(text) == compact(over_seeds())
    assert len(text.splitlines()) == 2 + len(compact(over_seeds()))


def test_an_altered_evaluation_is_refused(tmp_path):
    path = tmp_path / "evaluation.json"
    write_json(path, kind="evaluation", schema=1, content=over_seeds())
    path.write_text(path.read_text().replace("0.8", "0.9"))
    with pytest.raises(ArtifactError):
        write_compact(tmp_path, tmp_path / "compact")
