"""The demo as a newcomer meets it: interrupted, resumed, run again, and put where it must not go."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from parsed_page import parse
from plain_charts import drawn_plainly

from tdumpra.cli import main as cli
from tdumpra.cli.demo import claim_folder, demo_command, demo_config, stop_in_a_sentence
from tdumpra.errors import StopRequestedError, TdumpraError
from tdumpra.networks.predict import Predictor
from tdumpra.report.summary import VERDICTS, verdict

EPOCHS = 6
SMALL = ("--images", "200", "--epochs", str(EPOCHS))


def start(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tdumpra", "demo", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def in_this_process(*arguments: object) -> tuple[int, str, str]:
    """Run a demo to its end, without the seconds that a new process takes."""
    out, err = io.StringIO(), io.StringIO()
    quiet = warnings.catch_warnings(action="default")  # they are notes to a user
    with pytest.MonkeyPatch.context() as patch, quiet, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["tdumpra", "demo", *map(str, arguments)])
        patch.setattr("tdumpra.report.drawing.Chart._saved", drawn_plainly)
        patch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as end:
            cli.main()
    torch.use_deterministic_algorithms(False)
    return int(end.value.code or 0), out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """Interrupted in the middle of training, run to its end, and run once more."""
    folder = tmp_path_factory.mktemp("newcomer") / "demo"
    process = start("--out", folder, *SMALL)
    wait_for(folder / "checkpoints" / "last.safetensors", process)
    process.send_signal(signal.SIGINT)
    interrupted = finish(process)
    steps = sum('"validation"' in line for line in (folder / "metrics.jsonl").read_text().splitlines())
    resumed = in_this_process("--out", folder, *SMALL)
    again = in_this_process("--out", folder, *SMALL, "--json")
    return folder, interrupted, steps, resumed, again


def test_ctrl_c_ends_in_a_sentence(stories):
    _, (code, _, err), epochs, _, _ = stories
    assert code == 130
    assert "the same command goes on from there" in err
    assert 1 <= epochs < EPOCHS


def test_the_same_command_goes_on_to_the_table_and_the_story(stories):
    folder, _, epochs, (code, out, err), _ = stories
    assert code == 0, err
    assert f"epoch {epochs}," not in out  # what was trained is not trained again
    assert f"epoch {EPOCHS}," in out
    flat = " ".join(out.split())
    for word in ("student", "temperature", "logit_adjusted", "similarity", "gate", "best possible", "test images"):
        assert word in flat
    assert "ambiguous images" in flat
    assert f"Report: {folder / 'report' / 'index.html'}" in out
    assert "tdumpra attach" in out
    assert (folder / "report" / "index.html").exists()


def test_a_second_run_prints_the_same_as_json_and_nothing_else(stories):
    folder, _, _, (_, out, _), (code, printed, err) = stories
    assert code == 0, err
    again = json.loads(printed)
    assert again["unchanged"]
    assert again["folder"] == str(folder)
    evaluation: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    evaluation = evaluation.get("content", evaluation)
    assert again["gate"]["fixed"] == evaluation["gate"]["fixed"]
    for name in ("student", "gate"):
        assert again["table"][name]["accuracy"] == evaluation["comparators"][name]["accuracy"]
        assert f"{again['table'][name]['accuracy']:.3f}" in out
    assert all(sentence in out for sentence in again["story"])


def test_terminal_and_report_say_the_same(stories):
    folder, _, _, _, (_, printed, _) = stories
    found = json.loads(printed)
    page = parse((folder / "report" / "index.html").read_text())
    assert found["story"][0] == page.one("h1").text
    (row,) = [row for row in page.one("section", id="parts").all("tr") if row.all("th")[0].text == "yes"]
    part = found["ambiguous"]
    assert row.all("td")[0].text == f"{part['n']:,}"
    assert row.all("td")[1].text == f"{part['opened']:,}"
    assert row.all("td")[2].text.startswith(f"{part['fixed']:,} : {part['broken']:,}")
    assert VERDICTS[verdict(part)] in row.all("td")[2].text
    assert page.one("section", id="summary").text.count("ambiguous") == 0  # the word is the data's alone


def test_the_model_predicts_the_pictures_that_the_demo_leaves(stories):
    paths = sorted((stories[0] / "pictures").iterdir())
    predictor = Predictor.load(stories[0] / "model.safetensors")
    assert len(paths) == 12
    assert all(path.stem.partition("-")[2] in predictor.model.class_names for path in paths)
    assert all(each.label in predictor.model.class_names for each in predictor.predict(paths))


def test_a_demo_of_other_settings_is_not_written_over(tmp_path):
    claim_folder(tmp_path / "demo", demo_config(tmp_path / "demo", seed=0))
    claim_folder(tmp_path / "demo", demo_config(Path("elsewhere"), seed=0))  # the same demo, called from another place
    with pytest.raises(TdumpraError, match=r"holds a demo of other settings .*seed=0.*, not .*seed=1"):
        claim_folder(tmp_path / "demo", demo_config(tmp_path / "demo", seed=1))


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(TdumpraError, match=r"holds something else than a demo \('thesis.txt'\)"):
        demo_command(tmp_path, seed=0, images=260, epochs=1, as_json=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(TdumpraError, match="cannot use the folder"):
        claim_folder(tmp_path / "thesis.txt", demo_config(tmp_path, seed=0))


def test_too_few_images_or_epochs_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="images must be at least 200, not 50"):
        demo_command(tmp_path / "demo", seed=0, images=50, epochs=None, as_json=False)
    with pytest.raises(ValueError, match="epochs must be at least 1, not 0"):
        demo_command(tmp_path / "demo", seed=0, images=None, epochs=0, as_json=False)
    assert not (tmp_path / "demo").exists()


def test_ctrl_c_outside_training_is_a_sentence_too(tmp_path):
    with pytest.raises(StopRequestedError, match="the same command goes on"), stop_in_a_sentence(tmp_path):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_the_whole_demo_helps_on_ambiguous_images(tmp_path):
    code, out, err = finish(start("--out", tmp_path / "demo", "--json"))
    assert code == 0, err
    found = json.loads(out)
    assert found["ambiguous"]["fixed"] > found["ambiguous"]["broken"]
    for name in ("student", "logit_adjusted"):
        assert found["table"]["gate"]["ambiguous_accuracy"] > found["table"][name]["ambiguous_accuracy"]
