"""A file that a kill took away is made again as it was, whatever else is left of the run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.support import save_problem


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.filterwarnings("default")
def test_results_of_seeds_come_back_to_the_last_byte(tdumpra, tmp_path):
    listed = "".join(
        f'[[outputs]]\nfile = "{save_problem(tmp_path / f"seed{i}.npz", i).name}"\nbackbone = "net"\nseed = {i}\n'
        for i in range(2)
    )
    config, out = tmp_path / "saved.toml", tmp_path / "out"
    config.write_text(f'name = "net"\n{listed}[evaluate]\nbootstrap = 20\n[tune]\npreset = "paper"\n')

    def evaluate() -> dict[str, str]:
        done = tdumpra("evaluate", config, "--out", out)
        assert done.code == 0, done.err
        return contents(out)

    whole = evaluate()
    overall = [name for name in whole if name.endswith("evaluation.json") and "/" not in name]
    of_seeds = [name for name in whole if name.endswith(".json") and "/" in name]
    gates = [name for name in whole if "gate" in name or "bank" in name]
    assert overall
    assert of_seeds
    assert gates
    for lost in (overall, of_seeds, gates, [name for name in whole if name not in overall]):
        for name in lost:
            (out / name).unlink()
        assert evaluate() == whole
