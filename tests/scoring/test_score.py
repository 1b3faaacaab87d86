"""Scoring: every image has one row, the same as prediction gives, whatever happened on the way."""

from __future__ import annotations

import errno
import io
import os
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny_models import make_model
from tiny_runs import colours, embed_run, settings

from tdumpra import writing
from tdumpra.data.images.new import Image
from tdumpra.errors import BrokenImageError, TdumpraError
from tdumpra.networks.predict import Predictor
from tdumpra.scoring.fetch import fetch, read_found
from tdumpra.scoring.folder import Plan, ScoreFolder
from tdumpra.scoring.listing import Entry, list_source
from tdumpra.scoring.score import score_parts


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    config, data = settings(), colours()
    model = make_model(config, data, embed_run(config, tmp_path_factory.mktemp("run"), data))
    return Predictor(model, trusted=["tiny_networks:plain"])


@pytest.fixture
def archive(tmp_path: Path, write_image: Any) -> Path:
    """Nine pictures, a text that says it is one, and a shard with two more."""
    root = tmp_path / "archive"
    for i in range(9):
        write_image(root / f"{i}.png", seed=i)
    (root / "no.png").write_text("no picture")
    with tarfile.open(root / "more.tar", "w") as shard:
        for i in (20, 21):
            data = write_image(tmp_path / f"{i}.png", seed=i).read_bytes()
            info = tarfile.TarInfo(f"{i}.png")
            info.size = len(data)
            shard.addfile(info, io.BytesIO(data))
    return root


def job(out: Path, source: Path, predictor: Predictor, *, embeddings: bool = False) -> ScoreFolder:
    plan = Plan(
        model="m", class_names=predictor.model.class_names, source=str(source), engine="torch", mode="lazy",
        embeddings=embeddings, part_size=5,
    )  # fmt: skip
    return ScoreFolder.join(out, plan, lambda: list_source(str(source)))


def rows_of(folder: ScoreFolder) -> pd.DataFrame:
    checked = folder.check()
    assert checked.complete
    return pd.concat([pd.read_parquet(checked.parts[i]) for i in sorted(checked.parts)]).set_index("id")


def test_every_image_has_the_row_that_prediction_gives(tmp_path, archive, predictor):
    folder = job(tmp_path / "out", archive, predictor, embeddings=True)
    score_parts(predictor, folder, folder.parts())
    rows = rows_of(folder)
    assert len(rows) == 12
    assert rows.index.is_unique
    assert rows.error.notna().sum() == 1
    assert rows.loc["no.png"].drop("error").isna().all()
    for each in predictor.predict([archive / f"{i}.png" for i in range(9)], embeddings=True):
        row = rows.loc[Path(each.path).name]
        assert (row.label, row.opened) == (each.label, each.opened)
        assert [row[f"p_{name}"] for name in each.probabilities] == pytest.approx(
            list(each.probabilities.values()), abs=1e-6
        )
        np.testing.assert_allclose(row.embedding, each.embedding, atol=1e-5)


def test_what_was_finished_is_not_done_again(tmp_path, archive, predictor):
    folder = job(tmp_path / "out", archive, predictor)
    score_parts(predictor, folder, folder.parts(1, 2))
    before = {path: path.stat().st_mtime_ns for path in folder.finished().values()}
    seen = predictor.rows_seen
    score_parts(predictor, folder, folder.parts())
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert predictor.rows_seen - seen == 5 - ("no.png" in [entry.id for entry in folder.entries[5:10]])
    assert folder.check().complete


def test_a_file_that_vanished_has_a_row_with_its_reason(tmp_path, archive, predictor):
    folder = job(tmp_path / "out", archive, predictor)
    (archive / "3.png").unlink()
    (archive / "more.tar").write_bytes(b"cut")
    score_parts(predictor, folder, folder.parts())
    rows = rows_of(folder)
    assert rows.error.dropna().index.tolist() == ["3.png", "more.tar/20.png", "more.tar/21.png", "no.png"]
    assert "changed after it was listed" in rows.error["more.tar/20.png"]


def test_addresses_are_fetched(tmp_path, archive, predictor):
    remote, local = list_source(f"file://{archive}"), list_source(str(archive))
    brought = list(read_found(fetch(remote, tmp_path / "fetched"), predictor.framings))
    assert len(list((tmp_path / "fetched").iterdir())) == len(brought) == 12
    for mine, theirs in zip(brought, read_found(fetch(local, tmp_path / "same"), predictor.framings), strict=True):
        if isinstance(mine, BrokenImageError) or isinstance(theirs, BrokenImageError):
            assert str(mine) == str(theirs)
        else:
            np.testing.assert_array_equal(mine.first, theirs.first)


def test_an_address_that_is_gone_says_so(tmp_path, archive):
    entries = list_source(f"file://{archive}")
    (archive / "3.png").unlink()
    (reason,) = [each for each in fetch(entries, tmp_path / "fetched") if isinstance(each, BrokenImageError)]
    assert str(reason).startswith("cannot be fetched")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_a_pipe_at_an_address_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (found,) = fetch([Entry("pipe.png", f"file://{tmp_path / 'pipe.png'}")], tmp_path / "files")
    assert isinstance(found, BrokenImageError)
    assert "no file" in str(found)


def test_a_full_place_for_fetched_images_is_told_and_blames_no_image(tmp_path, archive, monkeypatch):
    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    entry = next(each for each in list_source(str(archive)) if each.start < 0)
    with pytest.raises(TdumpraError, match=r"No space left on device; the variable TMPDIR"):
        fetch([entry._replace(file=f"file://{entry.file}")], tmp_path / "files")


def test_an_image_on_this_machine_costs_no_file_and_no_thread(tmp_path, archive, monkeypatch):
    begun: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", begun.append)
    found = fetch(list_source(str(archive)), tmp_path / "fetched")
    inside = [entry.id.startswith("more") for entry in list_source(str(archive))]
    assert [isinstance(each, Image) and each.inside is not None for each in found] == inside
    assert not begun
    assert not list((tmp_path / "fetched").iterdir())


def test_each_part_is_written_once_and_nothing_else_as_an_archive_grows(tmp_path, archive, predictor, monkeypatch):
    """What is written for a part depends on its rows alone: else an image would cost more in a larger archive."""
    written: list[str] = []

    def write(path: Path, data: bytes) -> None:
        written.append(path.name)
        writing.write_bytes(path, data)

    folder = job(tmp_path / "out", archive, predictor)
    monkeypatch.setattr("tdumpra.scoring.folder.write_bytes", write)
    score_parts(predictor, folder, folder.parts())
    assert sorted(written) == sorted(path.name for path in folder.finished().values())
    assert len(written) == len(folder.parts()) == 3
