"""Data that change after a run: what was made from the older ones is refused or made again, never mixed in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_runs import SIZE, launched, settings, silent

from tdumpra.data.dataset import open_data
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.experiments import ablate
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.pixel_stages import embed_stage, train_and_embed, train_stage
from tdumpra.runs.steps import run
from tdumpra.runs.tables import OutputsTable

pytestmark = pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")


def draw(folder: Path, *, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for i in range(60):
        pixels = rng.integers(0, 120, (SIZE, SIZE, 3)) + 60 * (i // 2 % 3)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"i{i}.png")


def write_table(folder: Path, *, sex: str = "f", classes: int = 3, more: str = "") -> None:
    heading = f"image,label,group,sex{',' + more if more else ''}"
    rows = [f"i{i}.png,{i // 2 % classes},g{i // 2},{sex}{',here' if more else ''}" for i in range(60)]
    (folder / "cases.csv").write_text("\n".join([heading, *rows]) + "\n")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    draw(tmp_path)
    write_table(tmp_path)
    base = settings(epochs=1)
    source = replace(base.data, source=f"csv:{tmp_path / 'cases.csv'}", cache=str(tmp_path / "cache"))
    return replace(base, data=source, folder=str(tmp_path / "run"))


def embedded(config: Config, folder: RunFolder) -> bool:
    return embed_stage(config, open_data(config.data), folder, fabric=launched(config), console=silent())


def test_metadata_follow_the_source_without_another_pass(config, tmp_path):
    folder = RunFolder(tmp_path / "run")
    train_and_embed(config, folder, 0)
    before = OutputsTable.read(folder.outputs("test"))
    assert set(before.metadata["sex"]) == {"f"}
    write_table(tmp_path, sex="m", more="site")
    assert not embedded(config, folder)  # nothing to embed
    after = OutputsTable.read(folder.outputs("test"))
    assert set(after.metadata["sex"]) == {"m"}
    assert set(after.metadata["site"]) == {"here"}
    assert after.logits.equal(before.logits)


def test_other_pictures_are_other_data(config, tmp_path):
    folder = RunFolder(tmp_path / "run")
    train_and_embed(config, folder, 0)
    assert not embedded(config, folder)
    for path in tmp_path.glob("i*.png"):  # the same pictures, written again
        path.write_bytes(path.read_bytes())
    assert not embedded(config, folder)
    draw(tmp_path, seed=1)
    with pytest.raises(ArtifactError, match=r"other images than this configuration names \(images, labels or"):
        embedded(config, folder)


def test_a_mask_that_came_later_is_other_data(config, tmp_path):
    framed = replace(config.data, framing=replace(config.data.framing, lesion_margin=0.1))
    config = replace(config, data=framed)
    folder = RunFolder(tmp_path / "run")
    train_and_embed(config, folder, 0)
    text = (tmp_path / "cases.csv").read_text().splitlines()
    mask = np.zeros((SIZE, SIZE), np.uint8)
    mask[4:9, 4:9] = 255
    Image.fromarray(mask).save(tmp_path / "m.png")
    (tmp_path / "cases.csv").write_text("\n".join([text[0] + ",mask", *(row + ",m.png" for row in text[1:])]) + "\n")
    with pytest.raises(ArtifactError, match="other images"):
        embedded(config, folder)


def test_a_checkpoint_from_before_is_still_read(config, tmp_path):
    """It knows its data and split, and nothing of the pictures."""
    data = open_data(config.data)
    older = replace(data, prepared=replace(data.prepared, content=""))
    folder = RunFolder(tmp_path / "run")
    with folder.claim(config, 0):
        train_stage(config, older, folder, seed=0, fabric=launched(config), console=silent())
    assert embedded(config, folder)


def test_one_table_is_of_one_data_set(config, tmp_path):
    train_and_embed(config, RunFolder(tmp_path / "run"), 0)
    results = run(ablate.steps(config, tmp_path / "a"))
    assert ablate.table(config, results).rows
    write_table(tmp_path, classes=2)
    for folder in (tmp_path / "run" / "trainings").iterdir():
        folder.rename(tmp_path / folder.name)
    mixed = run(ablate.steps(config, tmp_path / "b"))
    with pytest.raises(TdumpraError, match="not scored on the same test images and labels"):
        ablate.table(config, mixed)


def test_a_run_that_kept_its_best_network_alone(config, tmp_path):
    config = replace(config, embed=replace(config.embed, checkpoint="best"))
    folder = RunFolder(tmp_path / "run")
    train_and_embed(config, folder, 0)
    folder.checkpoint("last").unlink()
    assert not embedded(config, folder)  # nobody calls it unfinished
