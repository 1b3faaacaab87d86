"""docs/equations.md is true: its functions import, its tests exist, and no equation of the paper is missing."""

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    line for line in (ROOT / "docs" / "equations.md").read_text(encoding="utf-8").splitlines() if "`tdumpra." in line
]

EQUATIONS = [
    "ema_teacher",
    "spherical_kmeans_obj",
    "spherical_kmeans_update",
    "vmf_mixture_score",
    "sim_posterior",
    "gamma_cls",
    "entropy_cls",
    "js_div",
    "gate_full",
    "fuse_when_on",
    "final_posterior",
    "supcon_full",
    "train_total",
    "app:final_posterior_def",
    "app:risk_def",
    "app:risk_decomp",
    "app:cond_better",
    "app:flip_condition",
    "app:sufficient_alpha",
    "app:alpha_bound",
    "app:hard_gate_def",
    "app:cond_risk",
    "app:bayes_gate",
    "app:local_calib",
    "app:gap_condition",
    "app:regret_bound",
]
PROPOSITIONS = [f"Proposition A.{number}" for number in range(1, 6)]


@functools.cache
def defined_in(path: str) -> set[str]:
    """The tests of a file, those of a class with its name before them."""
    found = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.update(f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef))
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip().strip("`"))
def test_function_and_test_exist(row):
    functions = re.findall(r"`(tdumpra[\w.]+):(\w+)`", row)
    tests = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", row)
    assert len(functions) == len(tests) == 1
    (module, name), (path, test) = functions[0], tests[0]
    assert callable(getattr(importlib.import_module(module), name))
    assert test.split("::")[-1].startswith("test_")
    assert test in defined_in(path)


def test_every_equation_and_proposition_has_a_row():
    named = {row.split("|")[1].strip().strip("`") for row in ROWS}
    assert not [label for label in (*EQUATIONS, *PROPOSITIONS) if label not in named]


def test_every_row_names_a_function_of_the_core_that_mentions_its_equation():
    # The docstrings cite the labels; a label that moved elsewhere is noticed here.
    for label in (
        "ema_teacher",
        "vmf_mixture_score",
        "sim_posterior",
        "js_div",
        "gate_full",
        "supcon_full",
        "train_total",
    ):
        row = next(row for row in ROWS if row.split("|")[1].strip() == f"`{label}`")
        module = re.findall(r"`(tdumpra[\w.]+):\w+`", row)[0]
        assert label in Path(str(importlib.import_module(module).__file__)).read_text(encoding="utf-8")
