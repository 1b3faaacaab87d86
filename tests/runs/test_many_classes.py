"""Many classes: all that a run of saved outputs writes stays of bounded size, and says what it left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tdumpra.artifacts import read_json
from tdumpra.cli.main import app
from tdumpra.estimator import DualPathClassifier

pytestmark = [
    pytest.mark.filterwarnings("ignore:n_prototypes"),
    pytest.mark.filterwarnings("ignore:.*has no usable"),
]

N_CLASSES = 120  # more than have curves, operating points, matrices and pictures of their own


def write_outputs(path: Path, n_classes: int, by_split: tuple[int, int, int], width: int = 16) -> Path:
    """Write a classifier's outputs that retrieval can help, with so many rows of each class in each split."""
    rng = np.random.default_rng(0)
    split = np.repeat([0, 1, 2], [n_classes * each for each in by_split])
    y = np.concatenate([np.tile(np.arange(n_classes), each) for each in by_split])
    logits = rng.normal(size=(len(y), n_classes))
    logits[np.arange(len(y)), y] += 3.5
    p = np.exp(logits)
    z = rng.normal(size=(n_classes, width))[y] + 0.5 * rng.normal(size=(len(y), width))
    p = (p / p.sum(1, keepdims=True)).astype(np.float32)
    np.savez(path, p=p, z=z.astype(np.float32), y=y, split=split)
    return path


def attached(path: Path, out: Path, *more: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["attach", str(path), "--out", str(out), *more])
    assert result.exit_code == 0, result.output
    return read_json(out / "evaluation.json", kind="evaluation", schema=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    attached(write_outputs(root / "outputs.npz", N_CLASSES, (4, 2, 2)), root / "out")
    return root / "out"


def test_every_class_has_its_figures_and_what_is_left_out_is_said(folder):
    found = read_json(folder / "evaluation.json", kind="evaluation", schema=1)
    assert len(found["per_class"]["gate"]) == N_CLASSES
    assert "operating_points" not in found
    assert [note for note in found["notes"] if "sensitivity_classes" in note]
    assert [note for note in found["notes"] if "AUROC" in note]
    low, high = found["intervals"]["gate"]["macro_auroc"]
    assert 0.5 < low < found["comparators"]["gate"]["macro_auroc"] < high <= 1
    assert found["comparators"]["similarity"]["accuracy"] > 0.5


def test_notes_name_a_few_classes_and_count_the_others(folder):
    notes = read_json(folder / "evaluation.json", kind="evaluation", schema=1)["notes"]
    (small,) = [note for note in notes if note.startswith("validation is small")]
    assert "class 0 has 2, class 1 has 2" in small
    assert f"class 7 has 2, and {N_CLASSES - 8} more" in small
    assert max(map(len, notes)) < 600


def test_files_stay_small(folder):
    sizes = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert sizes["evaluation.json"] < 6e5
    assert sizes["compared.json"] < 2e6
    assert sizes["index.html"] < 1e6  # a matrix of 120 × 120 as a table, three times over, would be three times as much


def test_the_page_lists_pairs_instead_of_matrices(folder):
    page = (folder / "report" / "index.html").read_text()
    assert f"With {N_CLASSES} classes a matrix cannot be read on a page" in page
    assert 'id="operating_points"' not in page


@pytest.mark.slow
def test_a_thousand_classes(tmp_path):
    path = write_outputs(tmp_path / "outputs.npz", 1000, (12, 4, 4), width=64)
    found = attached(path, tmp_path / "out")
    assert len(found["per_class"]["gate"]) == 1000
    assert found["comparators"]["knn"]["accuracy"] > 0.5
    assert (tmp_path / "out" / "report" / "index.html").stat().st_size < 15e6


@pytest.mark.slow
def test_a_thousand_classes_as_arrays(tmp_path):
    with np.load(write_outputs(tmp_path / "outputs.npz", 1000, (6, 4, 2), width=64)) as arrays:
        (p, z, y), split = (arrays[name] for name in ("p", "z", "y")), arrays["split"]
    train, val, test = (split == code for code in range(3))
    model = DualPathClassifier().fit(z[train], y[train]).tune(p[val], z[val], y[val])
    assert model.decision_.bank.n_classes == 1000
    moved = model.predict(p[test], z[test])
    alone = p[test].argmax(1)
    assert (moved != alone).any()
    assert (moved == y[test]).mean() > (alone == y[test]).mean()
