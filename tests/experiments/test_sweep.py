"""Which gate the curves are drawn with. The command itself is tried in ``cli/test_experiments``."""

from __future__ import annotations

from tests.support import output_files, save_problem

from tdumpra.experiments import sweep
from tdumpra.runs.config import Config


def test_the_gate_that_is_moved_is_called_what_it_is(tmp_path) -> None:
    config = Config(outputs=output_files(save_problem(tmp_path / "mine.npz")))
    (run,) = sweep.curve_runs(config)
    bench = sweep._bench(config, run)
    assert bench.decision.calibrated is None  # whatever tuning itself would choose
    assert bench.gate == "the best five-clause gate"
    point = {"value": 0.5, "accuracy": 0.8}
    curve = {"gate": bench.gate, "chosen": 0.5, "points": [{**point, "split": part} for part in ("validation", "test")]}
    summary = sweep._summary((run,), {f"mine, seed 0: {parameter}": curve for parameter in sweep.PARAMETERS})
    assert summary.notes[0] == "mine, seed 0: in use is the best five-clause gate."
