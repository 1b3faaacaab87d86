"""Clustering rows of a mapped file into prototypes, and finding neighbours among them: ours against faiss's.

ROWS=10000000 python benchmarks/run.py clustering, or python benchmarks/clustering.py --rows 10000000 --out FILE

Each runs in a process of its own. Seconds are the processor's. Memory is the most that the process held beside pages of
the file, which the system takes back when it needs them, less what it held before. Ten million rows take 5 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.common import Row, add_to, within

WIDTH, CLUSTERS, MODES, ITERATIONS = 128, 100, 150, 25  # faiss runs 25 iterations unless told otherwise
FAISS, BANK = "faiss, all rows", "tdumpra, a bank of 20 classes × 5"
QUERIES, NEIGHBOURS = 1_000, 16
_BLOCK = 100_000

T = TypeVar("T")
Search: TypeAlias = Callable[[np.ndarray], np.ndarray]


def run() -> list[Row]:
    """Measure a million rows, or as many as ``ROWS`` says."""
    found = {each["what"]: each for each in measure(int(os.environ.get("ROWS", 1_000_000)), tuple(WAYS))["found"]}
    ours, faiss = found["tdumpra"], found[FAISS]
    return [
        within("clustering, processor time", ours["processor_s"], faiss["processor_s"], unit="s", against="faiss"),
        within("clustering, memory beside the file", ours["memory_gib"], 1.0, unit="GiB", against="1 GiB"),
        within("clustering, objective", ours["objective"], 1.01, unit="", against="1.01 of faiss's on all rows"),
    ]  # fmt: skip


def measure(n: int, ways: Sequence[str] = ()) -> dict[str, Any]:
    """Run every way, or some beside faiss, in a process of its own, on one file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "z.npy"
        write_rows(path, n)
        wanted = ways or (*WAYS, *SEARCHES)
        peers = [*([FAISS] if {*wanted} & {*WAYS} else []), *([EXACT] if {*wanted} & {*SEARCHES} else [])]
        found = [_in_a_process(what, path) for what in dict.fromkeys((*peers, *wanted))]
    document: dict[str, Any] = {"rows": n, "clusters": CLUSTERS, "width": WIDTH, "threads": torch.get_num_threads()}
    if clustered := [each for each in found if each["what"] in WAYS]:
        best = clustered[0]["objective"]
        for each in clustered:  # prototypes of classes that say nothing cannot be near to all rows
            each["objective"] = None if each["what"] == BANK else round(each["objective"] / best, 5)
        document["found"] = clustered
    if searched := [each for each in found if each["what"] in SEARCHES]:
        exact = searched[0]["numbers"]
        for each in searched:
            pairs = zip(each.pop("numbers"), exact, strict=True)
            each["recall"] = round(float(np.mean([len({*some} & {*right}) / len(right) for some, right in pairs])), 4)
        document["searched"] = searched
    return document


def _in_a_process(what: str, path: Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, "--way", what, str(path)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{what} failed: {done.stderr[-2000:]}")
    told = {"what": what, **json.loads(done.stdout.splitlines()[-1])}
    print({name: value for name, value in told.items() if name != "numbers"}, file=sys.stderr, flush=True)
    return told


def write_rows(path: Path, n: int) -> None:
    """Write unit rows around more directions than there are clusters, in no order."""
    rng = np.random.default_rng(0)
    modes = rng.standard_normal((MODES, WIDTH), dtype=np.float32)
    modes /= np.linalg.norm(modes, axis=1, keepdims=True)
    z = np.lib.format.open_memmap(path, "w+", np.float32, (n, WIDTH))
    for start in range(0, n, _BLOCK):
        size = min(_BLOCK, n - start)
        part = modes[rng.integers(0, MODES, size)] + 0.1 * rng.standard_normal((size, WIDTH), dtype=np.float32)
        z[start : start + size] = part / np.linalg.norm(part, axis=1, keepdims=True)
    z.flush()


def ours(z: np.ndarray) -> np.ndarray:
    """Return the centres of one class of all rows."""
    from tdumpra.checks import check_embeddings
    from tdumpra.method.clusters import Directions, cluster_classes

    rows = [torch.arange(len(z))]
    unit = Directions(check_embeddings(z, "z"))
    (found,) = cluster_classes(unit, None, rows, [CLUSTERS], seed=0, merge_above=None, engine=None)
    return found.centers.numpy()


def whole_bank(z: np.ndarray) -> np.ndarray:
    """Return the prototypes of a bank of twenty classes, with weights, exemplars and familiarity of all rows."""
    import tdumpra

    bank = tdumpra.PrototypeBank.fit(z, np.arange(len(z)) % 20, CLUSTERS // 20)
    return bank.prototypes.flatten(0, 1).numpy()


def faiss_on(z: np.ndarray, most: int) -> np.ndarray:
    """Return the centres that faiss finds on at most so many rows for each."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    engine = faiss.Kmeans(WIDTH, CLUSTERS, niter=ITERATIONS, spherical=True, max_points_per_centroid=most)
    engine.train(z)
    return np.array(engine.centroids)


WAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    FAISS: lambda z: faiss_on(z, len(z)),
    "faiss, 256 rows a cluster": lambda z: faiss_on(z, 256),
    "tdumpra": ours,
    BANK: whole_bank,
}


def exact(z: np.ndarray) -> Search:
    """Return faiss's search that compares a query with every row, all of them in memory."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(WIDTH)
    index.add(z)
    return lambda queries: np.array(index.search(queries, NEIGHBOURS)[1])


def indexed(z: np.ndarray) -> Search:
    """Return the search that ``knn`` uses among more rows than it compares one by one."""
    import faiss

    from tdumpra.checks import check_embeddings
    from tdumpra.method.bank_faiss import NeighbourIndex

    faiss.omp_set_num_threads(torch.get_num_threads())
    index = NeighbourIndex(check_embeddings(z, "z"))
    return lambda queries: index.nearest(torch.from_numpy(queries), NEIGHBOURS).numpy()


EXACT = "faiss, every row"
SEARCHES: dict[str, Callable[[np.ndarray], Search]] = {EXACT: exact, "tdumpra, an index": indexed}


def child(what: str, path: Path) -> None:
    """Run one way, and print what it took."""
    z = np.load(path, mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way = WAYS.get(what) or SEARCHES[what]
        way(np.array(z[:5000]))  # what libraries take once
        made, seconds, memory = _watched(lambda: way(z))
        told = {"processor_s": round(seconds, 1), "memory_gib": round(memory, 3)}
        if callable(made):
            numbers, seconds, _ = _watched(lambda: made(near_rows(z)))
            told |= {"ms_a_query": round(1000 * seconds / QUERIES, 3), "numbers": numbers.tolist()}
        else:
            told["objective"] = _objective(z, made)
    print(json.dumps(told))


def near_rows(z: np.ndarray) -> np.ndarray:
    """Return unit rows near some of the file's."""
    rng = np.random.default_rng(1)
    near = z[np.sort(rng.choice(len(z), QUERIES, replace=False))]
    near = near + 0.05 * rng.standard_normal(near.shape, dtype=np.float32)
    return np.asarray(near / np.linalg.norm(near, axis=1, keepdims=True))


def _objective(z: np.ndarray, centers: np.ndarray) -> float:
    blocks = (z[first : first + _BLOCK] for first in range(0, len(z), _BLOCK))
    return sum(float((1 - (block @ centers.T).max(1)).sum(dtype=np.float64)) for block in blocks)


def _watched(function: Callable[[], T]) -> tuple[T, float, float]:
    """Return what a function gives, the processor's seconds, and the GiB that it held at most beside the file."""
    before, most, done = _anonymous(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], _anonymous())

    watching = threading.Thread(target=watch)
    watching.start()
    start = time.process_time()
    result = function()
    seconds = time.process_time() - start
    done.set()
    watching.join()
    return result, seconds, max(0, most[0] - before) / 2**20


def _anonymous() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1])


def main() -> None:
    """Measure the sizes that are asked for, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", nargs="+", type=int, default=[1_000_000])
    parser.add_argument("--ways", nargs="+", choices=(*WAYS, *SEARCHES), default=())
    parser.add_argument("--out", type=Path, help="a JSON file; what it has of other sizes stays")
    parser.add_argument("--way", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        child(asked.way[0], Path(asked.way[1]))
        return
    found = [measure(n, asked.ways) for n in asked.rows]
    if asked.out is not None:
        add_to(asked.out, found, ("rows", "clusters", "width"))


if __name__ == "__main__":
    main()
