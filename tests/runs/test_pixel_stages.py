"""Training and embedding: what is done, what is not done twice, and what does not fit."""

from __future__ import annotations

import io
import re
import shutil
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from tiny_runs import CLASS_NAMES, colours, embed_run, launched, settings, silent, train_run, with_network

from tdumpra.data.dataset import Dataset
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.networks.train import TrainingError
from tdumpra.runs import pixel_stages
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.pixel_stages import embed_stage, load_encoders
from tdumpra.runs.tables import OutputsTable, read_tables


def embed_again(config: Config, data: Dataset, folder: RunFolder) -> bool:
    return embed_stage(config, data, folder, fabric=launched(config), console=silent())


def test_the_tables_hold_every_image_once(run, data):
    tables = read_tables(run)
    for part, table in tables.items():
        records = [data.manifest.records[i] for i in data.rows(part)]
        assert table.ids == tuple(record.id for record in records)
        assert table.groups == tuple(record.group for record in records)
        assert table.labels.tolist() == [record.label for record in records]
        assert table.class_names == CLASS_NAMES
        assert table.metadata["source"] == tuple(record.meta["source"] for record in records)
        torch.testing.assert_close(table.embedding("teacher").norm(dim=1), torch.ones(len(table)))
    assert set(tables["train"].identity) == {"data", "split", "preprocessing", "network", "encoder"}


def test_a_second_embedding_does_nothing_until_the_weights_change(run, data, monkeypatch):
    config = settings(epochs=1)
    before = run.outputs("train").stat().st_mtime_ns
    monkeypatch.setattr(pixel_stages, "encode", None)  # it would fail if it were called
    assert not embed_again(config, data, run)
    assert run.outputs("train").stat().st_mtime_ns == before
    monkeypatch.undo()
    other = train_run(settings(epochs=2), run.root.parent / "other", data)
    old = OutputsTable.read(run.outputs("train"))
    run.checkpoint("last").write_bytes(other.checkpoint("last").read_bytes())
    assert embed_again(config, data, run)
    new = OutputsTable.read(run.outputs("train"))
    assert new.identity["encoder"] != old.identity["encoder"]
    assert not torch.equal(new.logits, old.logits)


def test_other_views_are_embedded_again(run, data):
    config, old = settings(epochs=1), OutputsTable.read(run.outputs("val"))
    mirrored = replace(config, embed=replace(config.embed, views=2))
    assert embed_again(mirrored, data, run)
    assert not embed_again(mirrored, data, run)
    new = OutputsTable.read(run.outputs("val"))
    assert new.identity["encoder"] != old.identity["encoder"]
    assert not torch.equal(new.logits, old.logits)
    torch.testing.assert_close(new.logits.exp().sum(1), torch.ones(len(new)))  # logarithms of mean probabilities


def test_a_damaged_table_is_made_again(run, data):
    run.outputs("val").write_bytes(b"torn")
    assert embed_again(settings(epochs=1), data, run)
    OutputsTable.read(run.outputs("val"))


@pytest.mark.parametrize("terminal", [True, False])
def test_embedding_shows_how_far_it_is_on_a_terminal(run, data, terminal):
    run.outputs("val").write_bytes(b"torn")
    screen = io.StringIO()
    config, console = settings(epochs=1), Console(file=screen, force_terminal=terminal, width=100)
    assert embed_stage(config, data, run, fabric=launched(config), console=console)
    rows = len(data.rows("val"))
    assert (f"{rows}/{rows}" in screen.getvalue()) == terminal
    assert f"embedded {rows} images of val" in re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())


def test_weights_of_other_data_are_refused(run):
    other = colours(66)
    with pytest.raises(ArtifactError, match="other data and split"):
        load_encoders(settings(epochs=1), other, run)


def test_what_comes_first_is_said(tmp_path, data):
    with pytest.raises(ArtifactError, match="run  tdumpra train  first"):
        load_encoders(settings(), data, RunFolder(tmp_path))
    with pytest.raises(ArtifactError, match="run  tdumpra embed  first"):
        read_tables(RunFolder(tmp_path))


def test_an_empty_part_is_refused(run, data):
    codes = data.codes.copy()
    codes[codes == 2] = 1
    run.outputs("test").unlink()
    with pytest.raises(TdumpraError, match="no image is left for test"):
        embed_again(settings(epochs=1), Dataset(data.prepared, codes, data.split), run)


def test_memory_that_runs_out_while_embedding(run, data, monkeypatch):
    def hungry(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(pixel_stages, "encode", hungry)
    run.outputs("test").unlink()
    with pytest.raises(TrainingError, match=r"out of memory with embed\.batch_size = 8: lower it"):
        embed_again(settings(epochs=1), data, run)


def test_other_errors_pass_unchanged(run, data, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(pixel_stages, "encode", broken)
    run.outputs("test").unlink()
    with pytest.raises(RuntimeError, match="a bug"):
        embed_again(settings(epochs=1), data, run)


def test_a_frozen_encoder_is_embedded_without_training(data, tmp_path):
    frozen = embed_run(with_network(settings("tiny_networks:seeded"), frozen=True), tmp_path, data)
    assert not frozen.checkpoint("last").exists()
    table = OutputsTable.read(frozen.outputs("train"))
    assert table.z_teacher is None
    assert not table.logits.any()
    assert table.z_student.shape == (len(table), 16)


def test_a_best_checkpoint_of_another_training_is_refused(tmp_path, data):
    own, other = (
        train_run(settings(seeds=(seed,), epochs=1), tmp_path / str(seed), data, seed=seed) for seed in (0, 1)
    )
    shutil.copyfile(other.checkpoint("best"), own.checkpoint("best"))
    with pytest.raises(ArtifactError, match="other seed"):
        train_run(settings(epochs=1), tmp_path / "0", data)
