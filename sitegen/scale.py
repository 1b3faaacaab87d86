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
            figures = [f"{each['processor_s']:,.0f}", f"{each['memory_gib']:.2f}", f"{each['objective']:.4f}"]
            rows.append([f"{document['rows']:,}", str(document["clusters"]), each["what"], *figures])
    return rows


def scaling() -> list[list[str]]:
    """Return what a step consists of, by processes, for each simulated cluster."""
    rows = [["cluster", "processes", "views", "network, ms", "loss, ms", "sent, MB", "sent, ms", "network's share"]]
    for name, steps in _read("scaling.json")["simulated"].items():
        for step in steps:
            sent = (step["gathered_bytes"] + step["gradient_bytes"]) / 1e6
            times = [f"{1000 * step[key]:,.4g}" for key in ("network_s", "loss_s")]
            more = [f"{sent:,.1f}", f"{1000 * step['sent_s']:,.3g}", f"{step['efficiency']:.2f}"]
            rows.append([name, str(step["processes"]), f"{step['views']:,}", *times, *more])
    return rows
