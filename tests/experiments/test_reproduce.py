"""Which trainings the paper's tables need. The command itself is tried in ``cli/test_experiments``."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest
from tests.support import output_files, save_problem

from tdumpra.errors import TdumpraError
from tdumpra.experiments import paper
from tdumpra.experiments.reproduce import entries, table
from tdumpra.runs.config import Config, NetworkConfig


@pytest.mark.parametrize(
    ("weights", "taken"), [("none", "none"), ("timm", "timm"), ("lite", "timm"), ("a.safetensors", "timm")]
)
def test_each_backbone_with_and_without_the_method(weights, taken):
    found = entries(Config(name="x", network=NetworkConfig(weights=weights, image_size=96)))
    assert [entry.config.network.backbone for entry in found[::2]] == [each.timm for each in paper.BACKBONES]
    assert {entry.config.network.weights for entry in found} == {taken}
    assert {entry.config.network.image_size for entry in found} == {96}
    assert [entry.config.train.contrastive_weight > 0 for entry in found] == [False, True] * 5
    assert {entry.seeds for entry in found} == {(0, 1, 2)}


def test_files_are_not_taken_for_what_they_need_not_be(tmp_path):
    results: Any = defaultdict(lambda: defaultdict(lambda: 0.5))
    found = table("ham10000", Config(outputs=output_files(save_problem(tmp_path / "mine.npz"))), results)
    notes = "\n".join(found.notes)
    assert found.title.startswith("Saved outputs beside ham10000")
    assert "EMA teacher" not in notes
    assert "Which images they are outputs of is not known" in notes
    assert "mine.npz" in notes  # whose training nobody told
    own = table("ham10000", Config(), results)
    assert own.title.startswith("ham10000 across backbones")
    assert "joint objective, EMA teacher, prototypes and gate" in own.notes[0]


def test_other_seeds_than_named_are_told():
    results: Any = defaultdict(lambda: defaultdict(lambda: 0.5))
    assert "the configuration names seed 5 alone" in "\n".join(table("ham10000", Config(seeds=(5,)), results).notes)
    assert "alone, and a table wants" not in "\n".join(table("ham10000", Config(seeds=(5, 6)), results).notes)


def test_with_and_without_are_of_the_same_images():
    config = Config(seeds=(0, 1))
    results: Any = defaultdict(lambda: defaultdict(lambda: 0.5))
    for entry, seed in itertools.product(entries(config), (0, 1)):
        row = results[f"{entry.backbone} {'with' if entry.with_method else 'without'}, seed {seed}"]
        row["test_rows"] = "old" if entry.with_method else "new"
    with pytest.raises(TdumpraError, match="not scored on the same test images"):
        table("ham10000", config, results)
