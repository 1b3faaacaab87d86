"""SIGKILL at any moment of a command: the next one finishes what was begun, and ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.campaigns import children
from tests.campaigns.archive import TRUST, check_is_right, write_archive
from tests.campaigns.children import contents, grow_old, leftovers
from tests.campaigns.record import Tally, attempts
from tests.campaigns.world import save_arrays, write_arrays_config, write_images_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
COMMANDS = ("run", "attach", "evaluate", "report", "score")


def computed(process: int) -> float:
    """Return the seconds that a process has computed, which a busy machine does not lengthen."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Killed:
    """A command in a folder that is put back, again and again."""

    def __init__(self, root: Path, command: str) -> None:
        self.work, self.before = root / "work", root / "before"
        self.work.mkdir()
        out = self.work / "out"
        self.words: Sequence[object]
        if command == "run":
            self.words = ("run", write_images_config(root), "--out", out)
        elif command == "attach":
            self.words = ("attach", save_arrays(root / "saved.npz"), "--out", out, "--preset", "paper")
        elif command == "evaluate":
            self.words = ("evaluate", write_arrays_config(root, 0, 1), "--out", out)
        elif command == "score":
            assert children.run(("run", write_images_config(root), "--out", root / "run"), self.work).code == 0
            self.words = ("score", root / "run", write_archive(root / "archive"), "--out", out, *TRUST)
        else:
            assert children.run(("run", write_images_config(root), "--out", out), self.work).code == 0
            shutil.rmtree(out / "report")
            self.words = ("report", out)
        shutil.copytree(self.work, self.before)
        process, self.seconds = children.start(self.words, self.work), 0.0
        while process.exitcode is None:
            self.seconds = max(self.seconds, computed(process.pid))
            time.sleep(0.01)
        assert children.end(process, self.work).code == 0
        self.whole = contents(out)

    def put_back(self) -> None:
        shutil.rmtree(self.work)
        shutil.copytree(self.before, self.work)

    def kill(self, rng: random.Random) -> bool:
        """Kill the command after a random share of its computing; return whether it was still at work."""
        process, share = children.start(self.words, self.work), rng.uniform(0.0, 1.0)
        while process.exitcode is None and computed(process.pid) < share * self.seconds:
            time.sleep(0.002)
        process.kill()
        return children.end(process, self.work).code == -signal.SIGKILL

    def finish(self) -> str:
        """Run the command to its end; return what it complained of."""
        out = self.work / "out"
        if self.words[0] == "score" and (out / "plan.json").exists() and not check_is_right(out):
            return "--check tells something else than what is there"
        ended = children.run(self.words, self.work)
        return "" if ended.code == 0 and "Traceback" not in ended.told else f"code {ended.code}: {ended.told[-600:]}"


@pytest.mark.parametrize("command", COMMANDS)
@attempts(1, 50)
def test_a_killed_command_is_finished_by_the_next(tmp_path, command, attempts):
    killed, rng = Killed(tmp_path, command), random.Random(12)
    tally, misses = Tally("kills", command), 0
    while tally.tried < attempts and not tally.is_late:
        killed.put_back()
        kills = 0
        for _ in range(min(rng.randint(1, 4), attempts - tally.tried)):
            if not killed.kill(rng):
                misses += 1
                break  # it had ended
            kills += 1
        grow_old(killed.work)
        complaint = killed.finish()
        found = contents(killed.work / "out")
        differing = sorted(name for name in {*found, *killed.whole} if found.get(name) != killed.whole.get(name))
        wrong = complaint or (f"{differing} differ" if differing else "") or ", ".join(leftovers(killed.work))
        for _ in range(kills):
            tally.note(("traceback" if complaint else "silently wrong") if wrong else "made again", wrong)
        assert misses < 20 + attempts
        if len(tally.failures) > 20:
            break
    tally.finish()
