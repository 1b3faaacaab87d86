"""The tables of ``docs/paper-notes.md`` name exactly the values that the recipe, the preset and ``reproduce`` have."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tdumpra.experiments import paper
from tdumpra.runs import config as run_config
from tdumpra.runs.config import read_config
from tdumpra.runs.folder import differences
from tdumpra.tuning.presets import PRESETS

PAGE = (Path(__file__).parents[1] / "docs" / "paper-notes.md").read_text(encoding="utf-8")
RECIPE = Path(run_config.__file__).parent / "recipes" / "paper.toml"
BOUNDS_AND_UNUSED = {"advantage"}  # of the calibrated gate, which this preset has not


def table(heading: str) -> dict[str, tuple[str, str]]:
    """The rows of a table of the page, by their first cell: value and source."""
    body = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]
    return {row[0].strip("`"): (row[1].strip("`"), row[-1]) for row in rows}


def value_of(text: str) -> Any:
    return tomllib.loads(f"value = {text}")["value"]


def flat(content: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


def test_the_recipe_is_the_table():
    told = {key: value_of(value) for key, (value, _) in table("setting").items()}
    assert told == flat(tomllib.loads(RECIPE.read_text(encoding="utf-8")))
    assert all(re.match("stated|ours|left at a default|the same|not among|the candidates", source)
               for _, source in table("setting").values())  # fmt: skip


def test_the_preset_is_the_table():
    told = {key: value_of(value) for key, (value, _) in table("candidates").items()}
    preset = asdict(PRESETS["paper"])
    bounds = {field.name for field in fields(PRESETS["paper"]) if not isinstance(preset[field.name], tuple)}
    assert {key: list(v) if isinstance(v := preset[key], tuple) else v for key in told} == told
    assert preset.keys() - told.keys() <= bounds | BOUNDS_AND_UNUSED


def test_what_the_preset_leaves_out_binds_nothing():
    preset = PRESETS["paper"]
    assert (preset.most_theta, preset.chance_factor, preset.least_margin) == (1.0, 0.0, 0.0)
    assert not preset.first_choices_only
    assert not preset.must_survive


def test_the_weights_are_the_table():
    assert {name: value for name, (value, _) in table("backbone").items()} == dict(paper.BACKBONES)


def test_what_the_page_shows_is_the_recipe_and_two_names(tmp_path):
    block = re.search(r"```toml\n(recipe.*?)```", PAGE, re.DOTALL)
    assert block is not None
    path = tmp_path / "ham10000-paper.toml"
    path.write_text(block[1], encoding="utf-8")
    shown = read_config(path)
    recipe = read_config(None, changes=["recipe=paper"])
    assert set(differences(recipe, shown)) == {"name", "data.source", "network.backbone"}
