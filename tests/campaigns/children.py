"""Commands in processes of their own, which are killed, or whose files fail under them.

The processes are forked from one that has carried out a run, so that a command begins at once.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import gc
import hashlib
import io
import json
import math
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
from plain_charts import drawn_plainly
from tests.campaigns.world import command

from tdumpra.artifacts import read_artifact
from tdumpra.data.images import cache
from tdumpra.errors import ArtifactError
from tdumpra.report import drawing

FAULTS = {
    "read": (errno.EIO,),  # opened to read
    "open": (errno.ENOSPC, errno.EIO),  # opened to write
    "write": (errno.ENOSPC, errno.EIO, 0),  # 0: half of the bytes reach the disk, and then an error
    "fsync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC),
}
_VOLATILE = {"environment.json", ".lock"}  # when and where, not what
_SPEED = re.compile(rb'"images_per_second": [^,}]+')
_START = re.compile(rb'[{]"step": [0-9]+, "epoch": [0-9]+, "steps": .*\n')  # a row for each start of a training
_LOG = re.compile(rb"c3RlcCxlcG9jaCxsb3Nz[A-Za-z0-9+/=]*")  # the log, which tells the speed, as a page has it in base64


class Operation(NamedTuple):
    """One thing that a command asked of the file system, below its folder."""

    kind: str
    path: str  # without the random part of a temporary name


class Fault(NamedTuple):
    """The operation that fails, by its number, and how."""

    number: int
    error: int


class Ended(NamedTuple):
    """How a command ended."""

    code: int | None  # negative: the signal that killed it
    told: str  # what it wrote to standard error


@functools.cache
def _context() -> Any:
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "tests.campaigns.preload"])
    return context


def start(arguments: Sequence[object], folder: Path, *, fault: Fault | None = None, log: Path | None = None) -> Any:
    """Begin a command in ``folder``; ``log`` gets the operations that it asks for."""
    words = tuple(map(str, arguments))
    process = _context().Process(target=_work, args=(words, folder, fault, log, _told(folder)))
    process.start()
    return process


def end(process: BaseProcess, folder: Path, timeout: float = 300) -> Ended:
    """Wait for a command."""
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"the command did not end within {timeout} s")
    told = _told(folder)
    return Ended(process.exitcode, told.read_text(errors="replace") if told.exists() else "")


def run(arguments: Sequence[object], folder: Path, **options: Any) -> Ended:
    """Run a command to its end."""
    return end(start(arguments, folder, **options), folder)


def _told(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.stderr")


def _work(words: tuple[str, ...], folder: Path, fault: Fault | None, log: Path | None, told: Path) -> None:
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)
    for descriptor, path in ((1, os.devnull), (2, str(told))):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    os.chdir(folder.parent)
    os.environ["SOURCE_DATE_EPOCH"] = "1000000000"  # a model tells when it was made
    setattr(drawing.Chart, "_saved", drawn_plainly)  # noqa: B010  # for this process alone
    cache._FLUSH_SECONDS = math.inf  # how long a command takes has no say in what it asks for
    try:
        with watched(folder, fault) as seen:
            code = command(*words)
    except BaseException:
        traceback.print_exc()
        code = 1
    if log is not None:
        log.write_text(json.dumps(seen))
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def watched(folder: Path, fault: Fault | None = None) -> Iterator[list[Operation]]:
    """Note every open, write, fsync and rename below ``folder``, and let one of them fail."""
    seen: list[Operation] = []
    root = f"{folder.resolve()}{os.sep}"
    real_open, real_fsync, real_replace, real_os_open = io.open, os.fsync, os.replace, os.open

    def below(path: Any) -> str | None:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        place = os.path.abspath(os.fspath(path))
        return re.sub(r"\.[a-z0-9_]{8}\.part$", ".part", place[len(root) :]) if f"{place}/".startswith(root) else None

    def ask(kind: str, path: Any) -> int | None:
        """Note an operation; return the error that it shall meet, if it is the one."""
        name = below(path)
        if name is None:
            return None
        seen.append(Operation(kind, name))
        return fault.error if fault is not None and fault.number == len(seen) - 1 else None

    def fail(kind: str, path: Any) -> None:
        if error := ask(kind, path):
            raise OSError(error, os.strerror(error))

    class Raw(io.FileIO):
        def write(self, data: Any) -> int | None:  # type: ignore[override]
            error = ask("write", self.fileno())
            if error == 0:
                super().write(bytes(data)[: len(data) // 2])
                raise OSError(errno.ENOSPC, "No space left on device (after half of the bytes)")
            if error:
                raise OSError(error, os.strerror(error))
            return super().write(data)

    def open_(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        writes = any(letter in mode for letter in "wax+")
        if not isinstance(file, int):
            fail("open" if writes else "read", file)
        if not writes or below(file) is None:
            return real_open(file, mode, *args, **options)
        raw = Raw(file, mode.replace("b", "").replace("t", ""))
        buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        text = {name: value for name, value in options.items() if name in ("encoding", "errors", "newline")}
        return io.TextIOWrapper(buffered, **text)

    def os_open(path: Any, flags: int, *args: Any, **options: Any) -> int:
        fail("open" if flags & (os.O_WRONLY | os.O_RDWR) else "read", path)
        return real_os_open(path, flags, *args, **options)

    def fsync(descriptor: int) -> None:
        fail("fsync", descriptor)
        real_fsync(descriptor)

    def replace(source: Any, target: Any, **options: Any) -> None:
        fail("rename", target)
        real_replace(source, target, **options)

    patches: list[tuple[Any, str, Callable[..., Any]]] = [
        (io, "open", open_), (builtins, "open", open_), (os, "open", os_open), (os, "fsync", fsync),
        (os, "replace", replace),
    ]  # fmt: skip
    before = [getattr(module, name) for module, name, _ in patches]
    for module, name, new in patches:
        setattr(module, name, new)
    try:
        yield seen
    finally:
        gc.collect()
        for (module, name, _), old in zip(patches, before, strict=True):
            setattr(module, name, old)


def contents(folder: Path) -> dict[str, str]:
    """Return digests of all files below a folder; what says when, and how long something took, is left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in _VOLATILE:
            found[str(path.relative_to(folder))] = hashlib.sha256(_timeless(path)).hexdigest()
    return found


def _timeless(path: Path) -> bytes:
    data = path.read_bytes()
    if path.name == "metrics.jsonl":
        return _START.sub(b"", _SPEED.sub(b"", data))
    if path.name == "index.html":
        return _LOG.sub(b"", data)
    if path.name == "report.json":  # names the log by its contents
        return b"report"
    if path.parent.name == "checkpoints":  # Python's own generator, from which training does not draw, has no seed
        with contextlib.suppress(ArtifactError):
            tensors, meta = read_artifact(path, kind="checkpoint", schema=1)
            del meta["python"]
            parts = [json.dumps(meta).encode(), *(name.encode() + _bytes(tensors[name]) for name in sorted(tensors))]
            return b"".join(parts)
    return data


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def leftovers(folder: Path) -> list[str]:
    """Return the temporary files below a folder."""
    return [path.name for path in folder.rglob(".*.part")]


def grow_old(folder: Path) -> None:
    """Let temporary files look as if their writers had died an hour ago."""
    for path in folder.rglob(".*.part"):
        os.utime(path, (time.time() - 3600,) * 2)
