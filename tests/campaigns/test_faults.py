"""A fault at every open, write, fsync and rename of a whole run: told in a sentence, and nothing is lost.

The run is cut into windows, so that a fault near the end does not need everything before it once more: each begins
where a fault at its first operation leaves the folder. What a run does after a fault follows from the folder, so a
folder that an earlier fault left behind is not run to its end again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.campaigns import children
from tests.campaigns.children import FAULTS, Ended, Fault, Operation, contents, leftovers
from tests.campaigns.record import Tally, attempts
from tests.campaigns.world import write_images_config

BEGINNINGS = {  # of the windows, by their first operation
    "images to gate": None,
    "model and figures": Operation("open", "out/.model.safetensors.part"),
    "tables": Operation("open", "out/.reliability.png.part"),
    "report": Operation("open", "out/report/data/.cases.csv.part"),
}


class Window(NamedTuple):
    """A part of the run: the folder as it is before, and the operations that belong to it."""

    before: Path
    operations: list[Operation]


class Run:
    """A run in a folder of its own that is put back, again and again."""

    def __init__(self, root: Path) -> None:
        self.root, self.work = root, root / "work"
        self.work.mkdir()
        self.words = ("run", write_images_config(root), "--out", self.work / "out")
        self.ends: dict[str, dict[str, str]] = {}
        self.whole = self._whole()

    def _whole(self) -> dict[str, str]:
        empty = Path(shutil.copytree(self.work, self.root / "empty"))
        operations = self.operations()
        found = contents(self.work / "out")
        self.windows = {"images to gate": Window(empty, operations)}
        for name, first in BEGINNINGS.items():
            if first is None:
                continue
            self.put_back(empty)
            self.run(Fault(operations.index(first), FAULTS["open"][0]))
            before = Path(shutil.copytree(self.work, self.root / f"before {name}"))
            last, window = list(self.windows.items())[-1]
            self.windows[last] = Window(window.before, window.operations[: window.operations.index(first)])
            self.windows[name] = Window(before, self.operations())
        return found

    def operations(self) -> list[Operation]:
        """Run to the end; return what was asked of the file system."""
        log = self.root / "log.json"
        ended = children.run(self.words, self.work, log=log)
        assert ended.code == 0, ended.told
        return [Operation(*each) for each in json.loads(log.read_text())]

    def run(self, fault: Fault | None = None) -> Ended:
        return children.run(self.words, self.work, fault=fault)

    def put_back(self, place: Path) -> None:
        shutil.rmtree(self.work)
        shutil.copytree(place, self.work)

    def end(self) -> dict[str, str]:
        """Run what a fault left behind to its end."""
        state = json.dumps(contents(self.work), sort_keys=True)
        if state not in self.ends:
            ended = self.run()
            self.ends[state] = contents(self.work / "out") if ended.code == 0 else {"the next run": ended.told}
        return self.ends[state]


def outcome(run: Run, window: Window, fault: Fault) -> tuple[str, str]:
    """Let one operation fail, and look at what is left, and at what comes after."""
    run.put_back(window.before)
    before = contents(run.work / "out")
    ended = run.run(fault)
    if "Traceback" in ended.told or "unexpected" in ended.told or ended.code not in (0, 2):
        return "traceback", ended.told[-600:]
    if left := leftovers(run.work):
        return "silently wrong", f"{left} is left behind"
    after = contents(run.work / "out")
    for name, digest in before.items():
        if name != "metrics.jsonl" and after.get(name) not in (digest, run.whole[name]):
            return "silently wrong", f"{name} is neither the old one nor the new one"
    at_end = run.end()
    if at_end != run.whole:
        differing = [name for name in run.whole if at_end.get(name) != run.whole[name]]
        return "silently wrong", f"ends with other {differing}; {at_end.get('the next run', '')}"
    return ("refused" if ended.code else "made again"), ""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return Run(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("name", BEGINNINGS)
@attempts(1, 100_000)
def test_a_fault_anywhere_loses_nothing(run, name, attempts):
    window, tally = run.windows[name], Tally("faults", name)
    every = [
        (operation, Fault(number, error))
        for number, operation in enumerate(window.operations)
        for error in FAULTS[operation.kind]
    ]
    for i in np.random.default_rng(11).permutation(len(every))[:attempts]:
        if tally.is_late:
            break
        operation, fault = every[i]
        found, why = outcome(run, window, fault)
        tally.note(found, f"{operation} {fault}: {why}")
    tally.figures = {"operations": len(window.operations), "faults": len(every)}
    tally.finish()
