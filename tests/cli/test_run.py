"""The commands that train and predict, from the command line's own entry point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.support import save_problem, seed_arrays
from tiny_config import SOURCE, run_command, write_config

from tdumpra import DualPathClassifier
from tdumpra.artifacts import read_json
from tdumpra.checks import SPLITS
from tdumpra.data.sources import open_source
from tdumpra.errors import TdumpraError
from tdumpra.method.bank import PrototypeBank
from tdumpra.networks.model_file import Model
from tdumpra.networks.progress import Screen
from tdumpra.runs.config import read_config
from tdumpra.runs.tables import OutputsTable, table_outputs

pytestmark = pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def config(tmp_path, cache) -> Path:
    return write_config(tmp_path / "run.toml", cache)


def test_stage_by_stage(tdumpra, config, tmp_path):
    out = tmp_path / "run"
    for command, said in (("train", "Trained: "), ("embed", "embedded 12 images of val"), ("bank", "Written to ")):
        done = tdumpra(command, config, "--out", out)
        assert (done.code, done.err) == (0, "") or "note:" in done.err, done
        assert said in done.out
    assert "is trained to its end" in tdumpra("train", config, "--out", out).out
    assert "outputs is up to date" in tdumpra("embed", config, "--out", out).out
    assert "bank.safetensors is up to date" in tdumpra("bank", config, "--out", out).out
    for command, key in (("train", "checkpoint"), ("embed", "outputs"), ("bank", "bank")):
        (found,) = json.loads(tdumpra(command, config, "--out", out, "--json").out).values()
        assert Path(found[key]).is_relative_to(out)
        assert Path(found[key]).exists()
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert files >= {
        "config.toml", "environment.json", "metrics.jsonl", "split.json", "bank.safetensors",
        "checkpoints/last.safetensors", "outputs/train.safetensors", "outputs/val.safetensors",
        "outputs/test.safetensors",
    }  # fmt: skip


def test_run_does_everything_once(tdumpra, config, tmp_path):
    out = tmp_path / "run"
    done = tdumpra("run", config, "--out", out)
    assert done.code == 0, done.err
    for said in ("Trained: ", "embedded", "prototypes", "model.safetensors", "comparator"):
        assert said in done.out
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert files >= {
        "bank.safetensors", "gate.safetensors", "gate.json", "compared.json", "evaluation.json", "comparators.csv",
        "reliability.png", "model.safetensors", "report/index.html",
    }  # fmt: skip
    before = {path: path.read_bytes() for path in out.rglob("*.*")}
    again = tdumpra("run", config, "--out", out)
    assert again.out.count("up to date") == 5  # tables, bank, gate, model and evaluation
    assert {path: path.read_bytes() for path in out.rglob("*.*")} == before
    assert [line for line in done.out.splitlines() if " gate " in line] == [
        line for line in again.out.splitlines() if " gate " in line
    ]
    config.write_text(config.read_text() + "\n[bank]\nthumbnails = false\n")
    assert Model.read(out / "model.safetensors").thumbnails
    private = tdumpra("run", config, "--out", out)
    assert "Written: " in private.out
    assert "bank.safetensors is up to date" in private.out
    assert not Model.read(out / "model.safetensors").thumbnails


@pytest.mark.parametrize("seeds", ["[0]", "[0, 1]"])
def test_what_a_run_has_tuned_and_scored_is_not_planned_again(tdumpra, finished, seeds):
    config, out = finished(seeds=seeds)
    for command in ("tune", "evaluate"):
        planned = json.loads(tdumpra(command, config, "--out", out, "--plan", "--json").out)
        assert [cell["finished"] for cell in planned["cells"]] == [True] * len(json.loads(seeds))
    several = sorted(out.glob("seed-*/evaluation.json"))
    by_run = [json.loads(path.read_text())["comparators"] for path in several or [out / "evaluation.json"]]
    if several:
        overall = json.loads((out / "evaluation.json").read_text())
        assert overall["seeds"] == [0, 1]
        accuracies = [each["gate"]["accuracy"] for each in by_run]
        assert overall["comparators"]["gate"]["accuracy"] == pytest.approx(sum(accuracies) / 2)
    evaluated = tdumpra("evaluate", config, "--out", out, "--json")
    assert evaluated.code == 0, evaluated.err
    found = json.loads(evaluated.out)
    assert [each["comparators"] for each in found.get("by_seed", {"0": found}).values()] == by_run
    config.write_text(config.read_text() + "\n[tune]\npreset = 'paper'\n")
    planned = json.loads(tdumpra("tune", config, "--out", out, "--plan", "--json").out)
    assert not any(cell["finished"] for cell in planned["cells"])


@pytest.mark.filterwarnings("always:n_prototypes=9 is more")
def test_a_note_names_classes_and_comes_once(tdumpra, tmp_path, cache):
    names = open_source(SOURCE).class_names
    config = write_config(tmp_path / "run.toml", cache, extra="[bank]\nn_prototypes = 9")
    done = tdumpra("run", config, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    (note,) = (line for line in done.err.splitlines() if "n_prototypes=9 is more" in line)
    assert any(f"{name} has " in note for name in names)
    assert "class 0" not in note
    assert done.out.count("validation is small (12 rows") == 1
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert tuple(evaluation["per_class"]["gate"]) == names


def test_run_as_json_over_several_seeds(tdumpra, finished, tmp_path):
    config, _ = finished(seeds="[0, 1]")
    done = tdumpra("run", config, "--json")
    assert done.code == 0, done.err
    overall = json.loads(done.out)
    assert overall == read_json(tmp_path / "run" / "evaluation.json", kind="evaluation", schema=1)
    assert overall["seeds"] == [0, 1]
    evaluations = overall["by_seed"]
    assert set(evaluations) == {"0", "1"}
    assert "gate" in evaluations["0"]["comparators"]
    for seed in (0, 1):
        assert (tmp_path / "run" / f"seed-{seed}" / "model.safetensors").exists()
    assert evaluations["0"]["comparators"] != evaluations["1"]["comparators"]


def test_several_seeds_end_in_one_table_and_say_each_note_once(tdumpra, tmp_path, cache):
    config = write_config(tmp_path / "run.toml", cache, seeds="[0, 1]", data="val_by_seed = true")
    done = tdumpra("run", config, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    notes = [line.removeprefix("note: ").removeprefix("• ") for line in done.out.splitlines() if "validation" in line]
    assert any("validation is small" in note for note in notes)
    assert len(notes) == len(set(notes))
    assert done.out.count(" oracle ") == 1
    assert "test rows, seeds 0, 1" in done.out


def test_run_on_saved_outputs_trains_nothing(tdumpra, tmp_path):

    save_problem(tmp_path / "outputs.npz")
    config = tmp_path / "run.toml"
    config.write_text(f'outputs = ["{tmp_path / "outputs.npz"}"]\n')
    done = tdumpra("run", config, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    found = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert found.keys() >= {"config.toml", "bank.safetensors", "gate.json", "evaluation.json", "model.safetensors"}
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert DualPathClassifier.load(tmp_path / "run" / "model.safetensors").bank_.n_classes
    assert tdumpra("run", config, "--out", tmp_path / "run").code == 0
    assert {name: (tmp_path / "run" / name).stat().st_mtime_ns for name in found} == found


def test_a_folder_of_several_saved_outputs_has_no_network(tdumpra, tmp_path):
    (tmp_path / "config.toml").write_text('outputs = ["a.npz", "b.npz"]\n')
    done = tdumpra("predict", tmp_path, tmp_path / "image.png")
    assert (done.code, "was made from saved outputs and has no network" in done.err) == (2, True)


def test_the_bank_of_a_file_goes_where_the_configuration_says(tdumpra, tmp_path):
    """Whatever the order of files and seeds, and with the files beside the configuration."""
    for seed in (0, 1):
        save_problem(tmp_path / f"m_seed{seed}.npz", seed)
    config = tmp_path / "run.toml"
    files = "".join(f'[[outputs]]\nfile = "m_seed{seed}.npz"\nseed = {seed}\nbackbone = "m"\n' for seed in (1, 0))
    config.write_text(f"seeds = [0, 1]\n{files}")
    done = tdumpra("bank", config, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    for seed in (0, 1):
        arrays = seed_arrays(seed)
        train = arrays["split"] == 0
        z, y, groups, ids = (arrays[name][train] for name in ("z", "y", "group", "id"))
        found = PrototypeBank.load(tmp_path / "run" / f"m_seed{seed}" / "bank.safetensors").prototypes
        wanted = PrototypeBank.fit(z, y, 5, groups, ids=ids).prototypes
        assert found.shape[-1] == wanted.shape[-1]
        assert float((found[:, 0] * wanted[:, 0]).sum(-1).min()) > 0.99
    config.write_text('outputs = ["m_seed1.npz"]\n')
    assert tdumpra("bank", config, "--out", tmp_path / "alone").code == 0
    assert (tmp_path / "alone" / "bank.safetensors").exists()


@pytest.mark.parametrize("stage", ["train", "embed"])
def test_saved_outputs_leave_nothing_to_train(tdumpra, tmp_path, stage):
    config = tmp_path / "run.toml"
    config.write_text('outputs = ["outputs.npz"]\n')
    done = tdumpra(stage, config, "--out", tmp_path / "run")
    assert done.code == 2
    assert "there is nothing to train or to embed" in done.err
    assert not (tmp_path / "run").exists()


# --- one choice for all seeds, in another encoder's space


def write_frozen(path: Path, cache: Path) -> Path:
    config = write_config(path, cache)
    text = config.read_text().replace("tiny_networks:plain", "tiny_networks:seeded")
    config.write_text(text.replace("embedding = 8", "embedding = 8\n        frozen = true"))
    return config


def test_a_frozen_encoder_is_embedded_and_not_run(tdumpra, tmp_path, cache):
    config = write_frozen(tmp_path / "frozen.toml", cache)
    embedded = tdumpra("embed", config, "--out", tmp_path / "frozen")
    assert embedded.code == 0, embedded.err
    assert "nothing to train" in tdumpra("train", config, "--out", tmp_path / "frozen").out
    for command in ("run", "bank", "tune", "evaluate"):
        done = tdumpra(command, config, "--out", tmp_path / "frozen")
        assert (done.code, done.err.count("\n")) == (2, 1), done
        assert "a frozen encoder has no classifier: name its folder as the bank.space of another run" in done.err


def test_one_choice_for_seeds_that_hold_out_lesions_of_their_own(tdumpra, tmp_path, cache, capsys):
    """Two seeds and a bank in a frozen encoder's space: everything once, and nothing the second time."""
    frozen, out = tmp_path / "frozen", tmp_path / "run"
    assert tdumpra("embed", write_frozen(tmp_path / "frozen.toml", cache), "--out", frozen).code == 0
    extra = f"""
        [bank]
        space = "{frozen}"
        [tune]
        preset = "paper-swapped"
        pool_seeds = true
    """
    config = write_config(tmp_path / "run.toml", cache, seeds="[0, 1]", data="val_by_seed = true", extra=extra)
    assert set(run_command(config, out)) == {0, 1}
    tables = [
        {part: OutputsTable.read(out / f"seed-{s}/outputs/{part}.safetensors") for part in SPLITS} for s in (0, 1)
    ]
    assert not set(tables[0]["val"].ids) & set(tables[1]["val"].ids)
    assert tables[0]["test"].ids == tables[1]["test"].ids
    gates = [json.loads((out / f"seed-{seed}" / "gate.json").read_text()) for seed in (0, 1)]
    assert gates[0]["cases"] == gates[1]["cases"]
    assert gates[0]["cases"]["rows"] == sum(len(each["val"]) for each in tables)
    assert gates[0]["best"] == gates[1]["best"]
    assert [gate["out_of_fold"]["left_out"] for gate in gates] == ["seed", "seed"]

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    capsys.readouterr()
    run_command(config, out)
    assert capsys.readouterr().out.count("up to date") == 10  # tables, bank, gate, model and evaluation of each seed
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == before
    for command in ("tune", "evaluate"):
        planned = json.loads(tdumpra(command, config, "--out", out, "--plan", "--json").out)
        assert [cell["finished"] for cell in planned["cells"]] == [True, True]

    model = Model.read(out / "seed-1" / "model.safetensors")
    assert model.retrieval is not None
    assert model.retrieval.network.frozen
    manifest = open_source(SOURCE)
    test = set(tables[1]["test"].ids)
    record = next(record for record in manifest.records if record.id in test)
    Image.fromarray(manifest.reader(record)).save(tmp_path / "image.png")
    (row,) = json.loads(tdumpra("predict", out / "seed-1", tmp_path / "image.png", "--json").out)
    splits = table_outputs(read_config(out / "seed-1" / "config.toml"), tables[1], 1)
    place = tables[1]["test"].ids.index(record.id)
    (expected,) = model.decision.decide(splits.test.p[[place]], splits.test.z[[place]]).p.tolist()
    assert list(row["probabilities"].values()) == pytest.approx(expected, abs=1e-5)


# --- results apart from the run


def test_results_may_lie_apart_from_the_run(tdumpra, tmp_path, cache):
    out, results = tmp_path / "run", tmp_path / "results"
    config = write_config(tmp_path / "run.toml", cache, folder=out, extra="[tune]\npreset = 'paper'")
    assert tdumpra("embed", config).code == 2  # nothing was trained yet
    run_command(config, None, quiet=True)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    done = tdumpra("evaluate", config, "--out", results, "--json")
    assert done.code == 0, done.err
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    by_run = json.loads((out / "evaluation.json").read_text())
    assert json.loads(done.out)["comparators"] == by_run["comparators"]
    assert (results / "evaluation.json").exists()
    assert not (results / "outputs").exists()
    here = tdumpra("tune", config, "--out", out, "--json")  # the run's own folder, named
    assert json.loads(here.out)["decision"] == json.loads((out / "gate.json").read_text())["decision"]


def test_a_folder_without_tables_is_no_run_wherever_it_is_named(tdumpra, config, tmp_path):
    done = tdumpra("evaluate", config, "--out", tmp_path / "nowhere")
    assert done.code == 2
    assert f"{tmp_path / 'nowhere'}" in done.err
    assert "run tdumpra train and tdumpra embed first" in " ".join(done.err.split())


def test_another_run_is_compared_with_as_it_is_now(tdumpra, tmp_path, finished, cache):
    """A baseline that is made anew changes what was measured against it."""
    (_, first), second = finished(), tmp_path / "second"
    changes = {"train": "label_smoothing = 0.1", "evaluate": f"baseline = '{first}'"}
    config = write_config(tmp_path / "second.toml", cache, **changes, extra="[tune]\npreset = 'paper'")
    scored = [run_command(config, second, quiet=True)[0]["comparators"]]
    student = json.loads((first / "evaluation.json").read_text())["comparators"]["student"]
    assert scored[0]["baseline"] == pytest.approx(student)
    path = first / "outputs" / "test.safetensors"
    table = OutputsTable.read(path)
    replace(table, logits=table.logits.roll(1, 1), identity={**table.identity, "encoder": "other"}).write(path)
    evaluated = json.loads(tdumpra("evaluate", config, "--out", second, "--json").out)
    assert evaluated["comparators"]["baseline"] != pytest.approx(student)
    scored.append(run_command(config, second, quiet=True)[0]["comparators"])
    assert scored[1]["baseline"] == pytest.approx(evaluated["comparators"]["baseline"])
    assert scored[1]["gate"] == scored[0]["gate"]


def test_another_configurations_model_is_not_written_over(tmp_path, finished, cache):
    first, _ = finished()
    before = {
        name: (tmp_path / "run" / name).read_bytes() for name in ("model.safetensors", "config.toml", "gate.json")
    }
    second = write_config(tmp_path / "second.toml", cache, name="second", extra='[tune]\nobjective = "nll"')
    with pytest.raises(TdumpraError, match=r"holds the results of 'tiny'.* tdumpra evaluate CONFIG"):
        run_command(second, tmp_path / "run", quiet=True)
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before} == before
    run_command(first, tmp_path / "run", quiet=True)  # its own it may


def test_tables_of_other_settings_are_not_scored_under_these(tdumpra, finished):
    path, _ = finished()
    assert tdumpra("evaluate", path).code == 0
    path.write_text(path.read_text() + "\n[embed]\nviews = 2\n")
    for command in ("evaluate", "tune", "bank", "sweep"):
        done = tdumpra(command, path)
        assert (done.code, "embed.views = 1, and it is 2 now" in done.err) == (2, True), command
    assert tdumpra("embed", path).code == 0
    assert tdumpra("evaluate", path).code == 0


def test_a_model_of_another_gate_is_told(tdumpra, finished):
    path, _ = finished()
    same = tdumpra("evaluate", path)
    assert (same.code, "another gate" in same.out) == (0, False)
    path.write_text(path.read_text() + '\n[tune]\npreset = "paper"\n')
    done = tdumpra("evaluate", path)
    assert done.code == 0
    assert "decides by another gate than was scored here: tdumpra run makes it anew" in " ".join(done.out.split())
    run_command(path, None, quiet=True)
    assert "another gate" not in tdumpra("evaluate", path).out


def test_another_configurations_evaluation_is_not_written_over(tdumpra, tmp_path, finished, cache):
    first, _ = finished()
    before = (tmp_path / "run" / "evaluation.json").read_bytes()
    changes = {"name": "second", "folder": tmp_path / "run"}
    second = write_config(tmp_path / "second.toml", cache, **changes, extra='[tune]\nobjective = "nll"')
    gate = (tmp_path / "run" / "gate.json").read_bytes()
    for command in ("evaluate", "tune"):
        refused = tdumpra(command, second)
        assert refused.code == 2
        assert "holds the results of 'tiny', which shares it with 'second'" in refused.err
    assert (tmp_path / "run" / "gate.json").read_bytes() == gate
    assert (tmp_path / "run" / "evaluation.json").read_bytes() == before
    for _ in range(2):  # a folder of its own it may write over
        assert tdumpra("evaluate", second, "--out", tmp_path / "elsewhere").code == 0
    assert json.loads((tmp_path / "elsewhere" / "evaluation.json").read_text())["name"] == "second"
    assert tdumpra("evaluate", first, "--out", tmp_path / "run").code == 0


# --- mistakes and stops


def test_mistakes_are_one_line_and_exit_code_2(tdumpra, finished, tmp_path, cache):
    config, out = finished()
    other = write_config(tmp_path / "other.toml", cache, train="learning_rate = 0.5")
    for arguments, said in [
        (("train", other, "--out", out), "train.learning_rate was 0.0001 and is now 0.5"),
        (("train", tmp_path / "none.toml"), "cannot read"),
        (("embed", config, "--out", tmp_path / "new"), "run tdumpra train first"),
        (("bank", config, "--out", tmp_path / "new"), "tdumpra embed first"),
        (
            ("train", write_config(tmp_path / "b.toml", cache, train="nodez = 1"), "--out", out),
            "unknown key train.nodez; did you mean 'nodes'?",
        ),
    ]:
        done = tdumpra(*arguments)
        assert done.code == 2
        assert said in done.err
        assert done.err.startswith("tdumpra: ")
        assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluate": 'sensitivity_classes = ["melanom"]'}, "sensitivity_classes names 'melanom'; there are "),
        ({"evaluate": 'subgroups = ["hospital"]'}, "subgroups names 'hospital'; there are "),
        ({"evaluate": 'subgroups = ["hospital"]\nmetadata = "none.csv"'}, "none.csv is not a readable .csv table"),
        (
            {"extra": '[tune]\ncertify = true\ncertify_classes = ["melanom"]'},
            "certify_classes names 'melanom'; there are ",
        ),
        ({"extra": '[tune]\nobjective = "cost"'}, "the objective cost needs costs"),
        ({"extra": "[tune]\ncosts = [[0, 1], [1, 0]]"}, "costs are given for 2 classes where there are "),
    ],
)
def test_what_cannot_be_scored_is_refused_before_training(tdumpra, tmp_path, cache, changes, said):
    config = write_config(tmp_path / "run.toml", cache, **changes)
    done = tdumpra("run", config, "--out", tmp_path / "run")
    assert (done.code, said in done.err) == (2, True), done.err
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_is_one_line_and_exit_code_130(tdumpra, config, tmp_path, monkeypatch, number):
    real = Screen.log

    def interrupt(self: Screen, folder: Any, progress: Any, *rest: Any) -> None:
        real(self, folder, progress, *rest)
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patched:
        patched.setattr(Screen, "log", interrupt)
        done = tdumpra("train", config, "--out", tmp_path / "run")
    assert done.code == 130
    assert done.err == "tdumpra: stopped after step 1; the same command goes on from there\n"
    assert tdumpra("train", config, "--out", tmp_path / "run").code == 0


def test_ctrl_c_elsewhere_is_one_line_too(tdumpra, config, tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tdumpra.cli.run.open_data", interrupted)
        done = tdumpra("train", config, "--out", tmp_path / "run")
    assert (done.code, done.err) == (130, "tdumpra: stopped\n")


@pytest.mark.slow
def test_two_processes_from_the_command_line(tmp_path, cache):
    """The engine starts the second process itself, by running the command again."""
    config = write_config(tmp_path / "run.toml", cache, train="devices = 2")
    command = [sys.executable, "-m", "tdumpra", "run", str(config), "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Trained: ") == 1
    assert Model.read(tmp_path / "run" / "model.safetensors").class_names
    # a folder that cannot be had ends both processes
    config = write_config(tmp_path / "run.toml", cache, train="devices = 2\nlearning_rate = 0.5")
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert refused.returncode == 2
    assert refused.stderr.count("was made with other settings") == 1
