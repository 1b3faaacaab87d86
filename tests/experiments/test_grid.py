from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import output_files, save_problem
from tiny_runs import tiny_experiment

from tdumpra.experiments.grid import variant_step
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs.config import Config, TuneConfig
from tdumpra.runs.outputs import Outputs, all_outputs, variant_outputs
from tdumpra.runs.steps import Step
from tdumpra.tuning.fit import Fitted


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    files = output_files(save_problem(tmp_path / "net.npz"))
    (found,) = all_outputs(Config(outputs=files, tune=TuneConfig(preset="paper")))
    return found


def counting(out: Path, outputs: Outputs, log: list[str], **what: Any) -> Step[dict[str, Any]]:
    def compute(splits: SplitOutputs, fitted: Fitted) -> dict[str, Any]:
        log.append("computed")
        return {"rows": len(splits.test), "gate": fitted.tuning.best.gate}

    return variant_step(out, "a variant", what, outputs, compute)


def test_a_result_is_kept_for_what_it_says_and_for_the_contents_of_its_outputs(outputs, tmp_path):
    log: list[str] = []
    result = counting(tmp_path / "out", outputs, log, of="one").result()
    assert result["rows"] == 160
    assert counting(tmp_path / "out", outputs, log, of="one").result() == result
    assert len(log) == 1
    counting(tmp_path / "out", outputs, log, of="another").result()
    assert len(log) == 2
    assert len(list((tmp_path / "out" / "gates").iterdir())) == 1  # both stand on one gate
    save_problem(outputs.origin, seed=1)
    assert counting(tmp_path / "out", outputs, log, of="one").kept() is None


def test_the_time_of_what_was_never_trained_is_not_known(outputs, tmp_path):
    (untrained,) = variant_outputs(tiny_experiment(tmp_path))
    assert counting(tmp_path, untrained, []).seconds is None
    assert (counting(tmp_path, outputs, []).seconds or 0) > 0
