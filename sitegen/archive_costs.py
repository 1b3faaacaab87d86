"""What it takes to score an archive, from rates that were measured or that a reader puts in.

python -m sitegen.archive_costs --images 1e9 --image-bytes 200e3 --days 7

Rates that are not given are those of ``docs/results/archive-rates.json``; ``--measure`` measures the sizes in it again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tracemalloc
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

RATES = Path(__file__).resolve().parents[1] / "docs" / "results" / "archive-rates.json"
_HOUR, _DAY = 3600.0, 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a machine does in a second, and what an image takes."""

    machine_images: float  # a second, from files to probabilities, of a machine with one GPU
    machine_cores: float  # of that machine
    passes_images: float  # a second that the GPU alone could take, were it fed
    core_images: float  # a second that one core decodes
    image_bytes: float  # of a file
    part_bytes: float  # of a row in a part
    embedding_bytes: float  # that a row has more with embeddings
    listing_bytes: float  # of a row in the list of images
    listing_memory: float  # of a row of the list in a process
    job_images: float  # in one folder of results
    days: float  # until all are to be scored

    @classmethod
    def read(cls) -> Rates:
        """Return the rates that were measured."""
        stored = json.loads(RATES.read_text(encoding="utf-8"))
        return cls(**{each.name: float(stored[each.name]["value"]) for each in fields(cls)})


def costs(rates: Rates, images: float) -> list[tuple[str, str, str]]:
    """Return what is needed, how much of it, and where that comes from."""
    hours = images / rates.machine_images / _HOUR
    fed = images / rates.passes_images / _HOUR
    decoding = images / rates.core_images / _HOUR
    machines = hours * _HOUR / (rates.days * _DAY)
    rows = images * rates.part_bytes
    read, embedded = images * rates.image_bytes, images * (rates.part_bytes + rates.embedding_bytes)
    fast, slow = f"{rates.passes_images:,.0f} images/s", f"{rates.core_images:,.0f} images/s"
    beside = f"{rates.machine_images:,.0f} images/s with {rates.machine_cores:.0f} cores beside the GPU"
    in_memory = f"{rates.listing_memory:,.0f} bytes an image in each process"
    return [
        ("GPU hours, as measured", f"{hours:,.0f}", beside),
        ("GPU hours, were the GPU always fed", f"{fed:,.0f}", f"{fast}: the networks' passes alone"),
        ("core hours for decoding", f"{decoding:,.0f}", f"{slow} of one core"),
        ("cores that keep one GPU fed", f"{rates.passes_images / rates.core_images:,.0f}", "the two rates above"),
        (f"machines for {rates.days:g} days", f"{machines:,.1f}", "GPU hours, as measured"),
        ("bytes read", _size(read), f"{_size(rates.image_bytes)} an image"),
        ("network into each machine", f"{_size(rates.machine_images * rates.image_bytes)}/s", "at its measured rate"),
        ("network into all machines", f"{_size(read / (rates.days * _DAY))}/s", f"over {rates.days:g} days"),
        ("parts", _size(rows), f"{rates.part_bytes:,.0f} bytes a row of seven classes"),
        ("parts with embeddings", _size(embedded), f"{rates.embedding_bytes:,.0f} more of 128 numbers"),
        ("lists of images", _size(images * rates.listing_bytes), f"{rates.listing_bytes:,.0f} bytes a row"),
        ("jobs (folders of results)", f"{images / rates.job_images:,.0f}", f"{rates.job_images:,.0f} images each"),
        ("memory for a job's list", _size(rates.job_images * rates.listing_memory), in_memory),
    ]


def archive_costs() -> list[list[str]]:
    """Return the table of a billion images."""
    return [["what", "how much", "from"], *(list(row) for row in costs(Rates.read(), 1e9))]


def _size(count: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.3g} {unit}"
    return f"{count:,.0f} bytes"


def measured_sizes(n: int = 2048) -> dict[str, float]:
    """Return the bytes of a row in a part, of its embedding, and of its line in the list, on disk and in memory."""
    import numpy as np
    import pyarrow as pa

    from tdumpra.core.gate import GateSignals
    from tdumpra.runtime.prediction import Prediction
    from tdumpra.scoring.folder import table_bytes
    from tdumpra.scoring.listing import Entry
    from tdumpra.scoring.rows import predictions_table

    rng = np.random.default_rng(0)
    classes = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    p, z = rng.dirichlet(np.ones(7), n), rng.normal(size=(n, 128)).astype(np.float32)
    ids = [f"clinic/{rng.integers(1e6):06d}/ISIC_{number:07d}.jpg" for number in range(n)]
    signals = [
        {name: 1 if name.startswith("label") else float(rng.random()) for name in GateSignals._fields}
        if rng.random() < 0.22
        else None
        for _ in range(n)
    ]
    probabilities = [dict(zip(classes, row, strict=True)) for row in p.tolist()]
    rows = [
        Prediction(ids[i], max(each, key=each.__getitem__), each, False, signals[i], None, embedding=z[i])
        for i, each in enumerate(probabilities)
    ]
    plain, wide = (len(table_bytes(predictions_table(ids, rows, classes, width))) / n for width in (None, 128))
    tracemalloc.start()
    entries = [Entry(f"{name}?", f"/archive/{name}", number) for number, name in enumerate(ids)]
    memory = tracemalloc.get_traced_memory()[0] / n
    tracemalloc.stop()
    columns = dict(zip(Entry._fields, map(list, zip(*entries, strict=True)), strict=True))
    return {
        "part_bytes": round(plain),
        "embedding_bytes": round(wide - plain),
        "listing_bytes": round(len(table_bytes(pa.table(columns))) / n),
        "listing_memory": round(memory),
    }


def main() -> None:
    """Print the table for the rates that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=float, default=1e9)
    parser.add_argument("--measure", action="store_true", help="print the sizes of rows, measured again")
    for each in fields(Rates):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=float)
    asked = vars(parser.parse_args())
    if asked.pop("measure"):
        sys.stdout.write(json.dumps(measured_sizes()) + "\n")
        return
    images, rates = asked.pop("images"), Rates.read()
    rates = replace(rates, **{name: value for name, value in asked.items() if value is not None})
    if images <= 0 or min(asdict(rates).values()) <= 0:
        sys.exit("every rate must be above 0")
    for what, much, source in costs(rates, images):
        sys.stdout.write(f"{what:36} {much:>12}   {source}\n")


if __name__ == "__main__":
    main()
