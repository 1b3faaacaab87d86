"""The array way in: an estimator after scikit-learn's manner for anyone's probabilities and embeddings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor

from tdumpra.artifacts import jsonable, read_artifact, write_artifact
from tdumpra.core.calibration import class_prior
from tdumpra.core.metrics import Objective
from tdumpra.evaluation.comparators import Case
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.method.arrays import like, narrow
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.evidence import Evidence, explain
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs, check_rows
from tdumpra.tuning.certify import Certificate, certify
from tdumpra.tuning.crossfit import Estimate, cross_fit
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.search import Search
from tdumpra.tuning.tune import PRESETS, Preset, Tuning, check_objective, tune

KIND, SCHEMA = "dual-path classifier", 1


class DualPathClassifier(BaseEstimator):  # type: ignore[misc]
    """A prototype bank beside your classifier, and a gate that lets it speak where it helps.

    ``fit`` builds the bank from training embeddings, ``tune`` chooses temperatures and thresholds on validation data,
    and ``predict_proba`` returns your classifier's (calibrated) rows unchanged except where the gate opens. The
    embeddings may come from any encoder, of any width.

    Args:
        n_prototypes: prototypes per class, K.
        objective: what tuning maximises while accuracy does not fall: ``balanced_accuracy``, ``accuracy``, ``macro_f1``
            or ``nll``.
        preset: ``default``, ``paper``, ``paper-swapped``, ``rebalancing``, or a :class:`tdumpra.tuning.tune.Preset`.
        n_classes: only needed where some class has no training row.
        adjust_prior: also divide the classifier by a power of the class prior, chosen by the same objective. This,
            unlike the temperature, changes labels of rows whose gate is shut.
        seed: of the clustering.
        costs: what each decision costs, truth × decision; with ``objective="cost"`` their mean is minimised, else they
            are only reported.
        certify: keep the gate shut unless its benefit is proven on lesions that took no part in choosing it.
        folds: where validation is small, build the bank from train and validation and choose out of fold, in so many
            folds; 0 tunes on validation alone.

    Attributes:
        bank_: the fitted :class:`PrototypeBank`.
        tuning_: what was tried and what won, the whole curve included.
        decision_: bank, temperatures and thresholds as they are applied.
        class_names_: names of the classes for evidence and reports, where ``fit`` was given any.
        certificate_: with ``certify``, what was tested and whether anything was proven.
        estimate_: with ``folds``, what the rule of choice earned out of fold.
    """

    def __init__(
        self,
        n_prototypes: int = 5,
        objective: Objective = "balanced_accuracy",
        preset: str | Preset = "default",
        n_classes: int | None = None,
        *,
        adjust_prior: bool = False,
        seed: int = 0,
        costs: Any = None,
        certify: bool = False,
        folds: int = 0,
    ) -> None:
        self.n_prototypes = n_prototypes
        self.objective = objective
        self.preset = preset
        self.n_classes = n_classes
        self.adjust_prior = adjust_prior
        self.seed = seed
        self.costs = costs
        self.certify = certify
        self.folds = folds

    def fit(
        self,
        z_train: Any,
        y_train: Any,
        groups: Any = None,
        *,
        ids: Any = None,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Build the bank from training embeddings and labels; ``groups`` are lesions or patients."""
        preset = self._preset()
        check_objective(self.objective)
        train = TrainOutputs.check(z_train, y_train, groups, ids=ids, n_classes=self.n_classes)
        self.class_names_ = None if class_names is None else tuple(map(str, class_names))
        self.bank_ = self._make_bank(train, preset)
        self.classes_ = np.arange(self.bank_.n_classes)
        self._prior = class_prior(train.y, self.bank_.n_classes)
        self._train: TrainOutputs | None = train
        self._validation: ValidationOutputs | None = None
        self._forget_tuning()  # a new bank needs new thresholds
        return self

    def tune(self, p_val: Any, z_val: Any, y_val: Any, groups: Any = None) -> Self:
        """Choose temperatures, concentration, thresholds and weight on validation data."""
        bank = self._bank("tune")
        validation = ValidationOutputs.check(
            p_val, z_val, y_val, groups, n_classes=bank.n_classes, width=bank.width, suffix="_val"
        )
        _check_groups_apart({"training": self._train}, validation.groups, "validation")
        search = Search.check(
            self.preset, self.objective, self.costs, self.adjust_prior, n_classes=validation.n_classes
        )
        if self.certify and self.folds:
            raise ValueError(
                "certify and folds exclude each other: a proof needs lesions that took no part in choosing"
            )
        self._forget_tuning()
        if self.certify:
            self.tuning_, self.certificate_ = certify(bank, validation, self._prior, search)
        elif self.folds:
            self._cross_fit(validation, search)
        else:
            self.tuning_ = tune(bank, validation, self._prior, search)
        self._validation = validation
        for note in self.tuning_.notes:
            warnings.warn(note, stacklevel=2)
        return self

    def _forget_tuning(self) -> None:
        for name in ("tuning_", "certificate_", "estimate_"):
            self.__dict__.pop(name, None)

    def _cross_fit(self, validation: ValidationOutputs, search: Search) -> None:
        if self._train is None:
            raise NotFittedError("cross-fitting needs the training rows, which a saved model does not keep: fit again")

        def make_bank(part: TrainOutputs) -> PrototypeBank:
            return self._make_bank(part, self._preset(), n_classes=self.bank_.n_classes)

        fitted = cross_fit(self._train, validation, make_bank, search, folds=self.folds)
        self.tuning_, self.estimate_ = fitted.tuning, fitted.estimate

    def _make_bank(self, train: TrainOutputs, preset: Preset, n_classes: int | None = None) -> PrototypeBank:
        return PrototypeBank.fit(
            train.z,
            train.y,
            self.n_prototypes,
            train.groups,
            n_classes if n_classes is not None else self.n_classes,
            self.seed,
            ids=train.ids,
            merge_above=preset.merge_above,
            class_names=self.class_names_,
        )

    @property
    def decision_(self) -> Decision:
        """The fitted state that is applied."""
        if not hasattr(self, "tuning_"):
            missing = "tune(p_val, z_val, y_val)" if hasattr(self, "bank_") else "fit(z_train, y_train) and tune(…)"
            raise NotFittedError(f"this DualPathClassifier is not ready: call {missing} first")
        return self.tuning_.decision

    def predict_proba(self, p: Any, z: Any) -> Any:
        """Final probabilities, in the kind and type of ``p``. Rows whose gate is shut are the classifier's own."""
        decision = self.decision_
        rows, embeddings = check_rows(p, z, n_classes=decision.bank.n_classes, width=decision.bank.width)
        final, start = torch.empty_like(rows), 0
        for part in decision.chunks(rows, embeddings):
            final[start : start + len(part.p)] = narrow(part.p, rows.dtype)
            start += len(part.p)
        return like(p)(final)

    def predict(self, p: Any, z: Any) -> Any:
        """Class numbers."""
        probabilities = self.predict_proba(p, z)
        return probabilities.argmax(1)

    def explain(
        self, p_row: Any, z_row: Any, *, class_names: Sequence[str] | None = None, group: str | None = None
    ) -> Evidence:
        """Evidence for one case; ``group`` keeps its own lesion's images out of it."""
        decision = self.decision_
        p, z = check_rows(
            _one_row(p_row), _one_row(z_row), n_classes=decision.bank.n_classes, width=decision.bank.width
        )
        if len(p) != 1:
            raise ValueError(f"explain takes one case at a time, not {len(p)}")
        names = _check_names(class_names, decision.bank.n_classes) or self.class_names_
        return explain(decision, p.cpu(), z.cpu(), class_names=names, group=group)

    def report(
        self,
        p_test: Any,
        z_test: Any,
        y_test: Any,
        groups: Any = None,
        *,
        p_teacher: Any = None,
        settings: EvaluateConfig | None = None,
    ) -> dict[str, Any]:
        """Score every comparator and the gate on test data: the contents of ``evaluation.json``.

        ``settings`` asks for more than the defaults, intervals for instance: ``EvaluateConfig(bootstrap=1000)``.
        """
        decision = self.decision_
        settings = settings or EvaluateConfig(bootstrap=0)
        if self.class_names_ is not None and not settings.class_names:
            settings = replace(settings, class_names=self.class_names_)
        test = TestOutputs.check(
            p_test,
            z_test,
            y_test,
            groups,
            p_teacher=p_teacher,
            n_classes=decision.bank.n_classes,
            width=decision.bank.width,
            suffix="_test",
        )
        _check_groups_apart({"training": self._train, "validation": self._validation}, test.groups, "test")
        return evaluate(
            Case(
                train=self._train,
                validation=self._validation,
                test=test,
                decision=decision,
                decided=decision.decide(test.p, test.z),
                unseen_bank=self.bank_ if decision.bank is not self.bank_ else None,
                objective=self.tuning_.objective,
                costs=Goal.check(self.tuning_.objective, self.costs, n_classes=test.n_classes).costs,
            ),
            settings=settings,
            paired=False,
        ).document

    def save(self, path: str | Path) -> None:
        """Write what prediction and evidence need, and the tuning's whole curve, to one sealed safetensors file."""
        self.decision_  # noqa: B018  # says what to call first
        fitted = self.tuning_.to_artifact()
        params = self.get_params(deep=False)
        if isinstance(self.preset, Preset):
            params["preset"] = asdict(self.preset)
        params = jsonable(params)  # a numpy integer is a fine n_prototypes
        certificate, estimate = (getattr(self, name, None) for name in ("certificate_", "estimate_"))
        meta = {
            **fitted.meta,
            "params": params,
            "class_names": self.class_names_,
            "certificate": certificate and certificate.to_json(),
            "estimate": estimate and estimate._asdict(),
        }
        write_artifact(path, kind=KIND, schema=SCHEMA, tensors=fitted.tensors, meta=meta)

    @classmethod
    def load(cls, path: str | Path) -> DualPathClassifier:
        """Read what :meth:`save` wrote. Training rows are not kept, so ``report`` leaves out what needs them.

        ``bank_`` is the bank in use, which after cross-fitting holds validation rows too.
        """
        artifact = read_artifact(path, kind=KIND, schema=SCHEMA)
        params = artifact.meta["params"]
        if isinstance(params["preset"], dict):
            params["preset"] = Preset.from_json(params["preset"])
        self = cls(**params)
        self.tuning_ = Tuning.from_artifact(artifact)
        self.bank_, self._prior = self.decision_.bank, self.decision_.prior
        self.classes_ = np.arange(self.bank_.n_classes)
        self.class_names_ = _check_names(artifact.meta.get("class_names"), self.bank_.n_classes)
        if artifact.meta.get("certificate"):
            self.certificate_ = Certificate.from_json(artifact.meta["certificate"])
        if artifact.meta.get("estimate"):
            self.estimate_ = Estimate(**artifact.meta["estimate"])
        self._train = self._validation = None
        return self

    def _bank(self, caller: str) -> PrototypeBank:
        if not hasattr(self, "bank_"):
            raise NotFittedError(f"call fit(z_train, y_train) before {caller}")
        return self.bank_

    def _preset(self) -> Preset:
        if isinstance(self.preset, Preset):
            return self.preset
        if not isinstance(self.preset, str) or self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)} or a Preset, not {self.preset!r}")
        return PRESETS[self.preset]


def _check_names(names: Sequence[str] | None, n_classes: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    if len(names) != n_classes:
        raise ValueError(f"class_names has {len(names)} entries for {n_classes} classes")
    return tuple(map(str, names))


def _one_row(row: Any) -> Any:
    """A single case as a matrix of one row."""
    row = row if isinstance(row, Tensor) else np.asarray(row)
    return row[None] if row.ndim == 1 else row


def _check_groups_apart(
    seen: Mapping[str, TrainOutputs | ValidationOutputs | None], groups: NDArray[np.str_] | None, where: str
) -> None:
    """A lesion that the bank or the tuning has seen is no test of either; says where that cannot be known."""
    others = {name: outputs.groups for name, outputs in seen.items() if outputs is not None}
    unlike = [name for name, of_part in others.items() if (of_part is None) != (groups is None)]
    if unlike:
        have, lack = ([where], unlike) if groups is not None else (unlike, [where])
        warnings.warn(
            f"the {' and '.join(have)} data came with groups and the {' and '.join(lack)} data without: lesions that "
            "both share go unnoticed; give groups to all",
            stacklevel=3,
        )
    for name, of_part in others.items():
        if groups is None or of_part is None:
            continue
        shared = np.intersect1d(groups, of_part)
        if len(shared):
            raise ValueError(
                f"{len(shared)} groups are in both the {name} and the {where} data, for example {str(shared[0])!r}: "
                "results would be too good; split by group"
            )
