"""MLflow itself: a folder is logged, and a saved model loads and predicts in another process, without a pickle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_config import run_command, write_config

from tdumpra.errors import ArtifactError, InputFileError
from tdumpra.integrations.mlflow import log_run, save_model
from tdumpra.networks.predict import Predictor

pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("default")]  # MLflow has warnings of its own

_ELSEWHERE = """
import json, sys
import mlflow.pyfunc, pandas as pd
model = mlflow.pyfunc.load_model(sys.argv[1])
by_path = model.predict(pd.DataFrame({"path": sys.argv[2:]}))
by_bytes = model.predict(pd.DataFrame({"image": [open(path, "rb").read() for path in sys.argv[2:]]}))
print(json.dumps([by_path.to_dict("records"), by_bytes.to_dict("records")]))
"""


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    """A tracking store of the test's own."""
    import mlflow

    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    yield
    mlflow.set_tracking_uri("")


def test_a_saved_model_predicts_in_another_process(model, model_path, images, tmp_path):
    folder = save_model(model_path, tmp_path / "saved", trusted=["tiny_networks:plain"])
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes <= {"", ".py", ".safetensors", ".txt", ".yaml"}  # and no pickle
    assert (folder / "artifacts" / "model.safetensors").read_bytes() == model_path.read_bytes()
    paths = os.pathsep.join(each for each in sys.path if each)
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, str(folder), *map(str, images)], env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    by_path, by_bytes = json.loads(done.stdout.splitlines()[-1])
    for row, same, expected in zip(by_path, by_bytes, Predictor(model).predict(images), strict=True):
        assert row["label"] == same["label"] == expected.label
        assert row["opened"] == expected.opened
        for name, p in expected.probabilities.items():
            assert row[f"p_{name}"] == pytest.approx(p, abs=1e-6)


def test_an_altered_model_is_refused_when_mlflow_loads_it(model_path, tmp_path):
    import mlflow.pyfunc

    folder = save_model(model_path, tmp_path / "saved", trusted=["tiny_networks:plain"])
    sealed = folder / "artifacts" / "model.safetensors"
    data = bytearray(sealed.read_bytes())
    data[-5] ^= 1
    sealed.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match="checksum"):
        mlflow.pyfunc.load_model(str(folder))


def test_code_that_nobody_trusted_is_not_called(model_path, tmp_path, monkeypatch):
    import mlflow.pyfunc

    from tdumpra.errors import UntrustedCodeError
    from tdumpra.networks import model_file

    monkeypatch.setattr(model_file, "OWN_FACTORIES", frozenset())
    with pytest.raises(UntrustedCodeError):
        mlflow.pyfunc.load_model(str(save_model(model_path, tmp_path / "saved")))


def test_a_run_is_logged_with_settings_figures_curves_and_files(tmp_path):
    import mlflow

    run = tmp_path / "run"
    run_command(write_config(tmp_path / "tiny.toml", tmp_path / "cache"), run, quiet=True)
    evaluation = json.loads((run / "evaluation.json").read_text())
    logged = mlflow.get_run(log_run(run))
    assert logged.info.run_name == "tiny"
    assert logged.data.params["train.epochs"] == "2"
    assert logged.data.metrics["gate.accuracy"] == pytest.approx(evaluation["comparators"]["gate"]["accuracy"])
    low, high = evaluation["intervals"]["gate"]["accuracy"]
    assert (logged.data.metrics["gate.accuracy.low"], logged.data.metrics["gate.accuracy.high"]) == (low, high)
    client = mlflow.MlflowClient()
    assert len(client.get_metric_history(logged.info.run_id, "train.loss")) > 2
    files = {each.path for each in client.list_artifacts(logged.info.run_id)}
    assert {"evaluation.json", "gate.json", "config.toml"} <= files
    assert not files & {"checkpoints", "outputs", "cache"}
    models = mlflow.search_logged_models(output_format="list")
    assert [each.source_run_id for each in models] == [logged.info.run_id]


def test_what_is_no_finished_run_is_refused(model_path, tmp_path):
    with pytest.raises(InputFileError, match=r"no evaluation\.json"):
        log_run(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    with pytest.raises(InputFileError, match="there already"):
        save_model(model_path, tmp_path / "there")
    (Path(tmp_path) / "no.safetensors").write_bytes(b"no model")
    with pytest.raises(ArtifactError):
        save_model(tmp_path / "no.safetensors", tmp_path / "new")
