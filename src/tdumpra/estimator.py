"""The way in for arrays: an estimator in scikit-learn's manner for anyone's probabilities and embeddings."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from tdumpra.checks import check_choice, check_class_names, check_count
from tdumpra.core.calibration import class_prior
from tdumpra.core.linear_head import LinearHead
from tdumpra.core.metrics import Objective
from tdumpra.errors import ArtifactError
from tdumpra.estimator_file import KIND, SavedClassifier
from tdumpra.evaluation.comparators import Case
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.foreign import reading
from tdumpra.method import lineage
from tdumpra.method.arrays import like, narrow
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.evidence import Evidence, explain
from tdumpra.method.outputs import (
    TestOutputs,
    TrainOutputs,
    ValidationOutputs,
    are_names,
    check_groups_apart,
    check_rows,
    class_numbers,
)
from tdumpra.method.record import Record
from tdumpra.tuning.fit import Fitted, cluster, tune_bank
from tdumpra.tuning.goal import Goal, check_objective
from tdumpra.tuning.presets import Preset, check_preset
from tdumpra.tuning.search import Search
from tdumpra.tuning.settings import BankConfig, TuneConfig

Selection = Literal["validation", "certified", "crossfit"]


class DualPathClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A prototype bank beside your classifier, and a gate that lets it speak where it helps.

    ``fit`` builds the bank from training embeddings, ``tune`` chooses temperatures and thresholds on validation data,
    and ``predict_proba`` returns your classifier's (calibrated) rows unchanged except where the gate opens. The
    embeddings may come from any encoder, of any width. It takes two arrays where scikit-learn's tools pass one: inside
    ``cross_val_predict``, ``GridSearchCV`` or a ``Pipeline`` use :class:`~tdumpra.stacked.StackedDualPathClassifier`.

    Args:
        n_prototypes: prototypes per class, K.
        objective: what tuning maximises while accuracy does not fall: ``balanced_accuracy``, ``accuracy``, ``macro_f1``
            ``nll`` or ``cost``.
        preset: ``default``, ``free``, ``paper``, ``paper-swapped``, ``rebalancing``, or a
            :class:`tdumpra.tuning.presets.Preset`.
        n_classes: only needed where some class has no training row.
        adjust_prior: also divide the classifier by a power of the class prior, chosen by the same objective. This,
            unlike the temperature, changes labels of rows whose gate is shut.
        seed: of the clustering.
        costs: what each decision costs, truth × decision; with ``objective="cost"`` their mean is minimised, else they
            are only reported.
        selection: how the gate is chosen. ``validation`` takes the best on the validation rows; ``certified`` keeps
            the gate shut unless its benefit is proven on lesions that took no part in choosing it; ``crossfit``, for
            small validation sets, builds the bank from train and validation and chooses out of fold.
        folds: number of folds of ``crossfit``.
        max_asked: largest share of validation rows on which the classifier's confidence may lie below theta: they need
            the second network.
        tolerance: of the objective, given up for the theta that asks about the fewest rows.

    Attributes:
        bank_: the :class:`PrototypeBank` of the training rows.
        classes_: the labels that ``predict`` returns, in the order of p's columns: names, where ``fit`` was given names
            or string labels, else numbers.
        class_names_: the names, or ``None``.
        tuning_: what was tried and what won, the whole curve included.
        decision_: bank, temperatures and thresholds as they are applied.
        certificate_: with ``certified``, what was tested and whether anything was proven; else ``None``.
        estimate_: what the rule of choice earned on rows that had no say in it; ``None`` with ``certified``.
        record_: what ``tdumpra attach`` kept of the training and validation rows; else ``None``.
        lineage_: the commands that made it, oldest first; empty if it was fitted here.
        evaluation_: in brief what ``tdumpra attach`` measured on test rows; else ``None``.
        head_: the linear head on pooled features that ``tdumpra adapt`` put in place of your classifier's; else
            ``None``. With one, ``predict_proba`` and the like need ``features``, and read no probability from ``p``.
    """

    record_: Record | None = None
    head_: LinearHead | None = None
    lineage_: tuple[lineage.Entry, ...] = ()
    evaluation_: dict[str, Any] | None = None

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
        selection: Selection = "validation",
        folds: int = 5,
        max_asked: float = 1.0,
        tolerance: float = 0.0,
    ) -> None:
        self.n_prototypes = n_prototypes
        self.objective = objective
        self.preset = preset
        self.n_classes = n_classes
        self.adjust_prior = adjust_prior
        self.seed = seed
        self.costs = costs
        self.selection = selection
        self.folds = folds
        self.max_asked = max_asked
        self.tolerance = tolerance

    def fit(
        self,
        z_train: Any,
        y_train: Any,
        groups: Any = None,
        *,
        ids: Any = None,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Build the bank from training embeddings and labels; ``groups`` are lesions or patients.

        Labels are numbers from 0, or names; the columns of ``p`` are then those of ``class_names`` or, without them, of
        the sorted names.
        """
        check_preset(self.preset)
        check_objective(self.objective)
        if class_names is None and are_names(y_train):
            class_names = np.unique(np.asarray(y_train).astype(np.str_)).tolist()
        names = None if class_names is None else tuple(map(str, class_names))
        y = y_train if names is None else class_numbers(y_train, names, "y_train")
        train = TrainOutputs.check(z_train, y, groups, ids=ids, n_classes=self.n_classes)
        self.bank_ = self._cluster(train, self.n_classes, names)
        self._prior = class_prior(train.y, self.bank_.n_classes)
        self._train: TrainOutputs | None = train
        self._name_classes(names)
        for name in ("fitted_", "tuning_", "certificate_", "estimate_"):  # a new bank needs new thresholds
            self.__dict__.pop(name, None)
        return self

    def tune(self, p_val: Any, z_val: Any, y_val: Any, groups: Any = None) -> Self:
        """Choose temperatures, concentration, thresholds and weight on validation data."""
        if not hasattr(self, "bank_"):
            raise NotFittedError("call fit(z_train, y_train) before tune")
        bank, names, y = self.bank_, self.class_names_, self._numbers(y_val, "y_val")
        validation = ValidationOutputs.check(
            p_val, z_val, y, groups, n_classes=bank.n_classes, width=bank.width, suffix="_val"
        )
        check_groups_apart({"training": self._train}, validation.groups, "validation")
        given, validation = len(validation), validation.searched()
        search = Search.check(
            self.preset, self.objective, self.costs, self.adjust_prior, n_classes=bank.n_classes,
            max_asked=self.max_asked, tolerance=self.tolerance,
        )  # fmt: skip

        def make_bank(train: TrainOutputs) -> PrototypeBank:
            return self._cluster(train, bank.n_classes, names)

        settings = self._settings()
        fitted = tune_bank(
            bank, validation, self._prior, search, settings, train=self._train, make_bank=make_bank, class_names=names
        ).told(validation, given if len(validation) < given else None)
        self._keep(fitted)
        self._validation: ValidationOutputs | None = validation
        for note in self.tuning_.notes:
            warnings.warn(str(note), stacklevel=2)
        return self

    def _settings(self) -> TuneConfig:
        check_choice(self.selection, "selection", get_args(Selection))
        if self.selection == "crossfit":
            check_count(self.folds, "folds", least=2)
            return TuneConfig(folds=self.folds)
        return TuneConfig(certify=self.selection == "certified")

    def _cluster(self, train: TrainOutputs, n_classes: int | None, names: Sequence[str] | None) -> PrototypeBank:
        bank = BankConfig(n_prototypes=self.n_prototypes, seed=self.seed)
        preset = check_preset(self.preset)
        return cluster(train, bank, preset, n_classes=n_classes, class_names=names)

    def _name_classes(self, names: tuple[str, ...] | None) -> None:
        self.class_names_ = None if names is None else check_class_names(names, self.bank_.n_classes)
        self.classes_ = np.arange(self.bank_.n_classes) if names is None else np.array(names)

    def _numbers(self, y: Any, name: str) -> Any:
        """Return labels as numbers, if they are names that ``fit`` knows."""
        return y if self.class_names_ is None else class_numbers(y, self.class_names_, name)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "tuning_")

    def _keep(self, fitted: Fitted) -> None:
        self.fitted_ = fitted
        self.tuning_, self.certificate_, self.estimate_ = fitted.tuning, fitted.certificate, fitted.estimate

    @property
    def decision_(self) -> Decision:
        """The fitted state that is applied."""
        if not hasattr(self, "tuning_"):
            missing = "tune(p_val, z_val, y_val)" if hasattr(self, "bank_") else "fit(z_train, y_train) and tune(…)"
            raise NotFittedError(f"this DualPathClassifier is not ready: call {missing} first")
        return self.tuning_.decision

    def classifier_rows(self, p: Tensor, features: Any) -> Tensor:
        """Return the classifier's probabilities of checked rows: ``p`` itself, or those of the adapted head."""
        if self.head_ is None:
            return p
        width = self.head_.weight.shape[1]
        if features is None:
            raise ValueError(
                f"this classifier was adapted, and its head reads {width} pooled features: give features beside p and z"
            )
        rows = np.asarray(torch.as_tensor(features).cpu(), np.float64)
        if rows.shape != (len(p), width):
            raise ValueError(f"features must have shape ({len(p)}, {width}), not {rows.shape}")
        return torch.from_numpy(softmax(self.head_.logits(rows), axis=1)).to(p.device)

    def predict_proba(self, p: Any, z: Any, features: Any = None) -> Any:
        """Return final probabilities, in the kind and type of ``p``. Rows whose gate is shut are the classifier's."""
        decision = self.decision_
        rows, embeddings = check_rows(p, z, n_classes=decision.columns, width=decision.bank.width)
        final, start = rows.new_empty(len(rows), decision.bank.n_classes), 0
        wide = torch.promote_types(rows.dtype, torch.float32)
        for part in decision.chunks(self.classifier_rows(rows, features), embeddings):
            final[start : start + len(part.p)] = narrow(part.p.to(wide), rows.dtype)
            start += len(part.p)
        return like(p)(final)

    def predict(self, p: Any, z: Any, features: Any = None) -> Any:
        """Return labels: names where ``fit`` was given names, else numbers in the kind of ``p``."""
        numbers = self.predict_proba(p, z, features).argmax(1)
        return numbers if self.class_names_ is None else self.classes_[np.asarray(torch.as_tensor(numbers).cpu())]

    def score(self, p: Any, z: Any, y: Any, features: Any = None) -> float:
        """Return the accuracy of :meth:`predict`."""
        numbers = torch.as_tensor(self.predict_proba(p, z, features).argmax(1)).cpu()
        return float((numbers == torch.as_tensor(self._numbers(y, "y")).cpu()).double().mean())

    def explain(
        self,
        p_row: Any,
        z_row: Any,
        *,
        class_names: Sequence[str] | None = None,
        group: str | None = None,
        features_row: Any = None,
    ) -> Evidence:
        """Return the evidence for one case; ``group`` keeps its own lesion's images out of it."""
        decision = self.decision_
        n_classes = decision.bank.n_classes
        p, z = check_rows(_one_row(p_row), _one_row(z_row), n_classes=decision.columns, width=decision.bank.width)
        if len(p) != 1:
            raise ValueError(f"explain takes one case at a time, not {len(p)}")
        names = self.class_names_ if class_names is None else check_class_names(class_names, n_classes)
        own = self.classifier_rows(p.cpu(), None if features_row is None else _one_row(features_row))
        return explain(decision, own, z.cpu(), class_names=names, group=group)

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
        n_classes, width = decision.bank.n_classes, decision.bank.width
        settings = settings or EvaluateConfig(bootstrap=0)
        if self.head_ is not None:
            raise ValueError(
                "report compares with the classifier as it was trained, and this one was adapted: validate it"
            )
        if settings.tuning_replicates:
            raise ValueError("report cannot tune again, as tuning_replicates asks: set it in a configuration")
        if self.class_names_ is not None and not settings.class_names:
            settings = replace(settings, class_names=self.class_names_)
        y = self._numbers(y_test, "y_test")
        test = TestOutputs.check(
            p_test, z_test, y, groups, p_teacher=p_teacher, n_classes=n_classes, width=width, suffix="_test"
        )
        check_groups_apart({"training": self._train, "validation": self._validation}, test.groups, "test")
        case = Case(
            train=self._train,
            validation=self._validation,
            test=test,
            decision=decision,
            decided=decision.decide(test.p, test.z),
            unseen_bank=self.fitted_.unseen_bank,
            goal=Goal.check(self.tuning_.objective, self.costs, n_classes=n_classes),
        )
        return evaluate(case, settings=settings, paired=False).document

    def save(self, path: str | Path, *, made_from: str = "") -> None:
        """Write what prediction and evidence need, and the tuning's whole curve, to one sealed safetensors file.

        ``made_from`` is a name for what the classifier was made from; :func:`read_made_from` returns it.
        """
        self.decision_  # noqa: B018  # says what to call first
        SavedClassifier(
            fitted=self.fitted_, params=self.get_params(deep=False), class_names=self.class_names_, record=self.record_,
            head=self.head_, history=self.lineage_, evaluation=self.evaluation_,
        ).write(path, made_from=made_from)  # fmt: skip

    @classmethod
    def load(cls, path: str | Path) -> DualPathClassifier:
        """Read what :meth:`save` wrote. Training rows are not kept, so ``report`` leaves out what needs them."""
        saved = SavedClassifier.read(path)
        with reading(path, f"tdumpra {KIND}", ArtifactError):
            self = cls.from_fitted(saved.fitted, saved.class_names, **saved.params)
        self.record_, self.head_ = saved.record, saved.head
        self.lineage_, self.evaluation_ = saved.history, saved.evaluation
        return self

    @classmethod
    def from_fitted(cls, fitted: Fitted, class_names: Sequence[str] | None, **params: Any) -> DualPathClassifier:
        """Wrap a gate that was fitted before; ``params`` are those of the class."""
        self = cls(**params)
        self._keep(fitted)
        self.bank_, self._prior = fitted.unseen.bank, fitted.tuning.decision.prior
        self._name_classes(tuple(class_names) if class_names else None)
        self._train = self._validation = None
        return self


def _one_row(row: Any) -> Any:
    """Return a single case as a matrix of one row."""
    row = row if isinstance(row, Tensor) else np.asarray(row)
    return row[None] if row.ndim == 1 else row
