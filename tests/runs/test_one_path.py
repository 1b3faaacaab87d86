"""After ``run``, nothing is computed twice and no file changes; after a change, exactly what depends on it is made."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import save_problem
from tiny_config import write_config

from tdumpra.errors import TdumpraError
from tdumpra.report import runs as reports
from tdumpra.runs import model, outputs, pixel_stages, table_stages
from tdumpra.runs.config import Config, OutputFile

SOURCE = "synthetic:n=90,size=32"
ORDERS = list(itertools.permutations(("tune", "evaluate", "report", "run")))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is computed, by name."""
    found: Counter[str] = Counter()

    def count(module: Any, name: str, as_: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            found[as_] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    count(pixel_stages, "train", "train")
    count(pixel_stages, "encode", "embed")
    count(table_stages, "cluster", "bank")
    count(table_stages, "fit", "gate")
    count(table_stages, "evaluated", "evaluation")
    count(model, "assemble_model", "model")
    count(reports, "write_page", "report")
    return found


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write_images(folder: Path, **changes: Any) -> Path:
    return write_config(folder / "run.toml", folder / "cache", **{"source": SOURCE, "epochs": 1, **changes})


def ask(tdumpra: Any, command: str, config: Path, out: Path) -> None:
    done = tdumpra("report", out) if command == "report" else tdumpra(command, config, "--out", out)
    assert done.code == 0, done.err


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("seeds", [pytest.param("[0]", marks=pytest.mark.slow), "[0, 1]"])
def test_nothing_is_computed_twice_after_a_run(tdumpra, tmp_path, computed, seeds):
    config, out = write_images(tmp_path, seeds=seeds), tmp_path / "run"
    ask(tdumpra, "run", config, out)
    n = seeds.count(",") + 1
    each = {"train": n, "embed": 3 * n, "bank": n, "gate": n, "evaluation": n, "model": n, "report": n}
    assert computed == each
    before = contents(out)
    for order in ORDERS if n == 1 else ORDERS[::7]:
        for command in order:
            ask(tdumpra, command, config, out)
            assert contents(out) == before, (order, command)
    assert computed == each


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("change", "made"),
    [
        ("bootstrap = 21", {"evaluation", "model", "report"}),  # whose figures it takes along
        pytest.param("[bank]\nthumbnails = false", {"model", "report"}, marks=pytest.mark.slow),
        ("[tune]\nobjective = 'accuracy'", {"gate", "evaluation", "model", "report"}),
        pytest.param(
            "[bank]\nn_prototypes = 2", {"bank", "gate", "evaluation", "model", "report"}, marks=pytest.mark.slow
        ),
        ("[embed]\nviews = 2", {"embed", "bank", "gate", "evaluation", "model", "report"}),
    ],
)
def test_a_change_makes_again_what_depends_on_it(tdumpra, finished, computed, change, made):
    config, out = finished()
    computed.clear()
    text = config.read_text()
    config.write_text(text.replace("bootstrap = 20", change) if "bootstrap" in change else f"{text}\n{change}\n")
    ask(tdumpra, "run", config, out)
    assert computed.keys() == made
    computed.clear()
    for command in ORDERS[0]:
        ask(tdumpra, command, config, out)
    assert not computed


@pytest.mark.filterwarnings("default")
def test_stages_one_by_one_make_what_a_run_makes(tdumpra, tmp_path, computed, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")  # a model tells when it was made
    config = write_images(tmp_path)
    ask(tdumpra, "run", config, tmp_path / "whole")
    whole = computed.copy()
    computed.clear()
    for command in ("train", "embed", "bank", "tune", "evaluate", "run"):
        ask(tdumpra, command, config, tmp_path / "steps")
    assert computed == whole
    same = (
        "bank.safetensors",
        "gate.safetensors",
        "gate.json",
        "evaluation.json",
        "compared.json",
        "model.safetensors",
    )
    of_both = [contents(tmp_path / name) for name in ("whole", "steps")]
    assert [of_both[0][name] for name in same] == [of_both[1][name] for name in same]


@pytest.mark.filterwarnings("default")
def test_a_second_network_is_made_once(tdumpra, tmp_path, finished, computed, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    config, whole = finished()
    steps = tmp_path / "steps"
    first = contents(whole)
    config.write_text(config.read_text().replace("[train]", "[train]\nrefit = true"))
    computed.clear()
    ask(tdumpra, "run", config, whole)
    assert computed == {"train": 1, "embed": 2, "bank": 1, "evaluation": 1, "model": 1, "report": 1}  # the gate stays
    before = contents(whole)
    kept = (
        "checkpoints/last.safetensors",
        "outputs/val.safetensors",
        "bank.safetensors",
        "gate.safetensors",
        "gate.json",
    )
    assert [first[name] for name in kept] == [before[name] for name in kept]
    assert first["evaluation.json"] != before["evaluation.json"]
    for command in ORDERS[9]:
        ask(tdumpra, command, config, whole)
        assert contents(whole) == before, command
    computed.clear()
    (whole / "refit" / "outputs" / "test.safetensors").unlink()
    ask(tdumpra, "run", config, whole)
    assert computed == {"embed": 2}
    computed.clear()
    for command in ("train", "embed", "bank", "tune", "evaluate", "run"):
        ask(tdumpra, command, config, steps)
    assert computed == {"train": 2, "embed": 5, "bank": 2, "gate": 1, "evaluation": 1, "model": 1, "report": 1}
    same = ("gate.json", "evaluation.json", "model.safetensors", "refit/bank.safetensors")
    assert [before[name] for name in same] == [contents(steps)[name] for name in same]


@pytest.mark.filterwarnings("default")
def test_a_second_network_that_is_not_there_is_in_the_plan(tdumpra, tmp_path):
    config, out = write_images(tmp_path), tmp_path / "run"
    for command in ("train", "embed"):
        ask(tdumpra, command, config, out)
    again = ("--set", "train.refit=true", "--out", out)
    assert tdumpra("tune", config, *again).code == 0
    planned = json.loads(tdumpra("evaluate", config, *again, "--plan", "--json").out)["cells"]
    assert [each["finished"] for each in planned] == [False, False]
    assert "second network" in planned[0]["name"]
    before = contents(out)
    refused = tdumpra("evaluate", config, *again)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert contents(out) == before


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("n", [1, 2])
def test_saved_outputs_go_the_same_way(tdumpra, tmp_path, computed, n):
    files = [save_problem(tmp_path / f"part{i}.npz", seed=i) for i in range(n)]
    listed = "".join(f'[[outputs]]\nfile = "{file.name}"\nbackbone = "{file.stem}"\n' for file in files)
    config, out = tmp_path / "saved.toml", tmp_path / "out"
    config.write_text(f'{listed}[evaluate]\nbootstrap = 20\n[tune]\npreset = "paper"\n')
    ask(tdumpra, "run", config, out)
    assert computed == {"bank": n, "gate": n, "evaluation": n, "report": n}
    before = contents(out)
    for order in ORDERS[::5]:
        for command in order:
            ask(tdumpra, command, config, out)
            assert contents(out) == before, (order, command)
    assert computed == {"bank": n, "gate": n, "evaluation": n, "report": n}


@pytest.mark.filterwarnings("default")
def test_attach_is_a_run_on_one_file(tdumpra, tmp_path, computed):
    file, out = save_problem(tmp_path / "mine.npz"), tmp_path / "attached"
    assert tdumpra("attach", file, "--out", out).code == 0
    assert computed == {"bank": 1, "gate": 1, "evaluation": 1, "report": 1}
    before = contents(out)
    assert tdumpra("attach", file, "--out", out).code == 0
    assert tdumpra("run", out / "config.toml", "--out", out).code == 0
    assert tdumpra("report", out).code == 0
    assert contents(out) == before
    assert computed.total() == 4


@pytest.mark.filterwarnings("default")
def test_variants_with_equal_gates_tune_once(tdumpra, tmp_path, computed):
    arrays = dict(np.load(save_problem(tmp_path / "joint.npz")))
    np.savez_compressed(tmp_path / "ce.npz", **arrays)  # another file by its bytes
    config = tmp_path / "ablation.toml"
    config.write_text(
        '[[outputs]]\nfile = "ce.npz"\ntraining = "ce"\nbackbone = "net"\nseed = 0\n'
        '[[outputs]]\nfile = "joint.npz"\ntraining = "joint"\nbackbone = "net"\nseed = 0\n[tune]\npreset = "paper"\n'
    )
    ask(tdumpra, "ablate", config, tmp_path / "out")
    assert computed["gate"] == 3  # six rows: cross-entropy, joint in the student's space, joint in the teacher's
    ask(tdumpra, "ablate", config, tmp_path / "out")
    assert computed["gate"] == 3


def test_other_outputs_have_another_name(tmp_path):
    file = save_problem(tmp_path / "mine.npz")
    config = Config(name="mine", folder=str(tmp_path), outputs=(OutputFile(file=str(file)),))
    (before,) = outputs.all_outputs(config)
    (third,) = outputs.all_outputs(replace(config, outputs=(OutputFile(file=str(file), seed=3),)))
    assert table_stages.evaluation_made_from(third) != table_stages.evaluation_made_from(before)
    name = table_stages.gate_made_from(before)
    save_problem(file, seed=5)
    assert table_stages.gate_made_from(before) != name


@pytest.mark.filterwarnings("default")
def test_what_no_longer_belongs_together_is_told(tdumpra, tmp_path):
    save_problem(tmp_path / "mine.npz")
    config, out = tmp_path / "saved.toml", tmp_path / "out"
    config.write_text('outputs = ["mine.npz"]\n[evaluate]\nbootstrap = 20\n[tune]\npreset = "paper"\n')
    ask(tdumpra, "run", config, out)
    other = ("--set", "tune.objective=accuracy", "--out", out)
    tuned = tdumpra("tune", config, *other)
    assert "evaluation.json is of another gate" in tuned.out
    refused = tdumpra("report", out)
    assert refused.code == 2
    assert "tdumpra evaluate" in refused.err
    assert "model.safetensors decides by another gate" in tdumpra("evaluate", config, *other).out
    assert tdumpra("report", out).code == 0
    again = tdumpra("run", config, *other)
    assert again.code == 0
    assert "another gate" not in again.out


@pytest.mark.filterwarnings("default")
def test_other_settings_of_a_trained_run(tdumpra, finished):
    config, out = finished()
    other = ("--set", "tune.preset=paper-swapped", "--out", out)
    assert "evaluation.json is of another gate" in tdumpra("tune", config, *other).out
    assert tdumpra("report", out).code == 2  # gate and evaluation do not belong together
    assert "model.safetensors decides by another gate" in tdumpra("evaluate", config, *other).out
    assert tdumpra("report", out).code == 0  # the folder says what its results were made with
    (out / "model.safetensors").write_bytes(b"damaged")
    assert tdumpra("report", out).code == 0  # it wants pictures of the model, and can do without
    figure = (out / "risk_coverage.png").read_bytes()
    assert tdumpra("evaluate", config, *other, "--set", "evaluate.refer_risk=0.01").code == 0
    assert (out / "risk_coverage.png").read_bytes() != figure


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "changes", [("--seeds", "1"), ("--set", "train.epochs=7"), ("--seeds", "0,1")], ids=["seed", "epochs", "seeds"]
)
def test_results_of_another_training_are_refused(tdumpra, finished, changes):
    config, out = finished()
    before = contents(out)
    for command in ("tune", "evaluate", "run"):
        assert tdumpra(command, config, *changes, "--out", out).code == 2
    assert contents(out) == before


def test_one_file_is_one_seed(tmp_path):
    save_problem(tmp_path / "mine.npz")
    files = tuple(OutputFile(file=str(tmp_path / name)) for name in ("mine.npz", "../" + tmp_path.name + "/mine.npz"))
    with pytest.raises(TdumpraError, match="twice"):
        outputs.all_outputs(Config(name="mine", outputs=files))
