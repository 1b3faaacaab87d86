"""The runtime needs NumPy, Pillow and ONNX Runtime, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from exported_models import write_pictures

import tdumpra
from tdumpra.networks.predict import Predictor

ROOT = Path(tdumpra.__file__).parents[2]

# What our own package and the three libraries may import; everything else that is installed is not there.
BLOCKER = """
import sys

ALLOWED = {"tdumpra", "numpy", "PIL", "onnxruntime", "flatbuffers", "google", "coloredlogs", "humanfriendly"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and top not in sys.stdlib_module_names and not top.startswith("_"):
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)

sys.meta_path.insert(0, Blocker())
try:
    import torch
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("torch is there")
"""

PREDICT = """
import json, sys
from tdumpra.runtime import ExportedPredictor

found = ExportedPredictor.load(sys.argv[1], threads=1).predict(sys.argv[2:])
print(json.dumps([[each.label, each.opened, each.error, each.probabilities] for each in found]))
"""


def predictions(python: str, code: str, exported: Path, images: list[Path], **environment: str):
    command = [python, "-c", code, str(exported), *map(str, images)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found, made, images):
    expected = list(Predictor.load(made.model, device="cpu").predict(images))
    for (label, opened, error, probabilities), other in zip(found, expected, strict=True):
        assert (label, opened, error) == (other.label, other.opened, other.error)
        assert probabilities == pytest.approx(other.probabilities, abs=1e-5)


@pytest.mark.parametrize("kind", ["one", "two"])
def test_where_importing_anything_else_fails(request, kind, tmp_path):
    made = request.getfixturevalue(kind)
    images = write_pictures(tmp_path, 20)
    images[4].write_bytes(b"no picture")
    found = predictions(sys.executable, BLOCKER + PREDICT, made.exported, images, PYTHONPATH=str(ROOT / "src"))
    check(found, made, images)


@pytest.mark.services
def test_in_an_environment_of_its_own(two, tmp_path):
    """Installed from the package index with the three libraries, as a user would."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    assert uv is not None
    folder, images = tmp_path / "venv", write_pictures(tmp_path / "images", 20)
    python = str(folder / "bin" / "python")
    install = [uv, "pip", "install", "--quiet", "--python", python]
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
        [*install, "numpy", "pillow", "onnxruntime"],
        [*install, "--no-deps", str(ROOT)],
    ):
        subprocess.run(command, check=True, timeout=300)
    assert subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode != 0
    check(predictions(python, PREDICT, two.exported, images), two, images)
