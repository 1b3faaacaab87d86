"""The stages: what is done, what is not done twice, and what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_runs import CLASS_NAMES, colours, embed_run, launched, settings, silent, train_run

from tdumpra import stages
from tdumpra.artifacts import read_json
from tdumpra.bank import PrototypeBank
from tdumpra.config import Config
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.run_folder import RunFolder
from tdumpra.stages import Dataset, embed_stage, load_encoders, open_data
from tdumpra.table_stages import bank_stage, evaluate_stage, is_evaluated, outputs_for, read_tables, tune_stage
from tdumpra.tables import OutputsTable
from tdumpra.train import TrainingError


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


# --- data


def test_data_are_split_before_they_are_decoded(tmp_path):
    config = settings()
    config = replace(config, data=replace(config.data, source="synthetic:n=40,size=32", cache=str(tmp_path / "cache")))
    opened = open_data(config, silent())
    rows = [set(opened.rows(part)) for part in ("train", "val", "test")]
    assert sum(map(len, rows)) == len(opened.manifest) == 40
    groups = [{opened.manifest.records[i].group for i in part} for part in rows]
    assert not groups[0] & groups[2]
    opened.split.write(tmp_path / "split.json")
    again = open_data(replace(config, data=replace(config.data, split_file=str(tmp_path / "split.json"))), silent())
    assert again.codes.tolist() == opened.codes.tolist()


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


def test_a_damaged_table_is_made_again(run, data):
    run.outputs("val").write_bytes(b"torn")
    assert embed_again(settings(epochs=1), data, run)
    OutputsTable.read(run.outputs("val"))


def test_weights_of_other_data_are_refused(run):
    other = colours(66)
    with pytest.raises(ArtifactError, match="was trained with other data and split than this configuration names"):
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
def test_bank_gate_and_evaluation_are_made_once(run):
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
    run.evaluation.write_text("{}")
    assert not is_evaluated(config, run, 0)


@pytest.mark.filterwarnings("ignore:n_prototypes=5 is more than the distinct groups")
def test_a_damaged_bank_is_made_again(run):
    bank_stage(settings(epochs=1), run, 0)
    run.bank.write_bytes(b"torn")
    assert bank_stage(settings(epochs=1), run, 0).made


def test_saved_outputs_take_the_place_of_tables(tmp_path):
    from tdumpra.demo_arrays import write_demo

    write_demo(tmp_path / "a.npz", seed=0)
    write_demo(tmp_path / "b.npz", seed=1)
    config = replace(settings(seeds=(4, 5)), outputs=(str(tmp_path / "a.npz"), str(tmp_path / "b.npz")))
    first, second = (outputs_for(config, RunFolder(tmp_path / str(seed)), seed) for seed in (4, 5))
    assert first.fingerprint != second.fingerprint
    (tmp_path / "4").mkdir()
    assert bank_stage(config, RunFolder(tmp_path / "4"), 4).bank.n_classes == 7
