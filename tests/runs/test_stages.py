"""The stages: what is done, what is not done twice, and what does not fit."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny_runs import CLASS_NAMES, colours, embed_run, launched, settings, silent, train_run, with_network

from tdumpra.artifacts import read_json
from tdumpra.data.dataset import Dataset
from tdumpra.data.splits import make_split
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.method.bank import PrototypeBank
from tdumpra.networks.train import TrainingError
from tdumpra.runs import stages, table_stages
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.stages import embed_stage, load_encoders
from tdumpra.runs.table_stages import (
    bank_stage,
    evaluate_stage,
    is_evaluated,
    read_tables,
    table_outputs,
    tune_stage,
)
from tdumpra.runs.tables import OutputsTable


@pytest.fixture(autouse=True)
def _leave_no_global_state():
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return colours()


@pytest.fixture
def run(tmp_path, data) -> RunFolder:
    return embed_run(settings(epochs=1), tmp_path / "run", data)


def embed_again(config: Config, data: Dataset, folder: RunFolder) -> bool:
    return embed_stage(config, data, folder, fabric=launched(config), console=silent())


# --- embedding


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
    monkeypatch.setattr(stages, "encode", None)  # it would fail if it were called
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
    sentence = (
        r"was trained with other data and split than this configuration names \(images, labels or their split have "
        r"changed\): train into another folder with --out, or remove this one$"
    )
    with pytest.raises(ArtifactError, match=sentence):
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

    monkeypatch.setattr(stages, "encode", hungry)
    run.outputs("test").unlink()
    with pytest.raises(TrainingError, match=r"out of memory with embed\.batch_size = 8: lower it"):
        embed_again(settings(epochs=1), data, run)


def test_other_errors_pass_unchanged(run, data, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(stages, "encode", broken)
    run.outputs("test").unlink()
    with pytest.raises(RuntimeError, match="a bug"):
        embed_again(settings(epochs=1), data, run)


# --- after embedding


@pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")
def test_bank_gate_and_evaluation_are_made_once(run, monkeypatch):
    config = settings(epochs=1)
    first = bank_stage(config, run, 0)
    assert first.made
    assert not is_evaluated(config, run, 0)
    fitted = tune_stage(config, run, 0)
    assert torch.equal(fitted.tuning.decision.bank.prototypes, first.bank.prototypes)
    evaluation = evaluate_stage(config, run, 0, fitted)
    assert is_evaluated(config, run, 0)
    assert evaluation["rows"] == {part: len(table) for part, table in read_tables(run).items()}
    assert {"student", "teacher", "gate", "oracle"} <= set(evaluation["comparators"])
    gate = read_json(run.gate, kind="gate", schema=1)
    assert gate["sentence"] == fitted.tuning.sentence()
    again = bank_stage(config, run, 0)
    assert not again.made
    assert torch.equal(again.bank.prototypes, first.bank.prototypes)
    assert torch.equal(PrototypeBank.load(run.bank).prototypes, first.bank.prototypes)
    assert again.health.purity.keys() == set(CLASS_NAMES)  # the records have a source
    fewer = replace(config, bank=replace(config.bank, n_prototypes=2))
    assert bank_stage(fewer, run, 0).made
    assert not is_evaluated(fewer, run, 0)
    assert not is_evaluated(replace(config, tune=replace(config.tune, preset="paper")), run, 0)
    monkeypatch.setattr(table_stages, "COMPUTATION", -1)
    assert not is_evaluated(config, run, 0)
    run.evaluation.write_text("{}")
    assert not is_evaluated(config, run, 0)


@pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")
def test_a_damaged_bank_is_made_again(run):
    bank_stage(settings(epochs=1), run, 0)
    run.bank.write_bytes(b"torn")
    assert bank_stage(settings(epochs=1), run, 0).made


# --- in another encoder's space


def in_space_of(folder: RunFolder) -> Config:
    config = settings(epochs=1)
    return replace(config, bank=replace(config.bank, space=str(folder.root)))


def split_otherwise(data: Dataset, **how: Any) -> Dataset:
    split = make_split(data.manifest, **how)
    return Dataset(data.prepared, split.codes.copy(), split)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory, data: Dataset) -> RunFolder:
    """Its own validation images are not this run's."""
    config = with_network(settings("tiny_networks:seeded"), frozen=True)
    return embed_run(config, tmp_path_factory.mktemp("frozen"), split_otherwise(data, val_fold=1))


def test_a_frozen_encoder_is_embedded_without_training(frozen):
    assert not frozen.checkpoint("last").exists()
    table = OutputsTable.read(frozen.outputs("train"))
    assert table.z_teacher is None
    assert not table.logits.any()
    assert table.z_student.shape == (len(table), 16)


def test_a_frozen_encoder_alone_decides_nothing(frozen):
    config = with_network(settings("tiny_networks:seeded"), frozen=True)
    for stage in (bank_stage, tune_stage):
        with pytest.raises(TdumpraError, match="a frozen encoder has no classifier: name its folder"):
            stage(config, frozen, 0)


def test_a_bank_in_a_frozen_encoders_space_whatever_it_held_out(run, frozen):
    own, others = read_tables(run), read_tables(frozen)
    assert set(own["val"].ids) != set(others["val"].ids)
    splits = table_outputs(in_space_of(frozen), own)
    where = {name: z for table in others.values() for name, z in zip(table.ids, table.z_student, strict=True)}
    for part, rows in (("train", splits.train), ("val", splits.validation), ("test", splits.test)):
        assert torch.equal(rows.z, torch.stack([where[name] for name in own[part].ids]))
    torch.testing.assert_close(splits.validation.p, own["val"].posterior())
    assert splits.test.p_second is None  # it has no opinion
    assert splits.fingerprint != table_outputs(settings(epochs=1), own).fingerprint


def test_an_encoder_that_was_trained_on_validation_images_too_is_refused(run, data, tmp_path):
    own = read_tables(run)
    config = settings(epochs=1, train_on_val=True)
    other = embed_run(config, tmp_path / "other", data)
    with pytest.raises(ArtifactError, match=f"trained on {len(own['val'])} of this run's val images.*train_on_val off"):
        table_outputs(in_space_of(other), own)


@pytest.mark.parametrize(("how", "part"), [({"val_fold": 1}, "val"), ({"seed": 1}, "test")])
def test_an_encoder_that_was_trained_on_held_out_images_is_refused(run, data, tmp_path, how, part):
    other = embed_run(settings(epochs=1), tmp_path / "other", split_otherwise(data, **how))
    seen = set(OutputsTable.read(other.outputs("train")).ids)
    counts = {each: len(seen & set(table.ids)) for each, table in read_tables(run).items()}
    assert counts[part] >= counts["val"] > 0
    with pytest.raises(ArtifactError, match=f"was trained on {counts[part]} of this run's {part} images: give both"):
        table_outputs(in_space_of(other), read_tables(run))


def test_the_encoder_of_the_same_seed_is_taken(run, data, tmp_path):
    own = read_tables(run)
    for seed in (0, 2):
        folder = train_run(settings(epochs=1, seeds=(0, 2)), tmp_path / "other" / f"seed-{seed}", data, seed=seed)
        embed_again(settings(epochs=1), data, folder)
    for seed in (0, 2):
        other = OutputsTable.read(RunFolder(tmp_path / "other" / f"seed-{seed}").outputs("test"))
        splits = table_outputs(in_space_of(RunFolder(tmp_path / "other")), own, seed)
        assert torch.equal(splits.test.z, other.embedding("teacher"))
        torch.testing.assert_close(splits.test.p_second, other.posterior("teacher"))
