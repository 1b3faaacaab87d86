"""Train the networks of a study side by side on one GPU; each job ends with one small file of outputs.

    python -m benchmarks.train_study OUT JOB ... --processes 5 --seconds 570 --set data.source=ham10000:PLACE

A job is called after its file, and says what it trains: ``fold-0-seed-1`` and ``regular-0-seed-1`` (an outer fold),
``site-rosendahl-seed-0`` (a site that is held out), ``recipe-paper-seed-2`` (one network at the paper's settings). Its
configurations lie in the folder ``--studies``. Trainings are started in the order given, as many as ``--processes`` at
once. As soon as a job's networks are trained and embedded, ``OUT/JOB.npz`` is written, in one piece
(:mod:`benchmarks.saved_outputs`), and of a fold with ``--views`` ``OUT/views-JOB.npz`` too
(:mod:`benchmarks.other_views`). Jobs whose files are there are skipped. A training that fails is told and stops no
other. After ``--seconds`` what still runs is ended; the same command goes on from the last checkpoints. The exit code
is 0 once every file is there.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tdumpra.runs import trainings
from tdumpra.runs.config import read_config
from tdumpra.runs.folder import Member, members

# What a job trains: its configurations, and what its name changes in them.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fold": (("folds-lite0-ce", "folds-lite2"), ("data.fold={part}",)),
    "regular": (("folds-lite0-ce", "folds-lite2-regular"), ("data.fold={part}",)),
    "site": (("sites-lite0-ce", "sites-lite2"), ("data.hold_out=site={part}", "folder=runs/{study}-{part}")),
    "recipe": (("recipe-{part}",), ()),
}
_NAME = re.compile(rf"({'|'.join(KINDS)})-(.+)-seed-(\d+)")
LOGS = Path("runs/train_study")
_PAUSE = 0.2  # seconds between two looks at the processes


class Job(NamedTuple):
    """A job by its name, and the configurations of its networks."""

    name: str
    studies: tuple[Path, ...]
    changes: tuple[str, ...]
    seed: int

    @classmethod
    def parse(cls, name: str, folder: Path, changes: Sequence[str]) -> Job:
        """Read a job's name; ``changes`` are made to every configuration."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise SystemExit(f"a job is KIND-PART-seed-NUMBER with one of {', '.join(KINDS)}, not {name!r}")
        kind, part, seed = found.groups()
        studies, own = KINDS[kind]
        files = tuple(folder / f"{study.format(part=part)}.toml" for study in studies)
        return cls(name, files, (*changes, *(change.replace("{part}", part) for change in own)), int(seed))

    def member(self, number: int) -> Member:
        """Return one of the job's trainings: its configuration, seed and folder."""
        study = self.studies[number]
        config = read_config(study, changes=[change.replace("{study}", study.stem) for change in self.changes])
        for each in members(config):
            if each.seed == self.seed:
                return each
        raise SystemExit(f"{self.name}: {study} has the seeds {', '.join(map(str, config.seeds))}")

    def members(self) -> list[Member]:
        """Return all of the job's trainings."""
        return [self.member(number) for number in range(len(self.studies))]

    def files(self, out: Path, *, views: bool) -> list[Path]:
        """Return the files that the job ends with; views are taken of the folds."""
        names = [self.name, f"views-{self.name}"] if views and self.name.startswith("fold-") else [self.name]
        return [out / f"{name}.npz" for name in names]


def train_one(job: Job, number: int, out: Path, *, views: bool) -> None:
    """Train and embed one network of a job; whoever ends last writes the job's files."""
    from benchmarks import other_views, saved_outputs
    from tdumpra.runs.pixel_stages import train_and_embed

    config, seed, folder = job.member(number)
    train_and_embed(config, folder, seed)
    every = job.members()
    if not all(trainings.is_made(each.folder, each.config, each.seed) for each in every):
        return
    writers: tuple[Callable[..., None], ...] = (saved_outputs.main, other_views.main)
    for path, write in zip(job.files(out, views=views), writers, strict=False):
        if not path.exists():
            write(path, *(each.folder.root for each in every))


@dataclass(slots=True)
class Training:
    """One network of a job, and the process that trains it."""

    job: Job
    number: int
    process: subprocess.Popen[bytes] | None = None
    begun: float = 0.0

    @property
    def name(self) -> str:
        """Return a name for a person."""
        return f"{self.job.name} {self.job.studies[self.number].stem}"

    @property
    def log(self) -> Path:
        """Return the file of what the process says."""
        return LOGS / f"{self.job.name}-{self.number}.log"

    def start(self, arguments: Sequence[str], threads: int) -> None:
        """Start a process for this network alone: what goes wrong in it harms no other."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.train_study", *arguments, "--one", str(self.number)]
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        self.begun = time.monotonic()

    def ended(self) -> str | None:
        """Return how the process ended, in words; ``None`` while it runs."""
        code = None if self.process is None else self.process.poll()
        if code is None:
            return None
        if code == 0:
            return f"done after {time.monotonic() - self.begun:.0f} s"
        said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing was said"]
        return f"FAILED (exit code {code}, {self.log}): {said[-1]}"


def train_all(waiting: list[Training], options: argparse.Namespace) -> bool:
    """Train what is asked for, so many at once; whether nothing failed and nothing is left."""
    end, n = time.monotonic() + options.seconds, len(waiting)
    threads = max(1, (os.cpu_count() or 1) // options.processes)
    running: list[Training] = []
    done, failed = 0, 0
    try:
        while (waiting or running) and time.monotonic() < end:
            while waiting and len(running) < options.processes:
                running.append(waiting.pop(0))
                running[-1].start(_arguments(running[-1].job.name, options), threads)
            for each in [each for each in running if each.ended() is not None]:
                running.remove(each)
                told = each.ended() or ""
                done, failed = done + (not told.startswith("FAILED")), failed + told.startswith("FAILED")
                told += f" [{done} of {n} done, {failed} failed, {len(running)} running, {len(waiting)} waiting]"
                print(f"{time.strftime('%H:%M:%S')} {each.name}: {told}", flush=True)
            time.sleep(_PAUSE)
    finally:
        for each in running:
            if each.process is not None:
                each.process.terminate()
                each.process.wait()
                print(f"{time.strftime('%H:%M:%S')} {each.name}: ended before its time, to be gone on with", flush=True)
    return not (failed or waiting or running)


def _arguments(name: str, options: argparse.Namespace) -> list[str]:
    changes = [part for change in options.set for part in ("--set", change)]
    return [str(options.out), name, "--studies", str(options.studies), *changes, *(["--views"] * options.views)]


def missing(jobs: Sequence[Job], out: Path, *, views: bool) -> Iterator[Training]:
    """Yield the trainings of the jobs whose files are not there; of each job, those that are not made."""
    for job in jobs:
        if all(path.exists() for path in job.files(out, views=views)):
            print(f"{job.name}: there")
            continue
        made = [trainings.is_made(each.folder, each.config, each.seed) for each in job.members()]
        left = [number for number, is_made in enumerate(made) if not is_made] or [len(made) - 1]  # to write the files
        yield from (Training(job, number) for number in left)


def decode_once(jobs: Sequence[Job]) -> None:
    """Decode the images before the first training, for each framing, instead of in every process."""
    from tdumpra.data.dataset import open_data

    settings = {(each.data.source, each.data.framing): each for job in jobs for each, _, _ in job.members()}
    for config in settings.values():
        if config.data.cache is not None:
            begun = time.monotonic()
            images = len(open_data(config.data, config.seeds[0]).manifest.records)
            print(f"{config.data.source}: {images:,} images in {time.monotonic() - begun:.0f} s", flush=True)


def main() -> int:
    """Train the jobs, or one network of one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("jobs", nargs="+", metavar="JOB")
    parser.add_argument("--studies", type=Path, default=Path("studies/ham10000"))
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which what runs is ended")
    parser.add_argument("--views", action="store_true", help="also write the outputs of other views of the folds")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="in every configuration")
    parser.add_argument("--one", type=int, help="train this network of the job, here")
    options = parser.parse_args()
    jobs = [Job.parse(name, options.studies, options.set) for name in dict.fromkeys(options.jobs)]
    if options.one is not None:
        train_one(jobs[0], options.one, options.out, views=options.views)
        return 0
    todo = list(missing(jobs, options.out, views=options.views))
    if not todo:
        return 0
    decode_once([each.job for each in todo])
    return 0 if train_all(todo, options) else 1


if __name__ == "__main__":
    sys.exit(main())
