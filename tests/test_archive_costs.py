"""The costs of an archive follow from their rates, and the sizes among these are those of files as written."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from sitegen.archive_costs import RATES, Rates, costs, measured_sizes


def found(rates: Rates, images: float) -> dict[str, str]:
    return {what: much for what, much, _ in costs(rates, images)}


def test_by_hand():
    rates = replace(Rates.read(), machine_images=1000, core_images=100, image_bytes=1e5, part_bytes=100, days=1)
    of_all = found(rates, 3.6e6)
    assert of_all["GPU hours, as measured"] == "1"
    assert of_all["core hours for decoding"] == "10"
    assert of_all["bytes read"] == "360 GB"
    assert of_all["parts"] == "360 MB"
    assert of_all["network into each machine"] == "100 MB/s"


def test_twice_the_images_cost_twice_as_much():
    rates = Rates.read()
    once, twice = (found(rates, images)["core hours for decoding"] for images in (1e9, 2e9))
    assert float(twice.replace(",", "")) == pytest.approx(2 * float(once.replace(",", "")), abs=1)


def test_sizes_are_those_of_files():
    pytest.importorskip("pyarrow")
    stored = {name: each["value"] for name, each in json.loads(RATES.read_text()).items()}
    for name, size in measured_sizes().items():
        assert size == pytest.approx(stored[name], rel=0.1), name


def test_a_rate_of_nothing_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "sitegen.archive_costs", "--days", "0"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "every rate must be above 0\n")
