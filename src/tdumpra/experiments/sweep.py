"""One setting moved, all others held: the paper's curves of θ and β, and those of K, κ, τ, α, D and λ.

Validation and test are shown side by side. The test curve is for reading, never for choosing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdumpra.core.calibration import fit_temperature
from tdumpra.core.groups import lesion_of_each_row
from tdumpra.core.posterior import similarity_posterior
from tdumpra.core.rowwise import normalise
from tdumpra.evaluation.evaluate import gate_report
from tdumpra.experiments import lambda_sweep
from tdumpra.experiments.grid import variant_step
from tdumpra.experiments.results import ResultTable, Value
from tdumpra.experiments.surface import BETA, REFERENCE, THETA, gate_surface
from tdumpra.experiments.together import refuse_strangers
from tdumpra.method.arrays import widen
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs.config import Config
from tdumpra.runs.outputs import Outputs, TrainedOutputs, all_outputs
from tdumpra.runs.steps import Step
from tdumpra.tuning.presets import Preset
from tdumpra.tuning.result import Tuning

MARGIN = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
ALPHA = tuple(np.round(np.arange(0.0, 1.0001, 0.1), 1).tolist())
K = (1, 2, 3, 5, 8, 12, 20)
KAPPA = (5.0, 10.0, 20.0, 40.0, 80.0)
TAU_FACTOR = (0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0)
WIDTHS = (4, 8, 16, 32, 64, 128, 256)

_GRIDS = {"theta": THETA, "beta": BETA, "alpha": ALPHA}
PARAMETERS = ("theta", "beta", "alpha", "K", "kappa", "tau", "D")  # λ needs a network for each value: lambda_sweep
SYMBOLS = {"theta": "θ", "beta": "β", "alpha": "α", "K": "K", "kappa": "κ", "tau": "τ", "D": "D"}
FIGURES = {
    "similarity_accuracy": "Retrieval alone",
    "gate_accuracy": "Gate accuracy",
    "opened": "Opened",
    "flipped": "Flipped",
    "fixed": "Fixed",
    "broken": "Broken",
    "accuracy": "Accuracy",
}


class _Bench(NamedTuple):
    """Everything that the curves of one model and seed are drawn with."""

    splits: SplitOutputs
    decision: Decision  # with the gate that is moved
    gate: str  # where that gate comes from
    temperatures: bool


def steps(config: Config, out: Path) -> list[Step[dict[str, Any]]]:
    """Make a step for each model, seed and parameter, and one for each λ."""
    if config.tune.pool_seeds:
        refuse_strangers(curve_outputs(config), test_rows=False)
    return [
        *lambda_sweep.steps(config, out),
        *(
            _step(config, outputs, curve, out)
            for outputs in curve_outputs(config)
            for curve in (*PARAMETERS, "surface")
        ),
    ]


def curve_outputs(config: Config) -> tuple[Outputs, ...]:
    """List the outputs whose settings are moved. None where λ alone can be, as the run itself was not trained."""
    found = all_outputs(config)
    there = all(not isinstance(each, TrainedOutputs) or each.folder.has_tables for each in found)
    return found if there or not config.sweep.contrastive_weights else ()


def _step(config: Config, outputs: Outputs, parameter: str, out: Path) -> Step[dict[str, Any]]:
    preset = replace(config.tune.searched(), gates=("clauses",))
    plain = replace(config, tune=replace(config.tune, certify=False, folds=0, training_rows=False))
    return variant_step(
        out, _name(outputs, parameter), {"sweep": parameter}, replace(outputs, config=plain),
        lambda splits, fitted: curve(_bench(splits, fitted.tuning, preset), parameter, config), preset=preset,
    )  # fmt: skip


def _name(outputs: Outputs, parameter: str) -> str:
    return f"{outputs.name}: {parameter}"


def _bench(splits: SplitOutputs, tuning: Tuning, preset: Preset) -> _Bench:
    if tuning.is_shut:
        alpha = preset.alpha[0] if len(preset.alpha) == 1 else REFERENCE.alpha
        decision = replace(tuning.decision, thresholds=replace(REFERENCE, alpha=alpha))
        return _Bench(splits, decision, "a reference gate, as the five-clause gate stays shut", preset.temperatures)
    return _Bench(splits, tuning.decision, "the best five-clause gate", preset.temperatures)


def curve(bench: _Bench, parameter: str, config: Config) -> dict[str, Any]:
    """The figures at each value of ``parameter``, on validation and on test."""
    if parameter == "surface":
        return {"points": _surface(bench), "gate": bench.gate}
    points = []
    for value, decision, projection in _moved(bench, parameter, config):
        for name, rows in (("validation", bench.splits.validation), ("test", bench.splits.test)):
            z = rows.z if projection is None else _project(rows.z, projection)
            points.append({"value": value, "split": name, **_figures(decision, rows.p, z, rows.y)})
    return {"points": points, "gate": bench.gate, "chosen": _chosen(bench, parameter, config)}


_Point = tuple[float, Decision, Tensor | None]  # value, decision, and what embeddings are projected on before it


def _moved(bench: _Bench, parameter: str, config: Config) -> list[_Point]:
    decision = bench.decision
    if parameter in _GRIDS:
        return _thresholds(bench, **{parameter: _GRIDS[parameter]})
    if parameter == "K":
        return _banks(bench, config)
    if parameter == "kappa":
        return [(kappa, _refitted(bench, decision.bank, kappa), None) for kappa in KAPPA]
    if parameter == "tau":
        return [(decision.tau * f, replace(decision, tau=decision.tau * f), None) for f in TAU_FACTOR]
    return _widths(bench, config)


def _thresholds(bench: _Bench, **moved: tuple[float, ...]) -> list[_Point]:
    (name, values), decision = next(iter(moved.items())), bench.decision
    return [(v, replace(decision, thresholds=replace(decision.thresholds, **{name: v})), None) for v in values]


def _banks(bench: _Bench, config: Config) -> list[_Point]:
    return [(k, _refitted(bench, _bank(bench, bench.splits.train.z, k, config), bench.decision.kappa), None) for k in K]


def _widths(bench: _Bench, config: Config) -> list[_Point]:
    """Embeddings cut down to their first principal directions (uncentred, as cosines are)."""
    z = normalise(bench.splits.train.z).double()
    _, directions = torch.linalg.eigh(z.T @ z)  # ascending
    points: list[_Point] = []
    for width in sorted({w for w in WIDTHS if w < z.shape[1]} | {z.shape[1]}):
        projection = directions[:, -width:]
        bank = _bank(bench, _project(bench.splits.train.z, projection), config.bank.n_prototypes, config)
        points.append((width, _refitted(bench, bank, bench.decision.kappa, projection), projection))
    return points


def _bank(bench: _Bench, z: Tensor, k: int, config: Config) -> PrototypeBank:
    train, merge = bench.splits.train, config.tune.searched().merge_above
    lesions = lesion_of_each_row(train.groups, len(train))
    k = min(k, max(len(np.unique(lesions[(train.y == c).numpy()])) for c in range(int(train.y.max()) + 1)))
    n_classes, seed = bench.splits.n_classes, config.bank.seed
    return PrototypeBank.fit(z, train.y, k, train.groups, n_classes, seed, merge_above=merge)


def _refitted(bench: _Bench, bank: PrototypeBank, kappa: float, projection: Tensor | None = None) -> Decision:
    """Return the gate over another bank or concentration, with the temperature that it then needs."""
    tau, validation = bench.decision.tau, bench.splits.validation
    if bench.temperatures:
        z = validation.z if projection is None else _project(validation.z, projection)
        tau = fit_temperature(bank.class_scores(z, kappa=kappa), validation.y)
    return replace(bench.decision, bank=bank, kappa=kappa, tau=tau)


def _project(z: Tensor, projection: Tensor) -> Tensor:
    return normalise(z).double() @ projection


def _figures(decision: Decision, p: Tensor, z: Tensor, y: Tensor) -> dict[str, Any]:
    decided = decision.decide(p, z)
    report = gate_report(decided.p_cls, decided.p_sim, decided.p, y, opened=decided.opened)
    right = (decided.p.argmax(1) == y)[decided.opened].double()
    figures = {name: report[name] for name in ("n", *FIGURES) if name in report}
    return {**figures, "gate_accuracy": float(right.mean())}


def _surface(bench: _Bench) -> list[dict[str, Any]]:
    """θ × β × margin × α on validation."""
    rows, decision = bench.splits.validation, bench.decision
    p_cls = decision.classifier(widen(rows.p))
    scores = decision.bank.class_scores(rows.z, kappa=decision.kappa)
    p_sim = similarity_posterior(scores, tau=decision.tau).to(p_cls)
    return gate_surface(
        p_cls, p_sim, rows.y, theta=THETA, beta=BETA, margin=MARGIN, alpha=ALPHA,
        delta=(decision.thresholds.delta,), rule=decision.rule, prior=decision.prior, exponent=decision.fused_exponent,
        first_choices_only=decision.first_choices_only,
    ).points()  # fmt: skip


def _chosen(bench: _Bench, parameter: str, config: Config) -> float:
    decision = bench.decision
    return float(
        {
            "theta": decision.thresholds.theta, "beta": decision.thresholds.beta, "alpha": decision.thresholds.alpha,
            "K": config.bank.n_prototypes, "kappa": decision.kappa, "tau": decision.tau, "D": decision.bank.width,
        }[parameter]
    )  # fmt: skip


def tables(config: Config, results: Mapping[str, Mapping[str, Any]]) -> dict[str, ResultTable]:
    """A table for each parameter, and the surface; by file name."""
    runs = curve_outputs(config)
    found = {}
    for parameter in PARAMETERS if runs else ():
        rows: list[dict[str, Value]] = []
        notes = ["Other settings are held; the test column is for reading, not for choosing."]
        for run in runs:
            result = results[_name(run, parameter)]
            notes.append(f"{run.name}: {result['gate']}; {SYMBOLS[parameter]} = {result['chosen']:.4g}.")
            rows += [{"run": run.model, "seed": run.seed, **_shown(point)} for point in result["points"]]
        columns = {"run": "Model", "seed": "Seed", "value": SYMBOLS[parameter], "split": "Split", **FIGURES}
        found[f"sweep_{parameter}"] = ResultTable(
            title=f"Sweep of {SYMBOLS[parameter]}", columns=columns, rows=rows, notes=notes
        )
    found["sweep_lambda"] = lambda_sweep.table(config, results)
    if runs:
        found["sweep_summary"] = _summary(runs, results)
    return found


def _summary(runs: tuple[Outputs, ...], results: Mapping[str, Mapping[str, Any]]) -> ResultTable:
    """For each setting, the value in use against the best that validation saw, and what that is worth on test."""
    rows: list[dict[str, Value]] = []
    for run in runs:
        for parameter in PARAMETERS:
            result = results[_name(run, parameter)]
            at = {(point["value"], point["split"]): point["accuracy"] for point in result["points"]}
            values = dict.fromkeys(value for value, _ in at)
            used = min(values, key=lambda value: abs(value - result["chosen"]))
            best = max(values, key=lambda value: (at[value, "validation"], -abs(value - result["chosen"])))
            row: dict[str, Value] = {"run": run.model, "seed": run.seed, "setting": SYMBOLS[parameter]}
            for name, value in (("used", used), ("best", best)):
                row |= {name: value, f"{name}_val": at[value, "validation"], f"{name}_test": at[value, "test"]}
            rows.append(row)
    columns = {
        "run": "Model", "seed": "Seed", "setting": "Setting", "used": "In use", "used_val": "Acc, val",
        "used_test": "Acc, test", "best": "Best on val", "best_val": "Acc, val", "best_test": "Acc, test",
    }  # fmt: skip
    gates = {run.name: results[_name(run, "theta")]["gate"] for run in runs}
    notes = [f"{name}: in use is {gate}." for name, gate in gates.items()]
    notes.append("A calibrated gate has no thresholds to move: where tuning chose one, the figures here are not its.")
    return ResultTable(title="Sweeps: one setting moved, all others held", columns=columns, rows=rows, notes=notes)


def _shown(point: Mapping[str, Any]) -> dict[str, Value]:
    return {key: "undefined" if value is None else value for key, value in point.items()}


def surface_table(results: Mapping[str, Mapping[str, Any]], run: Outputs) -> ResultTable:
    """All points of θ × β × margin × α of one run."""
    points = results[_name(run, "surface")]["points"]
    columns = {key: key for key in points[0]}
    return ResultTable(title=f"θ × β × margin × α, {run.model}, validation", columns=columns, rows=points)
