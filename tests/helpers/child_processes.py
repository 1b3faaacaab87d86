"""Child processes that train, and are killed. They are forked from a clean server that has imported everything once."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import tiny_runs
import torch

from tdumpra import artifacts, writing
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder

WRITE_MOMENTS = ("half written", "not synced", "not renamed", "renamed")


@functools.cache
def _context() -> Any:
    # the server imports by PYTHONPATH alone
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def start(target: Callable[..., None], *args: Any) -> BaseProcess:
    """Run ``target`` in a process of its own."""
    process: BaseProcess = _context().Process(target=_guarded, args=(target, args))
    process.start()
    return process


def finish(process: BaseProcess, timeout: float = 120) -> int:
    """Its exit code; a process that hangs is killed and fails the test."""
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"the child process did not end within {timeout} s")
    return process.exitcode


def _guarded(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # for data workers; else they would have a server of their own
    try:
        target(*args)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def train(config: Config, root: Path, die_at: tuple[int, str] | None = None) -> None:
    """Train in ``root``; with ``die_at`` the process kills itself at that moment of that checkpoint's writing."""
    if die_at is not None:
        _die_while_writing(*die_at)
    tiny_runs.train_run(config, root)


def hold(config: Config, root: Path) -> None:
    """Claim the folder, leave a forked child behind that only sleeps, and wait to be killed."""
    with RunFolder(root).claim(config, 0):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        (root / "held").touch()
        time.sleep(60)


def _die_while_writing(number: int, moment: str) -> None:
    """Arrange for SIGKILL at one of ``WRITE_MOMENTS`` of the checkpoint write with that number."""
    real_write, writes = writing.write_together, []

    def write_together(files: Mapping[Path, Sequence[writing.Bytes]]) -> None:
        if any(path.parent.name == "checkpoints" for path in files):
            writes.append(files)
            if len(writes) == number + 1:
                _arm(moment)
        real_write(files)

    setattr(artifacts, "write_together", write_together)  # noqa: B010, as it is known to its callers


def _arm(moment: str) -> None:
    real_fdopen, real_fsync, real_replace = os.fdopen, os.fsync, Path.replace

    def fdopen(*args: Any) -> Any:
        file = real_fdopen(*args)
        real = file.write

        class Half:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: Any) -> None: ...

            def writelines(self, parts: Sequence[writing.Bytes]) -> None:
                data = b"".join(parts)
                real(data[: len(data) // 2])
                file.flush()
                _die()

        return Half()

    def fsync(descriptor: int) -> None:
        _die()
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        if moment == "renamed":
            real_replace(self, target)
        _die()
        return target

    if moment == "half written":
        os.fdopen = fdopen  # type: ignore[assignment]
    elif moment == "not synced":
        os.fsync = fsync  # type: ignore[assignment]
    else:
        Path.replace = replace  # type: ignore[assignment, method-assign]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
