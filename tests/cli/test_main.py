"""The command line as a user meets it: real processes where that matters, exit codes, and one line for a mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from tests.support import save_problem

from tdumpra.cli.main import main
from tdumpra.errors import InputFileError


def process(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tdumpra", *(str(argument) for argument in arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1", **environment},
        check=False,
    )


def one_line(code: int, said: str) -> str:
    assert code == 2, said
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if line.strip()]
    assert len(lines) == 1, said
    return lines[0]


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory):
    return save_problem(tmp_path_factory.mktemp("demo") / "outputs.npz")


def test_attach_prints_the_table_and_the_story(demo_file, tmp_path):
    result = process("attach", demo_file, "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    for word in ("student", "logit_adjusted", "oracle", "macro-F1", "fixed", "broken", "McNemar", "were tried on"):
        assert word in result.stdout
    assert (tmp_path / "run" / "evaluation.json").exists()
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_json_is_all_that_is_printed(tdumpra, demo_file, tmp_path):
    result = tdumpra("attach", demo_file, "--out", tmp_path, "--json", "--preset", "paper")
    assert json.loads(result.out)["gate"]["thresholds"]["alpha"] in (0.9, 1.0)  # 1.0: left shut


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("attach", "{demo}", "--preset", "papr"),
            "tune.preset must be one of 'default', 'free', 'paper'",
        ),
        (("attach", "{demo}", "--objective", "luck"), "objective must be one of"),
        (("attach", "{demo}", "--n-prototypes", "0"), "n_prototypes must be at least 1, not 0"),
        (("data", "audit", "ham10000:nowhere"), "nowhere"),
        (("bench",), "benchmarks are part of the source checkout"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tdumpra, demo_file, tmp_path, monkeypatch, arguments, sentence):
    filled = [str(argument).format(demo=demo_file) for argument in arguments]
    monkeypatch.chdir(tmp_path)
    done = tdumpra(*filled)
    assert sentence in one_line(done.code, done.err)
    assert not (tmp_path / "runs").exists()


def test_a_process_ends_with_one_line_and_exit_code_2(tmp_path):
    result = process("attach", "none.npz", cwd=tmp_path)
    assert "none.npz does not exist" in one_line(result.returncode, result.stderr)


def test_a_traceback_on_request(tdumpra, monkeypatch):
    monkeypatch.setenv("TDUMPRA_TRACEBACK", "1")
    with pytest.raises(InputFileError, match=r"none\.npz does not exist"):
        tdumpra("attach", "none.npz")


def test_what_nobody_foresaw_says_where_to_look(demo_file, tmp_path, monkeypatch, capsys):
    def broken(*_: object, **__: object) -> None:
        int("x")  # raised by no sentence of ours

    def refused(*_: object, **__: object) -> None:
        np.array([1, 2]).reshape(3)

    sentence = "unexpected; TDUMPRA_TRACEBACK=1 shows where it comes from"
    monkeypatch.setattr(sys, "argv", ["tdumpra", "attach", str(demo_file), "--out", str(tmp_path)])
    for fails in (broken, refused):
        with monkeypatch.context() as patched:
            patched.setattr("tdumpra.cli.experiments.saved_run", fails)
            with pytest.raises(SystemExit) as ended:
                main()
        assert ended.value.code == 2
        assert sentence in " ".join(capsys.readouterr().err.split())
    monkeypatch.setattr(sys, "argv", ["tdumpra", "attach", "none.npz"])
    with pytest.raises(SystemExit):
        main()
    assert sentence not in capsys.readouterr().err


def test_groups_that_cross_are_refused(tdumpra, demo_file, tmp_path):
    arrays = dict(np.load(demo_file))
    arrays["group"][:] = arrays["group"][0]
    np.savez(tmp_path / "crossing.npz", allow_pickle=False, **arrays)
    done = tdumpra("attach", tmp_path / "crossing.npz", "--out", tmp_path / "run")
    assert "groups cross the splits" in one_line(done.code, done.err)


def test_the_version_is_said():
    result = process("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("tdumpra ")


def test_help_does_not_wait_for_torch():
    code = "import sys, tdumpra.cli.main; print([name for name in ('torch', 'numpy', 'pandas') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_help_groups_the_commands():
    shown = process("--help").stdout
    words = ("─ Start here", "│ demo", "─ Stages", "│ train", "─ Experiments", "│ ablate", "─ Models", "│ predict")
    places = [shown.index(word) for word in words]
    assert places == sorted(places)
    assert "│ data" in shown[shown.index("─ Data") :]


def test_every_kind_of_source_is_named():
    from tdumpra.cli.options import SourceArgument
    from tdumpra.data.sources import SOURCE_KINDS

    _, argument = get_args(SourceArgument)
    assert ", ".join(SOURCE_KINDS) in argument.help


@pytest.mark.parametrize("stage", ["run", "train", "embed", "bank"])
def test_a_bad_configuration_is_told_before_anything_heavy_is_loaded(tmp_path, monkeypatch, capsys, stage):
    (tmp_path / "bad.toml").write_text("nodez = 1\n")
    for module, name, sentence in (
        ("tdumpra.runs.config", "none.toml", "cannot read"),
        ("tdumpra.cli.run", "bad.toml", "unknown key nodez"),
    ):
        monkeypatch.setattr(sys, "argv", ["tdumpra", stage, str(tmp_path / name)])
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, module, None)  # an import of it would fail
            with pytest.raises(SystemExit, match="2"):
                main()
        assert sentence in capsys.readouterr().err
