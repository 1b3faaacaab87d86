"""The page "A new hospital" says what its file of figures says, and its shipped outputs are numbers only, and small."""

from __future__ import annotations

import json

import numpy as np
import pytest
from benchmarks.new_hospital import FIGURES, PAGE, SHIPPED, tables


@pytest.mark.parametrize("name", ["drop", "leads", "balanced", "home", "estimates", "drop_elsewhere", "elsewhere"])
def test_tables_are_those_of_the_study(name):
    shown = "\n".join(tables(json.loads(FIGURES.read_text(encoding="utf-8")))[name])
    assert shown in PAGE.read_text(encoding="utf-8")


def test_shipped_outputs_are_small_numbers():
    assert SHIPPED.stat().st_size < 3 * 2**20
    with np.load(SHIPPED, allow_pickle=False) as file:
        rows = {name: len(file[name]) for name in file.files if name != "classes"}
        assert set(np.unique(file["split"])) == {0, 1, 2}
        groups = [set(file["group"][file["split"] == part]) for part in range(3)]
    assert len(set(rows.values())) == 1
    assert not groups[0] & groups[2]
    assert not groups[1] & groups[2]
