"""What befalls an archive while it is scored: no row is lost, none is there twice, and ``--check`` knows."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from tests.campaigns import children
from tests.campaigns.archive import TRUST, check_is_right, rows, told, write_archive
from tests.campaigns.children import FAULTS, Ended, Fault, Operation, contents, grow_old, leftovers
from tests.campaigns.record import Tally, attempts
from tests.campaigns.world import write_images_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Scoring:
    """An archive and a folder of results that are put back, again and again."""

    def __init__(self, root: Path) -> None:
        self.root, self.work = root, root / "work"
        self.work.mkdir()
        self.archive, self.out = self.work / "archive", self.work / "out"
        assert children.run(("run", write_images_config(root), "--out", root / "run"), self.work).code == 0
        write_archive(self.archive)
        shutil.copytree(self.work, root / "before")
        assert self.score().code == 0
        self.whole = contents(self.out)
        self.ids = sorted(id for part in rows(self.out).values() for id in part)

    def words(self, source: Path | None = None) -> tuple[object, ...]:
        return ("score", self.root / "run", source or self.archive, "--out", self.out, *TRUST)

    def put_back(self) -> None:
        shutil.rmtree(self.work)
        shutil.copytree(self.root / "before", self.work)

    def times(self, many: int, tally: Tally) -> Iterator[int]:
        """Yield the numbers of attempts, all put back before each, until there is no time left."""
        for number in range(many):
            if tally.is_late:
                return
            self.put_back()
            yield number

    def score(self, fault: Fault | None = None, log: Path | None = None) -> Ended:
        return children.run(self.words(), self.work, fault=fault, log=log)

    def table(self) -> pd.DataFrame:
        return pd.concat([pd.read_parquet(path) for path in sorted((self.out / "parts").glob("*.parquet"))])

    def wrong(self, ended: Ended, *, same: bool) -> tuple[str, str] | None:
        """Return what is not as it must be after a command that ended well."""
        if ended.code != 0 or "Traceback" in ended.told:
            return "traceback", f"code {ended.code}: {ended.told[-600:]}"
        if not check_is_right(self.out) or told(self.out)[0] != 0:
            return "silently wrong", "--check is wrong, or the folder is not complete"
        if same and contents(self.out) != self.whole:
            return "silently wrong", "the rows are not those of an undisturbed run"
        return None


@pytest.fixture(scope="module")
def scoring(tmp_path_factory) -> Scoring:
    return Scoring(tmp_path_factory.mktemp("scoring"))


def kill_one_child(process: int, rng: random.Random) -> bool:
    """Kill one of the processes that a command has started, once there is one."""
    deadline = time.monotonic() + 60
    time.sleep(rng.uniform(0, 0.2))
    while time.monotonic() < deadline and Path(f"/proc/{process}").exists():
        with contextlib.suppress(OSError):
            found = [
                child
                for thread in Path(f"/proc/{process}/task").iterdir()
                for child in (thread / "children").read_text().split()
            ]
            if found:
                os.kill(int(rng.choice(found)), signal.SIGKILL)
                return True
        time.sleep(0.001)
    return False


@attempts(1, 50)
def test_a_killed_worker_costs_nothing(scoring, attempts):
    tally, rng = Tally("kills", "worker of score"), random.Random(3)
    for _ in scoring.times(20 + 2 * attempts, tally):  # some have ended before they can be killed
        process = children.start(scoring.words(), scoring.work)
        killed = kill_one_child(process.pid, rng)
        ended = children.end(process, scoring.work)
        if killed:
            tally.note(*(scoring.wrong(ended, same=True) or ("made again", "")))
        if tally.tried == attempts:
            break
    assert tally.tried
    tally.finish()


@attempts(2, 100)
def test_a_shard_that_is_cut_short_loses_what_lay_behind_and_says_so(scoring, attempts):
    tally, rng = Tally("archives", "shard cut short"), random.Random(4)
    for _ in scoring.times(attempts, tally):
        shard = scoring.archive / "shard.tar"
        with tarfile.open(shard) as opened:
            ends = {f"shard.tar/{each.name}": each.offset_data + each.size for each in opened.getmembers()}
        listed_before = rng.random() < 0.5  # cut while the job is under way, or before it began
        if listed_before:
            children.run(("score", *scoring.words()[1:], "--shard", "1/20"), scoring.work)
        cut = rng.randrange(512, shard.stat().st_size - 1024)
        os.truncate(shard, cut)
        finished = {id for part in rows(scoring.out).values() for id in part} if listed_before else set()
        found = scoring.wrong(scoring.score(), same=False)
        if found is None:
            errors = scoring.table().set_index("id").error
            lost = {id for id, end in ends.items() if end > cut} - finished
            broken, whole = set(errors.dropna().index), {*scoring.ids} - lost
            if listed_before:
                right = sorted(errors.index) == scoring.ids and broken == {*lost, "no.png"}
            else:  # of an image whose beginning is there, a row tells that the rest is not
                right = errors.index.is_unique and whole <= {*errors.index} <= whole | lost | {"shard.tar"}
                right = right and broken == {*errors.index} - whole | {"no.png"} and (not lost or "shard.tar" in broken)
            found = None if right else ("silently wrong", f"cut at {cut}, {listed_before=}: {errors.dropna()}")
        tally.note(*(found or ("refused" if lost else "read", "")))
    tally.finish()


@attempts(2, 100)
def test_a_file_that_vanishes_has_a_row(scoring, attempts):
    tally, rng = Tally("archives", "file that vanishes"), random.Random(5)
    for _ in scoring.times(attempts, tally):
        gone = rng.choice([id for id in scoring.ids if "/" not in id and id != "no.png"])
        process = children.start(scoring.words(), scoring.work)
        while process.exitcode is None and not (scoring.out / "plan.json").exists():
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.1))
        (scoring.archive / gone).unlink()
        found = scoring.wrong(children.end(process, scoring.work), same=False)
        if found is None:
            broken = set(scoring.table().set_index("id").error.dropna().index)
            if sorted(scoring.table().id) != scoring.ids or not {"no.png"} <= broken <= {"no.png", gone}:
                found = "silently wrong", f"{gone}: {broken}"
            tally.note(*(found or (("refused" if gone in broken else "read"), "")))
        else:
            tally.note(*found)
    tally.finish()


@attempts(2, 100)
def test_an_id_that_stands_there_twice_is_refused(scoring, attempts):
    tally, rng = Tally("archives", "duplicated id"), random.Random(6)
    for _ in scoring.times(attempts, tally):
        files = [id for id in scoring.ids if "/" not in id]
        table = [f"{i},archive/{file}" for i, file in enumerate(files)]
        first, second = rng.sample(range(len(files)), 2)
        table[second] = f"{first},archive/{files[second]}"
        source = scoring.work / "list.csv"
        source.write_text("id,image\n" + "\n".join(table) + "\n")
        ended = children.run(scoring.words(source), scoring.work)
        said = ended.code == 2 and "twice" in ended.told and "Traceback" not in ended.told
        nothing = told(scoring.out)[0] == 2 and not rows(scoring.out)
        tally.note("refused" if said and nothing else "silently wrong", ended.told)
    tally.finish()


@attempts(2, 100_000)
def test_a_full_disk_ends_with_a_sentence_and_loses_nothing(scoring, attempts, tmp_path):
    """Every open, write, fsync and rename of a scoring fails once for lack of space."""
    tally, rng = Tally("faults", "score"), random.Random(7)
    scoring.put_back()
    assert scoring.score(log=tmp_path / "log.json").code == 0
    operations = [Operation(*each) for each in json.loads((tmp_path / "log.json").read_text())]
    every = [
        Fault(number, error)
        for number, operation in enumerate(operations)
        for error in FAULTS[operation.kind]
        if error in (errno.ENOSPC, 0) and operation.path.startswith("out")
    ]
    for _, fault in zip(scoring.times(attempts, tally), rng.sample(every, len(every)), strict=False):
        ended = scoring.score(fault)
        where = f"{operations[fault.number]} {fault}"
        if "Traceback" in ended.told or "unexpected" in ended.told or ended.code not in (0, 2):
            tally.note("traceback", f"{where}: {ended.told[-600:]}")
            continue
        wrong = ", ".join(leftovers(scoring.work))
        if (scoring.out / "plan.json").exists() and not check_is_right(scoring.out):
            wrong = "--check tells something else than what is there"
        grow_old(scoring.work)
        if not wrong and (found := scoring.wrong(scoring.score(), same=True)):
            wrong = found[1]
        tally.note("silently wrong" if wrong else "refused" if ended.code else "made again", f"{where}: {wrong}")
    tally.figures = {"operations": len(operations), "faults": len(every)}
    tally.finish()
