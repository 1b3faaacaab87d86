import os
import signal
import stat
import tempfile
import time
from pathlib import Path

import pytest

from tdumpra import writing
from tdumpra.errors import ArtifactError
from tdumpra.writing import make_folder, write_bytes


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


class TestWriteBytes:
    def test_replaces_and_leaves_nothing_else(self, tmp_path):
        path = tmp_path / "x"
        for data in (b"old", b"new"):
            write_bytes(path, data)
        assert path.read_bytes() == b"new"
        assert names(tmp_path) == ["x"]

    def test_permissions_follow_the_umask(self, tmp_path):
        before = os.umask(0o027)
        try:
            write_bytes(tmp_path / "x", b"")
            assert os.umask(0o027) == 0o027  # left as it was
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640

    @pytest.mark.parametrize("step", ["fsync", "replace"])
    def test_a_failed_write_leaves_the_old_file_and_no_other(self, tmp_path, monkeypatch, step):
        path = tmp_path / "x"
        write_bytes(path, b"old")

        def fail(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": ("pathlib.Path.replace",)}[step], fail)
        with pytest.raises(ArtifactError, match=r"cannot write .*x: No space left on device"):
            write_bytes(path, b"new")
        monkeypatch.undo()
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["x"]

    def test_an_interruption_leaves_the_old_file_and_no_other(self, tmp_path, monkeypatch):
        path = tmp_path / "x"
        write_bytes(path, b"old")

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_bytes(path, b"new")
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["x"]

    def test_file_and_folder_reach_the_disk_before_and_after_the_rename(self, tmp_path, monkeypatch):
        events: list[str] = []
        fsync, replace = os.fsync, type(tmp_path).replace

        def synced(descriptor):
            events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
            fsync(descriptor)

        def renamed(source, target):
            events.append("rename")
            return replace(source, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(type(tmp_path), "replace", renamed)
        write_bytes(tmp_path / "x", b"data")
        assert events == ["file", "rename", "folder"]

    def test_a_folder_that_is_not_there(self, tmp_path):
        with pytest.raises(ArtifactError, match=r"cannot write .*: the folder .*gone does not exist"):
            write_bytes(tmp_path / "gone" / "x", b"")

    def test_a_folder_that_cannot_be_written_to(self, tmp_path, monkeypatch):
        def refuse(*_, **__):  # what the system answers, also where the tests run as root
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(tempfile, "mkstemp", refuse)
        with pytest.raises(ArtifactError, match=r"cannot write .*x: Permission denied"):
            write_bytes(tmp_path / "x", b"")

    def test_a_folder_in_the_files_place(self, tmp_path):
        (tmp_path / "x").mkdir()
        with pytest.raises(ArtifactError, match=r"cannot write .*x: Is a directory"):
            write_bytes(tmp_path / "x", b"")
        assert names(tmp_path) == ["x"]


class TestLeftovers:
    @pytest.fixture(autouse=True)
    def forget(self, monkeypatch):
        monkeypatch.setattr(writing, "_swept", set())

    def killed_writer(self, path: Path) -> None:
        """Leave behind what a writer leaves that is killed before it can rename."""
        child = os.fork()
        if child == 0:
            os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
            write_bytes(path, b"half")
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL

    def test_the_next_writer_removes_what_a_killed_one_left(self, tmp_path):
        self.killed_writer(tmp_path / "gate.json")
        (left,) = tmp_path.iterdir()
        os.utime(left, (time.time() - 3600,) * 2)
        write_bytes(tmp_path / "bank", b"whole")
        assert names(tmp_path) == ["bank"]

    def test_who_finds_nothing_to_write_removes_it_too(self, tmp_path):
        self.killed_writer(tmp_path / "gate.json")
        (left,) = tmp_path.iterdir()
        os.utime(left, (time.time() - 3600,) * 2)
        make_folder(tmp_path)
        assert names(tmp_path) == []

    def test_what_is_written_by_a_disk_with_another_clock_stays(self, tmp_path, monkeypatch):
        self.killed_writer(tmp_path / "gate.json")
        before, now = names(tmp_path), time.time()
        monkeypatch.setattr(time, "time", lambda: now - 3600)  # a server that is an hour ahead stamps the files
        make_folder(tmp_path)
        assert names(tmp_path) == before

    def test_what_may_be_in_use_or_is_not_ours_stays(self, tmp_path):
        self.killed_writer(tmp_path / "gate.json")  # a moment ago: it may be writing yet
        for name in (".download.part", "film.part", ".part"):
            (tmp_path / name).write_bytes(b"")
            os.utime(tmp_path / name, (0, 0))
        before = names(tmp_path)
        write_bytes(tmp_path / "bank", b"whole")
        assert names(tmp_path) == sorted([*before, "bank"])
