"""The tables that embedding writes: round trip, what they give, and what does not fit together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import embed_run, launched, settings, silent, train_run, with_network

from tdumpra.data.dataset import Dataset
from tdumpra.data.splits import make_split
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.pixel_stages import embed_stage
from tdumpra.runs.tables import (
    OutputsTable,
    folder_outputs,
    read_tables,
    run_with_tables,
    split_outputs,
    table_outputs,
)


def table(n: int = 6, *, start: int = 0, teacher: bool = True, encoder: str = "e") -> OutputsTable:
    generator = torch.Generator().manual_seed(start)

    def unit() -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(n, 4, generator=generator))

    return OutputsTable(
        ids=tuple(f"image{i}" for i in range(start, start + n)),
        groups=tuple(f"group{i // 2}" for i in range(start, start + n)),
        labels=torch.arange(n) % 3,
        logits=torch.randn(n, 3, generator=generator),
        z_student=unit(),
        logits_teacher=torch.randn(n, 3, generator=generator) if teacher else None,
        z_teacher=unit() if teacher else None,
        class_names=("a", "b", "c"),
        metadata={"sex": ("f", "m", "", "f", "f", "m")[:n]},
        identity={"encoder": encoder, "split": "s"},
    )


@pytest.mark.parametrize("teacher", [True, False])
def test_round_trip(tmp_path, teacher):
    written = table(teacher=teacher)
    written.write(tmp_path / "t.safetensors")
    read = OutputsTable.read(tmp_path / "t.safetensors")
    assert len(read) == 6
    for name in ("ids", "groups", "class_names", "metadata", "identity"):
        assert getattr(read, name) == getattr(written, name)
    for name in ("labels", "logits", "z_student"):
        assert torch.equal(getattr(read, name), getattr(written, name))
    if teacher:
        assert torch.equal(read.embedding("teacher"), written.embedding("teacher"))
    else:
        assert read.logits_teacher is None
        assert read.z_teacher is None


def test_an_altered_table_is_refused(tmp_path: Path):
    path = tmp_path / "t.safetensors"
    table().write(path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match="was altered or cut short"):
        OutputsTable.read(path)


def test_posterior_and_embedding():
    full, finished = table(), table(teacher=False)
    torch.testing.assert_close(full.posterior(), full.logits.double().softmax(1))
    assert full.logits_teacher is not None
    torch.testing.assert_close(full.posterior("teacher"), full.logits_teacher.double().softmax(1))
    assert full.embedding("student") is full.z_student
    assert finished.embedding("teacher") is finished.z_student  # a finished classifier is its own teacher
    with pytest.raises(ArtifactError, match="has no teacher"):
        finished.posterior("teacher")
    with pytest.raises(ValueError, match="must be 'teacher' or 'student', not 'else'"):
        full.embedding("else")


def test_another_encoders_embeddings_are_matched_by_id():
    own, other = table(4), table(6, encoder="other")
    order = [5, 3, 0, 1, 2, 4]
    assert other.z_teacher is not None
    shuffled = replace(
        other, ids=tuple(other.ids[i] for i in order), z_teacher=other.z_teacher[order], labels=other.labels[order]
    )
    joined = own.with_embedding(shuffled)
    assert torch.equal(joined.embedding("teacher"), other.z_teacher[:4])
    assert torch.equal(joined.logits, own.logits)
    assert joined.identity["retrieval"] == "other"
    with pytest.raises(ArtifactError, match="lacks 2 of the images, for example 'image4'"):
        table(6).with_embedding(table(4))
    with pytest.raises(ArtifactError, match="labels 4 of 4 images otherwise, for example 'image0'"):
        own.with_embedding(replace(other, labels=(other.labels + 1) % 3))
    assert own.with_embedding(replace(other, labels=(other.labels + 1) % 3, class_names=("x", "y", "z")))


def test_the_splits_are_what_they_may_be_used_for():
    tables = {part: table(start=10 * i) for i, part in enumerate(("train", "val", "test"))}
    splits = split_outputs(tables)
    assert isinstance(splits.train, TrainOutputs)
    assert isinstance(splits.validation, ValidationOutputs)
    assert isinstance(splits.test, TestOutputs)
    assert splits.n_classes == 3
    assert torch.equal(splits.train.z, tables["train"].embedding("teacher"))
    torch.testing.assert_close(splits.test.p, tables["test"].posterior())
    torch.testing.assert_close(splits.test.p_teacher, tables["test"].posterior("teacher"))
    assert splits.test.groups is not None
    assert list(splits.test.groups) == list(tables["test"].groups)


def test_one_pass_mode_takes_both_from_the_teacher():
    tables = {part: table(start=10 * i) for i, part in enumerate(("train", "val", "test"))}
    splits = split_outputs(tables, classifier="teacher")
    torch.testing.assert_close(splits.validation.p, tables["val"].posterior("teacher"))
    fingerprints = {
        split_outputs(tables, space=space, classifier=who).fingerprint
        for space in ("teacher", "student")
        for who in ("teacher", "student")
    }
    assert len(fingerprints) == 4


def test_tables_of_different_encoders_are_refused():
    tables = {"train": table(), "val": table(start=10, encoder="old"), "test": table(start=20)}
    with pytest.raises(ArtifactError, match=r"the val table was made by another encoder or split .* embed again"):
        split_outputs(tables)


# --- another run's encoder


def test_embeddings_come_from_whichever_part_holds_the_image():
    own, others = table(6, start=3), [table(6, encoder="other"), table(6, start=6, encoder="other")]
    joined = own.with_embedding(*others)
    assert joined.logits_second is not None
    for i, name in enumerate(own.ids):
        part = next(each for each in others if name in each.ids)
        assert part.logits_teacher is not None
        assert torch.equal(joined.embedding("teacher")[i], part.embedding("teacher")[part.ids.index(name)])
        assert torch.equal(joined.logits_second[i], part.logits_teacher[part.ids.index(name)])


def test_the_other_networks_classifier_is_kept_where_it_tells_the_same_classes_apart():
    own, other = table(4), table(6, encoder="other")
    assert own.logits_second is None
    assert own.with_embedding(replace(other, class_names=("b", "a", "c"))).logits_second is None
    assert own.with_embedding(table(6, teacher=False)).logits_second is None
    assert own.with_embedding(other, replace(other, logits_teacher=None)).logits_second is None
    tables = {part: table(start=10 * i) for i, part in enumerate(("train", "val", "test"))}
    assert split_outputs(tables).test.p_second is None
    joined = {part: each.with_embedding(replace(each, logits_teacher=each.logits + 1)) for part, each in tables.items()}
    splits = split_outputs(joined)
    torch.testing.assert_close(splits.validation.p_second, tables["val"].posterior())
    torch.testing.assert_close(splits.test.p_second, tables["test"].posterior())
    torch.testing.assert_close(splits.test.p_teacher, tables["test"].posterior("teacher"))  # its own, still


def write_train_table(root: Path) -> None:
    (root / "outputs").mkdir(parents=True)
    table().write(RunFolder(root).outputs("train"))


def test_the_folder_of_several_seeds_stands_for_that_of_the_same_seed(tmp_path):
    write_train_table(tmp_path / "one")
    for seed in (0, 3):
        write_train_table(tmp_path / "several" / f"seed-{seed}")
        assert run_with_tables(str(tmp_path / "several"), seed).root == tmp_path / "several" / f"seed-{seed}"
        assert run_with_tables(str(tmp_path / "one"), seed).root == tmp_path / "one"
    with pytest.raises(
        ArtifactError, match=r"bank\.space = .* is not 'teacher', 'student' or .* of seed 1: there are seed-0, seed-3$"
    ):
        run_with_tables(str(tmp_path / "several"), 1)


def test_a_folder_without_tables_is_said_to_lack_them(tmp_path):
    with pytest.raises(ArtifactError, match=r"evaluate\.baseline = .* is not the folder .*: train and embed its"):
        run_with_tables(str(tmp_path), 0, "evaluate.baseline")


def test_metadata_are_part_of_what_was_scored():
    tables = {part: table(start=10 * i) for i, part in enumerate(("train", "val", "test"))}
    before = split_outputs(tables).fingerprint
    assert split_outputs(tables).fingerprint == before
    other = replace(tables["test"], metadata={"sex": ("m",) * 6})
    assert split_outputs({**tables, "test": other}).fingerprint != before


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


def test_a_frozen_encoder_alone_decides_nothing(frozen):
    config = with_network(settings("tiny_networks:seeded"), frozen=True)
    with pytest.raises(TdumpraError, match="a frozen encoder has no classifier"):
        folder_outputs(config, frozen, 0)


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
        embed_stage(settings(epochs=1), data, folder, fabric=launched(settings()), console=silent())
    for seed in (0, 2):
        other = OutputsTable.read(RunFolder(tmp_path / "other" / f"seed-{seed}").outputs("test"))
        splits = table_outputs(in_space_of(RunFolder(tmp_path / "other")), own, seed)
        assert torch.equal(splits.test.z, other.embedding("teacher"))
        torch.testing.assert_close(splits.test.p_second, other.posterior("teacher"))
