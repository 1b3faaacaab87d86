"""The command ``score``: an archive of images into Parquet parts, and the proof that none is missing."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tdumpra.artifacts import fingerprint
from tdumpra.cli.predict import load_predictor, model_file
from tdumpra.errors import ArtifactError
from tdumpra.limits import VARIABLE
from tdumpra.locks import exclusive
from tdumpra.scoring.folder import Checked, Plan, ScoreFolder, merge_folders
from tdumpra.scoring.listing import is_address, list_source
from tdumpra.scoring.on_ray import import_ray, score_on_ray
from tdumpra.scoring.ray_worker import Work
from tdumpra.scoring.score import PartDone, score_parts
from tdumpra.screen import print_json, progress, say
from tdumpra.values import check_choice, check_count

_MOST_REASONS = 5


def score_command(
    model: Path,
    source: str,
    out: Path,
    *,
    shard: str,
    part_size: int,
    engine: str,
    address: str | None,
    decoders: int | None,
    embeddings: bool,
    as_json: bool,
    device: str | None,
    **options: Any,
) -> None:
    """Score the parts of one shard that are not finished, then say what the folder holds."""
    number, shards = parse_shard(shard)
    if part_size < 1:
        raise ValueError(f"--part-size must be 1 or more, not {part_size}")
    check_choice(engine, "--engine", ("local", "ray"))
    if address is not None and engine != "ray":
        raise ValueError("--address names a Ray cluster: give --engine ray too")
    if decoders is not None:
        check_count(decoders, "--decoders")
        if engine != "ray":
            raise ValueError("--decoders are actors of Ray: give --engine ray too")
    if engine == "ray":
        import_ray(address)  # what is missing is told before anything is loaded
    predictor = load_predictor(model, device="cpu" if engine == "ray" else device, **options)
    data = model_file(model).read_bytes()
    plan = Plan(
        model=fingerprint(data),
        class_names=tuple(predictor.model.class_names),
        source=source if is_address(source) else str(Path(source).resolve()),
        engine="torch",
        mode=predictor.mode,
        embeddings=embeddings,
        part_size=part_size,
    )
    folder = ScoreFolder.join(out, plan, lambda: list_source(source))
    parts = folder.parts(number, shards)
    console = Console(stderr=True, quiet=as_json)
    with exclusive(out / f".shard-{number}-of-{shards}.lock", on_wait=lambda: _waiting(console), inherited=False):
        left = sum(part.stop - part.start for part in folder.unfinished(parts))
        with progress("scoring", left, console=console) as step:
            clock = _Clock(left, console)
            if engine == "ray":
                said, trusted = os.environ.get(VARIABLE, ""), tuple(options["trusted"])
                work = Work(data, plan.source, embeddings, predictor.mode, trusted, said)
                score_on_ray(
                    folder, parts, work, address=address, device=device, decoders=decoders, on_image=step,
                    on_part=clock.tell,
                )  # fmt: skip
            else:
                score_parts(predictor, folder, parts, on_image=step, on_part=clock.tell)
    _report(folder, as_json=as_json, tidy=True)


def check_command(out: Path, merge: Sequence[Path], *, as_json: bool) -> None:
    """Join folders, if there are any to join, and look at every byte; fails unless every input has exactly one row."""
    folder = merge_folders(merge, out) if merge else ScoreFolder.open(out)
    checked = _report(folder, as_json=as_json)
    if not checked.complete:
        wrong = f"{len(checked.missing):,} of {len(folder.parts()):,} parts are missing"
        if checked.damaged:
            wrong += f", and {checked.damaged[0]} is damaged"
        if not checked.missing:
            wrong = f"the rows of {checked.surplus[0].name} are there twice"
        raise ArtifactError(f"{out} is not complete: {wrong}; run the same  tdumpra score  again")


def parse_shard(text: str) -> tuple[int, int]:
    """Return the numbers of ``3/8``: the third of eight."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"--shard takes the third of eight as  3/8,  and counts from 1, not {text!r}")
    return int(found[1]), int(found[2])


class _Clock:
    """Tell the rate and the time left after each part, where no bar can be seen."""

    def __init__(self, left: int, console: Console) -> None:
        self.left, self.done, self.console, self.start = left, 0, console, time.monotonic()

    def tell(self, done: PartDone) -> None:
        n = done.part.stop - done.part.start
        self.done += n
        if self.console.is_terminal:
            return
        rate = self.done / max(time.monotonic() - self.start, 1e-9)
        told = f"part {done.part.number}: {n:,} image{'s' if n > 1 else ''}"
        broken = f", {done.broken:,} of them broken" if done.broken else ""
        left = (self.left - self.done) / rate
        in_words = f"{left / 60:,.0f} min" if left > 90 else f"{left:.0f} s"
        say(f"{told}{broken}; {rate:,.{0 if rate > 10 else 1}f} a second, {in_words} left", self.console)


def _waiting(console: Console) -> None:
    say("another process works on this shard: waiting for it to end", console)


def _report(folder: ScoreFolder, *, as_json: bool, tidy: bool = False) -> Checked:
    """Check a folder, write the manifest if it is complete, and say what was found; ``tidy`` removes rows' doubles."""
    checked = folder.check()
    if tidy:
        for path in checked.surplus:
            path.unlink(missing_ok=True)
        checked = checked._replace(surplus=[])
    if checked.complete:
        folder.write_manifest(checked)
    else:
        folder.drop_manifest()
    if as_json:
        counts = {name: getattr(checked, name) for name in ("complete", "inputs", "rows", "broken", "missing")}
        files = {name: list(map(str, getattr(checked, name))) for name in ("damaged", "surplus")}
        print_json({**counts, **files})
        return checked
    say(f"{checked.rows:,} of {checked.inputs:,} images have their row in {folder.path / 'parts'}")
    if checked.broken:
        say(f"{checked.broken.total():,} of them could not be predicted:")
        for reason, n in checked.broken.most_common(_MOST_REASONS):
            say(f"  {n:,}: {reason}")
    if checked.missing:
        say(f"{len(checked.missing):,} of {len(folder.parts()):,} parts are still to do")
    return checked
