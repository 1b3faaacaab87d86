"""Kills of commands, workers and machines while a Ray cluster scores: the rows are those of one machine, to the bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ray_machines import Machines, two_machines
from tests.campaigns.archive import TRUST, check_is_right, write_archive
from tests.campaigns.children import contents, grow_old
from tests.campaigns.record import ATTEMPTS, Tally
from tests.campaigns.world import command, write_images_config

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.filterwarnings("default"),  # Ray has warnings of its own
]
KINDS = ("command", "worker", "machine")
PATIENCE = 900


class Scoring:
    """A command on the cluster, and what it should leave behind."""

    def __init__(self, root: Path, machines: Machines) -> None:
        self.root, self.machines = root, machines
        config = write_images_config(root, backbone="tiny_networks:slow")
        trust = [word.replace("plain", "slow") for word in TRUST]
        assert command("run", config, "--out", root / "run") == 0
        self.words = ["score", root / "run", write_archive(root / "archive"), *trust]
        assert command(*self.words, "--out", root / "whole") == 0
        self.whole = contents(root / "whole")
        began = time.monotonic()
        assert self.start(root / "first").wait(PATIENCE) == 0, self.log()
        self.seconds = time.monotonic() - began

    def start(self, out: Path) -> Any:
        words = [*self.words, "--out", out, "--engine", "ray", "--address", self.machines.address]
        with (self.root / "log").open("wb") as log:
            return subprocess.Popen([sys.executable, "-m", "tdumpra", *map(str, words)], stdout=log, stderr=log)

    def log(self) -> str:
        return (self.root / "log").read_text(errors="replace")[-600:]

    def disturbed(self, out: Path, rng: random.Random, most: int) -> tuple[list[str], str]:
        """Kill up to ``most`` times, and run to the end; return what was killed, and what is wrong."""
        process, killed = self.start(out), list[str]()
        for kind in rng.choices(KINDS, k=most):
            time.sleep(rng.uniform(0, self.seconds / 2))
            if process.poll() is not None:
                break
            if kind == "command":
                process.kill()
                process.wait()
                if (out / "plan.json").exists() and not check_is_right(out):
                    return [*killed, kind], "--check tells something else than what is there"
                process = self.start(out)
            elif kind == "machine":
                self.machines.kill_second()
                self.machines.add()
            elif workers := self.machines.workers():
                os.kill(rng.choice(workers), signal.SIGKILL)
            else:
                continue
            killed.append(kind)
        code = process.wait(PATIENCE)
        grow_old(out)
        if code != 0:
            return killed, f"code {code}: {self.log()}"
        if not check_is_right(out):
            return killed, "--check tells something else than what is there"
        return killed, "" if contents(out) == self.whole else "the rows are not those of one machine"


def test_kills_on_a_cluster(tmp_path, monkeypatch):
    wanted, rng = int(os.environ.get(ATTEMPTS, 50)), random.Random(8)
    tallies = {kind: Tally("kills", f"score on Ray {kind}") for kind in KINDS}
    first = tallies[KINDS[0]]
    with two_machines(monkeypatch) as machines:
        scoring, number = Scoring(tmp_path, machines), 0
        while (tried := sum(tally.tried for tally in tallies.values())) < wanted and not first.is_late:
            number += 1
            killed, wrong = scoring.disturbed(tmp_path / str(number), rng, min(3, wanted - tried))
            for kind in killed:
                tallies[kind].note("silently wrong" if wrong else "made again", f"{killed}: {wrong}")
            if wrong:
                break
    for tally in tallies.values():
        tally.finish()
