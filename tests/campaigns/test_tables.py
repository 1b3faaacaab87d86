"""Altered tables, archives and configurations: read if they are still sound, or else refused in a sentence."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.campaigns.alter import any_way
from tests.campaigns.record import Tally, attempts
from tests.campaigns.world import SETTINGS
from tiny_config import config_text

from tdumpra.data.sources import open_source
from tdumpra.method.output_files import SplitOutputs, read_outputs
from tdumpra.networks.checkpoint import TrainingFiles
from tdumpra.runs.config import Config, read_config

Array = np.ndarray
ROWS = 30
CONFIG = config_text(Path("cache"), **SETTINGS)


def arrays() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    p = rng.random((ROWS, 3))
    return {
        "p": p / p.sum(1, keepdims=True),
        "z": rng.normal(size=(ROWS, 4)),
        "y": np.arange(ROWS) % 3,
        "split": np.arange(ROWS) * 3 // ROWS,
        "group": np.array([f"lesion-{i // 2}" for i in range(ROWS)]),
        "id": np.array([f"image-{i}" for i in range(ROWS)]),
        "sex": np.array(["f", "m"])[np.arange(ROWS) % 2],
    }


ODD: tuple[Callable[[Array], Array], ...] = (
    lambda array: array.astype(np.complex64) if array.dtype.kind in "fi" else array[::-1],
    lambda array: array.astype("U"),
    lambda array: array.astype("S") if array.dtype.kind != "U" else array.astype("U1"),
    lambda array: np.full(array.shape, np.nan),
    lambda array: np.full(array.shape, np.inf),
    lambda array: np.full(array.shape, -1),
    lambda array: np.full(array.shape, 2**62),
    lambda array: np.full(array.shape, 1e300),
    lambda array: np.zeros(array.shape, bool),
    lambda array: np.zeros(array.shape, "datetime64[s]"),
    lambda array: np.zeros(array.shape, [("a", "f4"), ("b", "i8")]),
    lambda array: np.zeros(array.shape, np.float16),
    lambda array: np.zeros(array.shape, np.longdouble),
    lambda array: array[:0],
    lambda array: array[:7],
    lambda array: array[None],
    lambda array: array.reshape(-1)[0],
    lambda array: np.concatenate([array, array]),
    lambda array: np.asfortranarray(array[..., None].repeat(2, -1)),
)


def odd_arrays(rng: np.random.Generator) -> dict[str, Array]:
    """Return arrays one of which is missing, renamed, or not what it should be."""
    found = arrays()
    name = str(rng.choice(list(found)))
    way = int(rng.integers(len(ODD) + 3))
    if way < len(ODD):
        found[name] = ODD[way](found[name])
    elif way == len(ODD):
        del found[name]
    elif way == len(ODD) + 1:
        found[f"{name} "] = found.pop(name)
    else:
        other = str(rng.choice(list(found)))
        found[name], found[other] = found[other], found[name]
    return found


def as_frame(content: dict[str, Array]) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name, array in content.items():
        if array.ndim == 2:
            columns |= {f"{name}_{i}": list(column) for i, column in enumerate(array.T)}
        else:
            columns[name] = [str(each) for each in array] if array.dtype.kind == "V" else list(np.atleast_1d(array))
    return pd.DataFrame({name: pd.Series(column) for name, column in columns.items()})


def write(path: Path, content: dict[str, Array]) -> None:
    if path.suffix == ".npz":
        (np.savez_compressed if "packed" in path.name else np.savez)(path, allow_pickle=False, **content)
    elif path.suffix == ".csv":
        as_frame(content).to_csv(path, index=False)
    else:
        as_frame(content).to_parquet(path)


def is_sound(read: SplitOutputs) -> bool:
    """Whatever was read, it must be probabilities, finite embeddings and labels of classes."""
    parts = (read.validation, read.test)
    return (
        all(len(part) > 0 for part in (read.train, *parts))
        and all(bool(part.z.isfinite().all()) for part in (read.train, *parts))
        and all(bool(((part.y >= 0) & (part.y < read.n_classes)).all()) for part in (read.train, *parts))
        and all(bool((part.p.sum(1) - 1).abs().max() < 1e-6) and bool((part.p >= 0).all()) for part in parts)
    )


@pytest.mark.parametrize("name", ["plain.npz", "packed.npz", "table.csv", "table.parquet"])
@attempts(200, 10_000)
def test_altered_outputs_are_read_or_refused(tmp_path, name, attempts):
    path, tally, rng = tmp_path / name, Tally("altered", name), np.random.default_rng(4)
    write(path, arrays())
    whole = path.read_bytes()
    for i in range(attempts):
        if i % 4:
            path.write_bytes(any_way(whole, rng))
        else:
            try:
                write(path, odd_arrays(rng))
            except Exception:  # the library that writes cannot say this in its format
                path.write_bytes(any_way(whole, rng))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tally.read(lambda: read_outputs(path), is_sound, str(i))
    tally.finish()


VALUES = (
    "-1", "0", "1e400", "nan", "inf", "9" * 400, '""', "[]", "{}", "[[1], {}]", "true", "1979-05-27", "07:32:00",
    '"\\u0000"', '"../../etc"', "[" * 2000 + "]" * 2000, "{a.b.c = 1}", "'''\n'''", "0x7fffffffffffffff",
    '["a", 1]', "[{}]",
)  # fmt: skip


def odd_toml(rng: np.random.Generator) -> bytes:
    """Return the configuration with another value for one of its keys."""
    lines = CONFIG.splitlines()
    keys = [i for i, line in enumerate(lines) if " = " in line]
    at = int(rng.choice(keys))
    lines[at] = f"{lines[at].partition(' = ')[0]} = {rng.choice(VALUES)}"
    return "\n".join(lines).encode()


@attempts(200, 10_000)
def test_altered_configurations_are_read_or_refused(tmp_path, attempts):
    path, tally, rng = tmp_path / "c.toml", Tally("altered", "configuration.toml"), np.random.default_rng(5)
    whole = CONFIG.encode()
    for i in range(attempts):
        path.write_bytes(any_way(whole, rng) if i % 3 else odd_toml(rng))
        tally.read(lambda: read_config(path), lambda read: isinstance(read, Config), str(i))
    tally.finish()


@attempts(200, 10_000)
def test_altered_tables_of_labels_are_read_or_refused(tmp_path, write_image, attempts):
    write_image(tmp_path / "a.png")
    rows = [f"a.png,{'nv' if i % 3 else 'mel'},lesion {i // 2},{20 + i},id{i}" for i in range(12)]
    whole = "\n".join(["image,label,group,age,id", *rows]).encode() + b"\n"
    path, tally, rng = tmp_path / "labels.csv", Tally("altered", "labels.csv"), np.random.default_rng(6)
    for i in range(attempts):
        path.write_bytes(any_way(whole, rng))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tally.read(
                lambda: open_source(f"csv:{path}"),
                lambda manifest: len(manifest) > 0,
                str(i),
            )
    tally.finish()


def can_be_drawn(rows: list[dict[str, Any]]) -> bool:
    """The charts of the report need these."""
    for row in rows:
        if "loss" in row:
            float(row["loss"] + row["cross_entropy"] + row["contrastive"])
        for of_network in row.get("validation", {}).values():
            float((of_network["accuracy"] or 0) + (of_network["balanced_accuracy"] or 0))
    return True


@attempts(200, 10_000)
def test_an_altered_log_is_read_as_far_as_it_can_be(tmp_path, attempts):
    parts = {"loss": 1.5, "cross_entropy": 1.0, "contrastive": 0.5, "images_per_second": 100.0}
    rows: list[dict[str, Any]] = [{"step": i, "epoch": i // 5, **parts} for i in range(20)]
    scores = {"accuracy": 0.5, "balanced_accuracy": None}
    rows.insert(10, {"step": 10, "epoch": 2, "validation": {"student": scores, "teacher": scores}})
    whole = "".join(json.dumps(row) + "\n" for row in rows).encode()
    files, tally, rng = TrainingFiles(tmp_path), Tally("altered", "metrics.jsonl"), np.random.default_rng(7)

    def read() -> list[dict[str, Any]]:
        files.rewind_metrics(step=12, epoch=2)
        return files.read_metrics()

    for i in range(attempts):
        files.metrics.write_bytes(any_way(whole, rng))
        tally.read(read, can_be_drawn, str(i))
    tally.finish()


def test_the_ways_to_alter_reach_every_kind_of_damage():
    """Of a thousand altered texts some are shorter, some longer, and hardly any is the same."""
    rng, whole = np.random.default_rng(0), re.sub(r"\s+", " ", CONFIG).encode()
    altered = [any_way(whole, rng) for _ in range(1000)]
    assert sum(len(each) < len(whole) for each in altered) > 200
    assert sum(len(each) > len(whole) for each in altered) > 100
    assert sum(each == whole for each in altered) < 60
