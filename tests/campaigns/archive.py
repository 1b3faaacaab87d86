"""A small archive to score, and an independent look at what scoring left behind."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from PIL import Image
from tests.campaigns.world import command

PICTURES, PART = 40, 3
TRUST = ("--part-size", str(PART), "--trust-code", "tiny_networks:plain")


def picture(seed: int) -> bytes:
    """Return a PNG of noise."""
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (32, 32, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write_archive(folder: Path) -> Path:
    """Write pictures, half of them in a shard, and a file that only says it is one."""
    folder.mkdir(parents=True)
    with tarfile.open(folder / "shard.tar", "w") as shard:
        for i in range(PICTURES):
            data = picture(i)
            if i % 2:
                (folder / f"{i:02d}.png").write_bytes(data)
            else:
                info = tarfile.TarInfo(f"{i:02d}.png")
                info.size = len(data)
                shard.addfile(info, io.BytesIO(data))
    (folder / "no.png").write_text("no picture")
    return folder


def told(out: Path) -> tuple[int, dict[str, Any]]:
    """Return the exit code of ``score --check``, and what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        code = command("score", "--check", "--out", out, "--json")
    return code, json.loads(said.getvalue() or "{}")


def check_is_right(out: Path) -> bool:
    """Return whether ``score --check`` tells what is there, counted without any code of the command."""
    code, said = told(out)
    listed = pyarrow.parquet.read_table(out / "listing.parquet", columns=["id"])["id"].to_pylist()
    there = rows(out)
    missing = {i // PART for i in range(len(listed))} - there.keys()
    right = all(there[number] == listed[number * PART : (number + 1) * PART] for number in there)
    complete = not missing
    if complete and len(list((out / "parts").glob("*.parquet"))) != len(there):  # a reader of all would get rows twice
        return False
    return right and (code, said["complete"], set(said["missing"])) == (0 if complete else 2, complete, missing)


def rows(out: Path) -> dict[int, list[str]]:
    """Return the ids of the rows of each part whose bytes are those that its name speaks of."""
    found = {}
    for path in (out / "parts").glob("*.parquet"):
        named = re.fullmatch(r"part-(\d+)-([0-9a-f]+)\.parquet", path.name)
        data = path.read_bytes()
        if named and hashlib.sha256(len(data).to_bytes(8, "little") + data).hexdigest()[:16] == named[2]:
            found[int(named[1])] = pyarrow.parquet.read_table(path)["id"].to_pylist()
    return found
