"""The command ``predict``, and how it finds its model."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_networks
from PIL import Image
from tests.support import SMALL, fit_and_tune, make_problem
from tiny_config import SOURCE, run_command, write_config

from tdumpra.cli import predict as command
from tdumpra.cli.predict import describe, model_file
from tdumpra.data.sources import open_source
from tdumpra.errors import InputFileError
from tdumpra.networks.model_file import Model
from tdumpra.networks.predict import Predictor
from tdumpra.runtime.prediction import Prediction

pytestmark = pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    out = tmp_path_factory.mktemp("trained")
    run_command(write_config(out / "run.toml", cache), out / "run", quiet=True)
    return out / "run"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    manifest = open_source(SOURCE)
    for i, record in enumerate(manifest.records[:4]):
        folder = root / ("a" if i < 2 else "b")
        folder.mkdir(exist_ok=True)
        Image.fromarray(manifest.reader(record)).save(folder / f"{record.id}.png")
    (root / "readme.txt").write_text("no image")
    return root


def test_predict_shows_a_table(tdumpra, trained, images):
    done = tdumpra("predict", trained, images)
    assert done.code == 0, done.err
    assert done.out.count(".png") == 4
    assert "readme" not in done.out
    assert "the second network looked at" in done.out


def test_predict_as_json_and_csv_say_the_same(tdumpra, trained, images):
    model = trained / "model.safetensors"
    rows = json.loads(tdumpra("predict", model, images, "--json").out)
    table = list(csv.DictReader(io.StringIO(tdumpra("predict", model, images, "--csv", "--eager").out)))
    assert [row["path"] for row in rows] == sorted(str(path) for path in images.rglob("*.png"))
    for row, line in zip(rows, table, strict=True):
        assert (row["path"], row["label"], row["error"]) == (line["path"], line["label"], None)
        assert sum(row["probabilities"].values()) == pytest.approx(1)
        for name, p in row["probabilities"].items():
            assert float(line[f"p_{name}"]) == pytest.approx(p, abs=1e-6)
        assert line["opened"] == str(row["opened"]).lower()
        assert (line["classifier"], line["gate"]) == (row["classifier"], row["gate"])


@pytest.mark.parametrize(
    ("opened", "signals", "classifier", "gate"),
    [
        (True, {"label_cls": 0, "label_sim": 1}, "nv", "moved"),
        (True, {"label_cls": 1, "label_sim": 1}, "mel", "opened"),
        (False, {"label_cls": 1, "label_sim": 0}, "mel", "shut"),
        (False, None, "mel", "shut"),
    ],
)
def test_what_the_gate_did_is_told_by_class_names(opened, signals, classifier, gate):
    found = describe(Prediction("a.png", "mel", {"nv": 0.4, "mel": 0.6}, opened, signals, None), ("nv", "mel"))
    assert (found["label"], found["classifier"], found["gate"]) == ("mel", classifier, gate)
    if signals is not None:
        assert found["signals"]["label_cls"] == classifier


def test_broken_images_are_named_and_refused_only_if_there_is_no_other(tdumpra, trained, images, tmp_path):
    (tmp_path / "bad.png").write_text("no image")
    mixed = tdumpra("predict", trained, images / "a", tmp_path / "bad.png", "--json")
    assert mixed.code == 0
    assert [row["error"] is None for row in json.loads(mixed.out)] == [True, True, False]
    broken = tdumpra("predict", trained, tmp_path / "bad.png")
    assert broken.code == 2
    assert "tdumpra: none of 1 images could be predicted" in broken.err
    (tmp_path / "empty").mkdir()
    empty = tdumpra("predict", trained, tmp_path / "empty")
    assert (empty.code, "holds no image" in empty.err) == (2, True)


def test_files_without_a_prediction_are_named_in_order_and_counted_at_the_end(tdumpra, trained, images, tmp_path):
    for name in ("z.png", "b.png"):
        (tmp_path / name).write_text("no image")
    (tmp_path / "table.csv").write_text("a,b")
    for form in ("--csv", "--json", "--eager"):
        done = tdumpra("predict", trained, images / "a", tmp_path, form)
        assert done.code == 0
        lines = done.err.splitlines()
        assert "2 files could not be predicted" in lines[0]
        assert [Path(line.partition(": ")[2].partition(": ")[0]).name for line in lines[1:3]] == ["b.png", "z.png"]
        assert "1 file in these folders" in lines[3]
        assert lines[4].endswith("table.csv")
        assert len(lines) == 5


def test_a_long_table_is_cut_off_with_a_count(tdumpra, trained, images, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "_MOST_SHOWN", 2)
    monkeypatch.setattr(command, "_MOST_NAMED", 1)
    for name in ("x.png", "y.png", "z.png"):
        (tmp_path / name).write_text("no image")
    done = tdumpra("predict", trained, images, tmp_path)
    assert done.out.count(".png") == 2
    assert "and 5 more images" in done.out
    assert "3 files could not be predicted" in done.err
    assert "and 2 more" in done.err
    assert "y.png" not in done.err


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_predictions_are_printed_and_forgotten(tdumpra, trained, images, monkeypatch, form):
    predict, alive, told = Predictor.predict, [], []

    class Told(dict[str, float]):
        """Probabilities that can be watched."""

    def watched(*arguments: Any, **options: Any) -> Iterator[Prediction]:
        for each in predict(*arguments, **options):
            probabilities = Told(each.probabilities)
            told.append(weakref.ref(probabilities))
            yield each._replace(probabilities=probabilities)
            alive.append(sum(each() is not None for each in told))

    monkeypatch.setattr(Predictor, "predict", watched)
    assert tdumpra("predict", trained, images, form).code == 0
    assert len(alive) == 4
    assert max(alive) <= 2


HEAVY = ("scipy", "pandas", "pyarrow", "sklearn", "lightning_fabric", "torchvision", "timm", "matplotlib", "jinja2")
HEAVY_PARTS = ("torch._dynamo", "torch._inductor", "tdumpra.runs", "tdumpra.evaluation", "tdumpra.tuning")


def imported_by(*arguments: Any) -> set[str]:
    """Return the modules that a command leaves behind, each with those that it lies in."""
    code = (
        "import sys\nfrom tdumpra.cli.main import main\ntry:\n    main()\nfinally:\n    print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_predict_loads_nothing_that_it_does_not_need(trained, images):
    first = min(images.rglob("*.png"))
    loaded = imported_by("predict", trained, first, "--csv", "--trust-code", "tiny_networks:plain")
    assert "torch" in loaded
    assert loaded.isdisjoint({*HEAVY, *HEAVY_PARTS})


def test_help_loads_neither_arrays_nor_networks():
    loaded = imported_by("--help")
    assert "tdumpra.cli.main" in loaded
    assert loaded.isdisjoint({"numpy", "torch", "PIL", *HEAVY})


def test_lines_of_csv_come_as_they_are_known(tdumpra, trained, images, monkeypatch):
    predict = Predictor.predict

    def stopped(*arguments: Any, **options: Any) -> Iterator[Prediction]:
        yield next(predict(*arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(Predictor, "predict", stopped)
    done = tdumpra("predict", trained, images, "--csv")
    assert done.code == 130
    assert [line.split(",")[0] for line in done.out.splitlines()] == ["path", str(min(images.rglob("*.png")))]


def test_a_bar_on_a_terminal_leaves_the_output_alone(trained, images, tmp_path):
    ours, theirs = os.openpty()
    with (tmp_path / "out.csv").open("wb") as out:
        words = [sys.executable, "-m", "tdumpra", "predict", str(trained), str(images), "--csv"]
        words += ["--trust-code", "tiny_networks:plain"]
        done = subprocess.run(
            words,
            stdout=out,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.returncode == 0, shown
    assert "predicting" in shown
    assert (tmp_path / "out.csv").read_text().count(".png") == 4


HOSTILE = "=cmd\x1b]0;mine\x07"  # a formula for a spreadsheet, and a new title for the terminal


def test_names_of_files_and_classes_reach_neither_terminal_nor_spreadsheet(
    tdumpra, trained, images, tmp_path, monkeypatch
):
    picture = next(images.rglob("*.png")).read_bytes()
    (tmp_path / "in").mkdir()
    for name in (f"{HOSTILE}.png", f"@{HOSTILE}.jpg"):
        (tmp_path / "in" / name).write_bytes(picture if name.endswith("png") else b"no image")
    model = Model.read(trained / "model.safetensors")
    names = (HOSTILE, *model.class_names[1:])
    replace(model, class_names=names).write(tmp_path / "m.safetensors")
    for flags in ((), ("--csv",), ("--json",)):
        done = tdumpra("predict", tmp_path / "m.safetensors", tmp_path / "in", *flags)
        assert done.code == 0, done.err
        assert "\x1b]0;" not in done.out + done.err
        assert "\x07" not in done.out + done.err
    monkeypatch.chdir(tmp_path / "in")
    rows = list(csv.reader(io.StringIO(tdumpra("predict", tmp_path / "m.safetensors", *os.listdir(), "--csv").out)))
    assert len(rows) == 3
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "@", "+"))]


@pytest.mark.filterwarnings("default")
def test_masks_that_do_not_fit_are_told(tdumpra, trained, images, tmp_path):
    paths = sorted(images.rglob("*.png"))
    (tmp_path / "none").mkdir()
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / f"{paths[0].stem}.png").touch()
    done = tdumpra("predict", trained, images, "--masks", tmp_path / "some")
    assert (done.code, "their masks change nothing" in done.err) == (0, True)
    done = tdumpra("predict", trained, images, "--masks", tmp_path / "none")
    assert (done.code, "holds no mask of any of the 4 images; a mask is named like" in done.err) == (2, True)
    done = tdumpra("predict", trained, images, "--masks", tmp_path / "nowhere")
    assert (done.code, "is no folder" in done.err) == (2, True)


def test_what_is_no_model_is_refused(tdumpra, trained, images):
    for other, said in ((trained / "bank.safetensors", "a model is needed"), (trained / "none", "does not exist")):
        done = tdumpra("predict", other, images)
        assert done.code == 2
        assert said in done.err
        assert done.err.count("\n") == 1
    assert tdumpra("predict", trained, images, "--json", "--csv").code == 2


def test_a_model_of_arrays_is_told_what_it_is(tdumpra, images, tmp_path):
    fit_and_tune(make_problem(), preset=SMALL).save(tmp_path / "model.safetensors")
    done = tdumpra("predict", tmp_path, images)
    assert done.code == 2
    assert "it was made from saved arrays and has no network to look at images with" in done.err
    assert "DualPathClassifier.load" in done.err


def test_the_folder_of_another_number_of_seeds_is_answered_with_the_right_one(tmp_path):
    several, one = tmp_path / "several", tmp_path / "one"
    for folder in (several / "seed-0", several / "seed-1", one):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").touch()
    assert model_file(one) == model_file(one / "model.safetensors") == one / "model.safetensors"
    (tmp_path / "part" / "seed-2").mkdir(parents=True)
    (tmp_path / "part" / "seed-2" / "model.safetensors").touch()
    assert model_file(tmp_path / "part") == tmp_path / "part" / "seed-2" / "model.safetensors"
    for path in (several, several / "model.safetensors"):
        with pytest.raises(InputFileError, match=r"is a run of several seeds: name one, .*seed-0/.* or .*seed-1/model"):
            model_file(path)
    for path in (one / "seed-0", one / "seed-0" / "model.safetensors"):
        with pytest.raises(
            InputFileError, match=r"a run of one seed lies in its own folder, .*one/model\.safetensors$"
        ):
            model_file(path)
    for path, sentence in (
        (tmp_path / "none", "none does not exist$"),
        (tmp_path, r"holds no model\.safetensors: run  tdumpra run  to its end$"),
        (tmp_path / "other.safetensors", r"other\.safetensors does not exist"),
    ):
        with pytest.raises(InputFileError, match=sentence):
            model_file(path)


STUCK = """
import hashlib, importlib.util, os
spec = importlib.util.spec_from_file_location("usual_networks", os.environ["USUAL"])
usual = importlib.util.module_from_spec(spec)
spec.loader.exec_module(usual)


class Stuck(usual.Tiny):
    def forward(self, x):
        if len(x) == 16:  # a batch, and not the picture that tells how many features there are
            open(os.path.join(os.path.dirname(__file__), "began"), "w").close()
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # minutes, in which no signal is heard
        return super().forward(x)


def plain(num_classes):
    return Stuck(num_classes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
def test_ctrl_c_waits_for_no_network(trained, images, tmp_path):
    """The process says so and ends, with its workers, in the middle of a pass."""
    (tmp_path / "tiny_networks.py").write_text(STUCK)
    python_path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "USUAL": str(tiny_networks.__file__), "PYTHONPATH": python_path}
    words = [sys.executable, "-m", "tdumpra", "predict", str(trained), *[str(images)] * 12, "--csv"]
    process = subprocess.Popen(
        [*words, "--trust-code", "tiny_networks:plain"], env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heed_ctrl_c,
    )  # fmt: skip
    while not (tmp_path / "began").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == "tdumpra: stopped\n"
    assert out.startswith("path,")
    assert not members_of(process.pid)


def heed_ctrl_c() -> None:
    """As in a terminal: what a shell runs in the background ignores Ctrl-C, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def members_of(session: int) -> list[str]:
    """Return the processes of a session, but for those that have ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, its, *_ = path.read_text().rpartition(")")[2].split()
            if int(its) == session and state != "Z":
                found.append(path.parent.name)
    return found
