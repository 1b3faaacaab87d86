"""``make model``: its configurations fit together, and its commands write a model and a card."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tdumpra.models.opened import open_model
from tdumpra.runs.config import read_config

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "network.backbone=tiny_networks:plain", "network.weights=none", "network.image_size=16", "network.embedding=8",
    "train.epochs=1", "train.batch_size=16", "train.precision=32-true", "train.accelerator=cpu", "data.workers=0",
    "data.framing.height=16", "data.framing.width=16", "evaluate.bootstrap=20",
)  # fmt: skip


def commands(*variables: str) -> list[list[str]]:
    """What the target would run, without the making of its environment."""
    shown = subprocess.run(
        ["make", "-n", "model", *variables], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    found = re.findall(r"^(?:test -e \S+ \|\| )?\S*/bin/tdumpra (.*)$", shown, re.MULTILINE)
    return [shlex.split(line) for line in found]


@pytest.fixture(autouse=True)
def _make_is_here() -> None:
    if shutil.which("make") is None:
        pytest.skip("needs make")


def test_data_is_a_variable():
    train, embed, run, card = commands("DATA=elsewhere/HAM10000")
    assert [each[0] for each in (train, embed, run, card)] == ["train", "embed", "run", "card"]
    assert train[1] == embed[1] != run[1]
    for each in (train, embed, run):
        assert "data.source=ham10000:elsewhere/HAM10000" in each
    second, system = read_config(ROOT / train[1]), read_config(ROOT / run[1])
    assert system.bank.space == f"runs/{second.name}"
    assert card[1] == f"runs/{system.name}"
    assert (second.data, second.seeds, second.embed) == (system.data, system.seeds, system.embed)
    assert second.network.backbone != system.network.backbone


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:n_prototypes=\d is more than")
@pytest.mark.filterwarnings("ignore:validation is small")
def test_its_commands_write_a_model_and_a_card(tdumpra, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").symlink_to(ROOT / "studies")
    for command in commands("SOURCE=synthetic:n=240,size=32", f"SET={' '.join(SMALL)}"):
        ran = tdumpra(*command)
        assert ran.code == 0, ran.err
    folder = tmp_path / "runs" / "ham10000-model"
    model = open_model(folder / "model.safetensors")
    assert model is not None
    assert "ham10000-model" in (folder / "model-card.md").read_text(encoding="utf-8")
