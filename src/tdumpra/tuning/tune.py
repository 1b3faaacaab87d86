"""Choose temperatures, concentration, thresholds and weight, on validation outputs only.

Two rules govern the choice. *Do no harm*: a setting whose validation accuracy is lower than the classifier's is no
candidate, whatever its objective. *Least intervention*: among equals the gate that opens least wins, so that a gate
which wins nothing stays shut. A preset may ask for more: bounds that no gate passes, and enough cases to judge by.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from tdumpra.core import metrics
from tdumpra.core.calibration import adjust_prior, apply_temperature, fit_temperature
from tdumpra.core.chances import CalibratedGate
from tdumpra.core.gate import GateThresholds
from tdumpra.core.posterior import similarity_posterior
from tdumpra.core.rowwise import widen
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.outputs import ScoredOutputs, ValidationOutputs
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.notes import Note, validation_notes
from tdumpra.tuning.presets import Preset
from tdumpra.tuning.result import Curve, Setting, Tuning, shut_setting
from tdumpra.tuning.search import (
    DEFAULT_SEARCH,
    FittedChances,
    Search,
    calibrated_theta,
    fit_chances,
    search_calibrated,
    search_clauses,
    stacked,
)

Array = np.ndarray
_Floats = tuple[float, ...]
_Searched = tuple[Curve, list[FittedChances] | None]  # with its fits, if the gate is calibrated
PRIOR_EXPONENTS = tuple(np.round(np.linspace(0, 1, 21), 2).tolist())


def tune(
    bank: PrototypeBank,
    validation: ValidationOutputs,
    prior: Tensor,
    search: Search = DEFAULT_SEARCH,
) -> Tuning:
    """Fit temperatures by likelihood, then take the best gate that does no harm."""
    refuse_other_than_validation(validation)
    scores = {kappa: bank.class_scores(validation.z, kappa=kappa) for kappa in search.preset.kappa}
    return tune_on_scores(bank, validation, scores, prior, search)


def refuse_other_than_validation(outputs: Any) -> None:
    """Refuse outputs that nothing may be chosen on."""
    if not isinstance(outputs, ValidationOutputs):
        raise TypeError(f"tuning needs validation outputs, not {type(outputs).__name__}")


def tune_on_scores(
    bank: PrototypeBank,
    rows: ScoredOutputs,
    scores: Mapping[float, Tensor],
    prior: Tensor,
    search: Search,
) -> Tuning:
    """Tune on retrieval's class scores for each kappa; ``bank`` goes into the decision."""
    preset, goal = search.preset, search.goal
    p, y = widen(rows.p), rows.y
    temperature = fit_temperature(p.log(), y) if preset.temperatures else 1.0
    calibrated = apply_temperature(p, temperature)
    exponent = choose_prior_exponent(calibrated, y, prior, goal) if search.adjust_for_prior else 0.0
    p_cls = adjust_prior(calibrated, prior, exponent)
    # the accuracy that must not fall is that of p, before any adjustment
    base = Setting(1.0, 1.0, "linear", None, goal.score(p_cls, y).objective, goal.score(p, y).accuracy, 0)
    gamma_cls = p_cls.amax(1)
    search = search.within(gamma_cls, p.shape[1])
    preset = search.preset

    kappas, taus = _concentrations(scores, y, preset)
    posteriors = [
        similarity_posterior(scores[kappa], tau=tau).to(p_cls) for kappa, tau in zip(kappas, taus, strict=True)
    ]
    losses = [metrics.negative_log_likelihood(p_sim.double().numpy(), y.numpy()) for p_sim in posteriors]
    found: dict[str, Any] = {"tau": taus, "similarity_nll": tuple(losses)}

    clauses = search if "clauses" in preset.gates else replace(search, preset=_one_candidate_each(preset))
    searched = stacked([search_clauses(p_cls, p_sim, y, clauses, prior) for p_sim in posteriors])
    axes = {**_clause_curve_axes(clauses.preset), "kappa": kappas}
    curve = Curve(axes=axes, **found, **searched._asdict(), asked=_asked(gamma_cls, axes["theta"]))
    curves: list[_Searched] = [(curve, None)] if "clauses" in preset.gates else []

    calibrated_curve = None
    wanted, least = posteriors if "calibrated" in preset.gates else [], preset.least_asked(p.shape[1])
    fits = [fit for p_sim in wanted if (fit := fit_chances(p_cls, p_sim, rows, least)) is not None]
    if len(fits) == len(posteriors):
        of_fit = zip(posteriors, fits, strict=True)
        searched = stacked([search_calibrated(p_cls, p_sim, y, fit, search, prior) for p_sim, fit in of_fit])
        axes = {
            **_outer_axes(preset), "kappa": kappas, "theta": tuple(sorted(calibrated_theta(search))),
            "advantage": tuple(sorted(preset.advantage, reverse=True)),
        }  # fmt: skip
        calibrated_curve = Curve(axes=axes, **found, **searched._asdict(), asked=_asked(gamma_cls, axes["theta"]))
        curves.append((calibrated_curve, fits))
    shut = Decision(
        bank=bank, thresholds=GateThresholds.shut(), temperature=temperature, prior=prior, prior_exponent=exponent,
        first_choices_only=preset.first_choices_only,
    )  # fmt: skip
    disagreeing = [(p_cls.argmax(1) != p_sim.argmax(1)).numpy() for p_sim in posteriors]
    n_disagreements = max(int(rows_of.sum()) for rows_of in disagreeing)
    n_tried = sum(each.objective.size for each, _ in curves)
    notes = list(validation_notes(y, p.shape[1], n_disagreements, n_tried))
    contenders, best = _contend(curves, base, search)
    best = best or shut_setting(curve, base)
    chosen = list(zip(kappas, taus, strict=True)).index((best.kappa, best.tau))
    lesions = len(np.unique(rows.lesions()[disagreeing[chosen]]))
    if n_disagreements and lesions < preset.least_disagreeing:
        notes.append(Note("too few disagreements", {"lesions": lesions, "needed": preset.least_disagreeing}))
        best = shut_setting(curve, base)
    return Tuning(
        decision=best.apply_to(shut),
        objective=goal.objective,
        base=base,
        best=best,
        curve=curve,
        calibrated_curve=calibrated_curve,
        contenders=tuple(contenders),
        n_rows=len(y),
        n_disagreements=n_disagreements,
        n_tried=n_tried,
        notes=tuple(notes),
    )


def _concentrations(scores: Mapping[float, Tensor], y: Tensor, preset: Preset) -> tuple[_Floats, _Floats]:
    """Return the kappa and the tau of each similarity posterior that is tried."""
    if preset.tau:
        kappas, taus = zip(*itertools.product(preset.kappa, preset.tau), strict=True)
        return kappas, taus
    return preset.kappa, tuple(fit_temperature(scores[k], y) if preset.temperatures else 1.0 for k in preset.kappa)


def _asked(gamma_cls: Tensor, thetas: Iterable[Any]) -> _Floats:
    """Return the share of rows on which the classifier's confidence lies below each theta."""
    return tuple(float((gamma_cls < theta).double().mean()) for theta in thetas)


def _contend(curves: list[_Searched], base: Setting, search: Search) -> tuple[list[Setting], Setting | None]:
    """Return the choice of each kind of gate, and the best of them, or within the tolerance the one that asks least."""
    contenders = [choose(curve, base, search, fits) for curve, fits in curves]
    objectives = [round(each.objective, 12) for each in contenders if each.thresholds is not None]
    if search.tolerance and objectives:
        enough = max(objectives) - search.tolerance
        contenders = [choose(curve, base, search, fits, enough=enough) for curve, fits in curves]
        close = [each for each in contenders if each.thresholds is not None and round(each.objective, 12) >= enough]
        return contenders, min(close, key=lambda each: (each.asked, -round(each.objective, 12), each.opened))
    # the first of equals: the paper's clauses
    best = max(contenders, key=lambda each: (round(each.objective, 12), -each.opened), default=None)
    return contenders, best


def choose(
    curve: Curve, base: Setting, search: Search, fits: list[FittedChances] | None = None, *, enough: float = math.inf
) -> Setting:
    """Choose the best objective at no lower accuracy; among equals the fewest openings, then the strictest thresholds.

    Where nothing beats the shut gate, that is the choice, with the concentration under which retrieval alone is most
    likely. A calibrated gate's curve comes with its ``fits``. An objective of ``enough`` is as good as the best, if a
    smaller theta gives it.
    """
    index = _best_index(curve, base, search, enough)
    return shut_setting(curve, base) if index is None else setting_at(curve, index, fits)


def setting_at(curve: Curve, index: tuple[int, ...], fits: list[FittedChances] | None = None) -> Setting:
    """Return the combination at one place of a curve; a calibrated one needs its fits, one for each kappa."""
    at = {name: axis[i] for (name, axis), i in zip(curve.axes.items(), index, strict=True)}
    place = dict(zip(curve.axes, index, strict=True))
    fit = None if fits is None else fits[place["kappa"]]
    clauses = {name: float(at[name]) for name in ("theta", "beta", "margin", "delta", "alpha") if name in at}
    return Setting(
        kappa=float(at["kappa"]),
        tau=curve.tau[place["kappa"]],
        rule=at["rule"],  # type: ignore[arg-type]
        thresholds=GateThresholds(**clauses) if fit is None else replace(fit.least, **clauses),
        objective=float(curve.objective[index]),
        accuracy=float(curve.accuracy[index]),
        opened=int(curve.opened[index]),
        calibrated=None if fit is None else CalibratedGate(fit.classifier, fit.similarity, float(at["advantage"])),
        fused_exponent=float(at["fused_exponent"]),
        asked=curve.asked[place["theta"]],
    )


def choose_prior_exponent(p: Tensor, y: Tensor, prior: Tensor, goal: Goal) -> float:
    """Choose the power of the prior to divide by, by the same goal and the same rules as the gate."""
    scores = {exponent: goal.score(adjust_prior(p, prior, exponent), y) for exponent in PRIOR_EXPONENTS}
    harmless: list[float] = [
        exponent for exponent in PRIOR_EXPONENTS if scores[exponent].accuracy >= scores[0.0].accuracy
    ]
    return max(harmless, key=lambda exponent: scores[exponent].objective)  # the first, hence smallest, of equals


def _best_index(curve: Curve, base: Setting, search: Search, enough: float) -> tuple[int, ...] | None:
    """Return the place of the best harmless setting; ``None`` where none beats ``base``.

    Figures are compared to twelve decimals: sums taken in another order differ in the last bits.
    """
    allowed = (curve.accuracy >= base.accuracy) & (curve.opened >= search.preset.least_opened)
    objective = np.where(allowed, curve.objective, -np.inf).round(12)
    top = objective.max()
    if not top > round(base.objective, 12):
        return None
    if (close := (objective >= enough) & (objective > round(base.objective, 12))).any():
        axis = list(curve.axes).index("theta")
        least = np.argwhere(close)[:, axis].min()  # the smallest theta asks least
        objective = np.where(np.indices(objective.shape, sparse=True)[axis] == least, objective, -np.inf)
        top = objective.max()
    equals = np.argwhere(objective == top)  # in the grid's order: strict before loose on each axis
    return tuple(int(i) for i in equals[np.argmin(curve.opened[tuple(equals.T)])])


def _outer_axes(preset: Preset) -> dict[str, tuple[float | str, ...]]:
    return {name: getattr(preset, name) for name in ("kappa", "rule", "alpha", "fused_exponent")}


def _clause_curve_axes(preset: Preset) -> dict[str, tuple[float | str, ...]]:
    strict_first = {name: tuple(sorted(getattr(preset, name), reverse=True)) for name in ("beta", "margin", "delta")}
    return {**_outer_axes(preset), "theta": tuple(sorted(preset.theta)), **strict_first}


def _one_candidate_each(preset: Preset) -> Preset:
    """Return one candidate of each kind: a clause search that nobody asked for costs next to nothing."""
    names = ("rule", "alpha", "fused_exponent", "theta", "beta", "margin", "delta")
    return replace(preset, **{name: getattr(preset, name)[:1] for name in names})
