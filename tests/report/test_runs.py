"""When a report is written, and when one of the same results is left as it is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from parsed_page import parse

from tdumpra import writing
from tdumpra.report.runs import MADE_FROM, write_report

MARK = "<!-- not written again -->"


@pytest.fixture
def folder(attached: Path, tmp_path: Path) -> Path:
    """A copy of attached outputs with their results, and a report that tells whether it is written again."""
    shutil.copytree(attached.parent, tmp_path / "copy")
    folder = tmp_path / "copy" / attached.name
    settings = (folder / "config.toml").read_text()
    assert str(attached.parent) in settings  # the outputs' whole path, since it was given whole
    (folder / "config.toml").write_text(settings.replace(str(attached.parent), str(folder.parent)))
    mark(write_report(folder))
    return folder


def mark(page: Path) -> None:
    page.write_text(page.read_text() + MARK)


def is_kept(page: Path) -> bool:
    return page.read_text().endswith(MARK)


def test_a_report_of_the_same_results_is_left_as_it_is(folder):
    assert is_kept(write_report(folder))
    assert not is_kept(write_report(folder, limit=3))


def test_a_report_that_is_left_as_it_is_loses_what_a_killed_writer_left(folder, monkeypatch):
    left = folder / "report" / "cases" / ".one.html.abcd1234.part"
    left.touch()
    os.utime(left, (0, 0))
    monkeypatch.setattr(writing, "_swept", set())  # as in another process
    assert is_kept(write_report(folder))
    assert not left.exists()


@pytest.mark.parametrize("name", [MADE_FROM, "index.html"])
def test_a_report_that_lost_a_file_is_written_again(folder, name):
    (folder / "report" / name).unlink()
    assert not is_kept(write_report(folder))


def test_a_report_of_other_results_is_written_again(folder, tdumpra):
    assert tdumpra("evaluate", folder / "config.toml", "--set", "evaluate.bootstrap=50", "--out", folder).code == 0
    assert not is_kept(write_report(folder))


def test_cases_that_turn_up_again(folder, tmp_path):
    outputs = folder.parent / "mine.npz"
    outputs.rename(tmp_path / "away.npz")
    assert is_kept(write_report(folder))  # it was complete
    page = write_report(folder, limit=5)
    mark(page)
    assert not parse(page.read_text()).all("ul", class_="gallery")
    assert not is_kept(write_report(folder, limit=5))  # the file may have turned up
    (tmp_path / "away.npz").rename(outputs)
    page = write_report(folder, limit=5)
    mark(page)
    assert len(parse(page.read_text()).one("ul", class_="gallery").all("li")) == 5
    assert is_kept(write_report(folder, limit=5))
