"""Tables of what grows with rows, classes and processes, from the files that the benchmarks leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILES = Path(__file__).resolve().parents[1] / "docs" / "results"


def _read(name: str) -> Any:
    return json.loads((FILES / name).read_text(encoding="utf-8"))


def large_arrays() -> list[list[str]]:
    """Return processor time and memory of both ways in, by rows and classes."""
    rows = [["way in", "rows", "classes", "inputs, GiB", "above them, GiB", "processor, s", "µs a row"]]
    for each in sorted(_read("large-arrays.json"), key=lambda each: (each["classes"], each["what"], each["rows"])):
        sizes = [f"{each[name]:.2f}" for name in ("inputs_gib", "above_inputs_gib")]
        times = [f"{each['processor_s']:,.0f}", f"{each['microseconds_a_row']:,.0f}"]
        rows.append([f"`{each['what']}`", f"{each['rows']:,}", f"{each['classes']:,}", *sizes, *times])
    return rows


def clustering() -> list[list[str]]:
    """Return time, memory and objective of clustering, ours and faiss's."""
    rows = [["rows", "clusters", "by", "processor, s", "memory, GiB", "objective, of faiss on all rows"]]
    for document in _read("clustering.json"):
        for each in document["found"]:
            objective = "" if each["objective"] is None else f"{each['objective']:.4f}"
            figures = [f"{each['processor_s']:,.1f}", f"{each['memory_gib']:.2f}", objective]
            rows.append([f"{document['rows']:,}", str(document["clusters"]), each["what"], *figures])
    return rows


def neighbours() -> list[list[str]]:
    """Return time, memory and recall of finding neighbours, ours and faiss's."""
    rows = [["rows", "by", "making it, processor s", "memory, GiB", "a query, ms", "found of the nearest 16"]]
    for document in _read("clustering.json"):
        for each in document.get("searched", []):
            figures = [f"{each['processor_s']:,.1f}", f"{each['memory_gib']:.2f}", f"{each['ms_a_query']:,.2f}"]
            rows.append([f"{document['rows']:,}", each["what"], *figures, f"{each['recall']:.1%}"])
    return rows


def scaling() -> list[list[str]]:
    """Return the joined loss, what is sent, and the share of a step that is the network's, by processes."""
    clusters = _read("scaling.json")["simulated"]
    names = {
        "cpu, {}": "cores, 10 Gb/s",
        "gpu, {}, 10 Gb/s Ethernet": "GPUs, 10 Gb/s",
        "gpu, {}, 200 Gb/s InfiniBand": "GPUs, 200 Gb/s",
    }
    both = [(batch, name, words) for batch in ("batch grows", "batch stays") for name, words in names.items()]
    rows = [
        ["processes", "views", "loss on a core, ms", "gathered, MB", *(f"{batch}: {words}" for batch, _, words in both)]
    ]
    for place, step in enumerate(clusters["cpu, batch grows"]):
        shares = [f"{clusters[name.format(batch)][place]['efficiency']:.2f}" for batch, name, _ in both]
        figures = [f"{1000 * step['loss_s']:,.1f}", f"{step['gathered_bytes'] / 1e6:,.2f}"]
        rows.append([str(step["processes"]), f"{step['views']:,}", *figures, *shares])
    return rows
