"""From outputs to a fitted decision: cluster the bank, then tune on validation the way the settings ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from tdumpra.artifacts import Artifact, prefixed, unprefixed
from tdumpra.core.calibration import class_prior
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import TrainOutputs, ValidationOutputs
from tdumpra.tuning.certificate import Certificate
from tdumpra.tuning.certify import certify
from tdumpra.tuning.crossfit import BankMaker, Estimate, cross_fit, out_of_fold
from tdumpra.tuning.notes import Note
from tdumpra.tuning.pooled import tune_over_seeds
from tdumpra.tuning.presets import Preset
from tdumpra.tuning.result import Tuning
from tdumpra.tuning.search import Search
from tdumpra.tuning.settings import BankConfig, TuneConfig
from tdumpra.tuning.tune import refuse_other_than_validation, tune_on_scores


class Fitted(NamedTuple):
    """A tuned decision and what stands behind it."""

    tuning: Tuning
    certificate: Certificate | None = None
    estimate: Estimate | None = None
    unseen_bank: PrototypeBank | None = None  # a bank without validation rows, where the decision's own holds them

    @property
    def unseen(self) -> Decision:
        """Return the decision with a bank that holds no validation rows, to be tried on those rows."""
        return replace(self.tuning.decision, bank=self.unseen_bank or self.tuning.decision.bank)

    @property
    def expected(self) -> Estimate | None:
        """Return the estimate of the gate in use: a choice that was not taken earns and costs nothing."""
        if self.estimate is None or not self.tuning.is_shut:
            return self.estimate
        return self.estimate.untaken()

    def told(self, searched: ValidationOutputs, drawn_from: int | None) -> Fitted:
        """Return the same with a note, if the rows that were searched were drawn from so many."""
        if drawn_from is None:
            return self
        note = Note("part of validation", {"rows": len(searched), "of": drawn_from})
        return self._replace(tuning=replace(self.tuning, notes=(note, *self.tuning.notes)))

    def verdict(self) -> str:
        """Say in a sentence how the gate was chosen, proven or estimated."""
        if self.certificate is not None and not self.certificate.granted:
            return self.certificate.sentence()
        parts = (self.certificate, self.estimate, self.tuning)  # what rows without a say tell comes first
        return "; ".join(part.sentence() for part in parts if part is not None)

    def to_artifact(self) -> Artifact:
        """Return tensors and plain values, as a file keeps them."""
        tuning = self.tuning.to_artifact()
        unseen = self.unseen_bank.to_artifact() if self.unseen_bank else Artifact({}, {})
        meta = {
            **tuning.meta,
            "certificate": self.certificate and self.certificate.to_json(),
            "estimate": self.estimate and self.estimate.to_json(),
            "unseen_bank": unseen.meta,
        }
        return Artifact({**tuning.tensors, **prefixed("unseen", unseen.tensors)}, meta)

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> Fitted:
        """Read what :meth:`to_artifact` returned."""
        tensors, meta = artifact
        unseen = unprefixed("unseen", tensors)
        return cls(
            tuning=Tuning.from_artifact(artifact),
            certificate=Certificate.from_json(meta["certificate"]) if meta["certificate"] else None,
            estimate=Estimate.from_json(meta["estimate"]) if meta["estimate"] else None,
            unseen_bank=PrototypeBank.from_artifact(Artifact(unseen, meta["unseen_bank"])) if unseen else None,
        )


def fit(
    splits: SplitOutputs,
    bank: BankConfig,
    settings: TuneConfig,
    *,
    preset: Preset | None = None,
    others: Sequence[SplitOutputs] = (),
    judge: bool = True,
    made: PrototypeBank | None = None,
) -> Fitted:
    """Build the bank from train and choose everything else on validation.

    Args:
        splits: the outputs of one seed.
        bank: how its bank is made.
        settings: what is searched.
        preset: used in place of the one that ``settings`` names.
        others: further seeds whose validation rows take part in the choice, each scored by its own model and bank.
        judge: also estimate what the choice earns on rows that had no say in it, even where the preset does without.
        made: the bank of ``splits.train`` under these settings, if it was clustered before.
    """
    search = Search.check(
        preset or settings.preset, settings.objective, settings.costs, settings.adjust_prior,
        n_classes=splits.n_classes, max_asked=settings.max_asked, tolerance=settings.tolerance,
    )  # fmt: skip
    judge = judge or search.preset.must_survive

    def make_bank(train: TrainOutputs) -> PrototypeBank:
        return cluster(train, bank, search.preset, n_classes=splits.n_classes, class_names=splits.class_names)

    made = made or make_bank(splits.train)
    if others and not settings.folds:
        banks = [made, *(make_bank(each.train) for each in others)]
        tuning, estimate = tune_over_seeds([splits, *others], banks, search, judge=judge)
        return _judged(Fitted(tuning, estimate=estimate), search).told(splits.validation, splits.drawn_from)
    prior = class_prior(splits.train.y, splits.n_classes)
    return tune_bank(
        made, splits.validation, prior, search, settings, train=splits.train, make_bank=make_bank,
        class_names=splits.class_names, judge=judge,
    ).told(splits.validation, splits.drawn_from)  # fmt: skip


def tune_bank(
    bank: PrototypeBank,
    validation: ValidationOutputs,
    prior: Tensor,
    search: Search,
    settings: TuneConfig,
    *,
    train: TrainOutputs | None,
    make_bank: BankMaker,
    class_names: Sequence[str] | None = None,
    judge: bool = True,
) -> Fitted:
    """Tune a clustered bank on validation alone, with a proof, or in folds over train and validation."""
    certified_classes = settings.certified_classes(class_names, bank.n_classes)
    if settings.folds:
        if train is None:
            raise ValueError("cross-fitting needs the training rows, which a saved model does not keep: fit again")
        tuning, estimate = cross_fit(
            train, validation, make_bank, search, folds=settings.folds, training_rows=settings.training_rows
        )
        return _judged(Fitted(tuning, estimate=estimate, unseen_bank=bank), search)
    if settings.certify:
        proof = certify(
            bank,
            validation,
            prior,
            search,
            level=settings.level,
            correction=settings.correction,
            classes=certified_classes,
            class_harm=settings.class_harm,
        )
        return Fitted(*proof)
    refuse_other_than_validation(validation)
    scores = {kappa: bank.class_scores(validation.z, kappa=kappa) for kappa in search.preset.kappa}
    tuning = tune_on_scores(bank, validation, scores, prior, search)
    judged = out_of_fold(bank, validation, scores, prior, search) if judge else None
    return _judged(Fitted(tuning, estimate=judged), search)


def _judged(fitted: Fitted, search: Search) -> Fitted:
    """Note a gain that rows without a say do not confirm; the gate stays shut, if the preset asks for it."""
    tuning, estimate = fitted.tuning, fitted.estimate
    if tuning.is_shut or estimate is None or estimate.survives:
        return fitted
    note = Note("not survived" if search.preset.must_survive else "not kept up", {"gain": estimate.gain})
    if search.preset.must_survive:
        tuning = tuning.kept_shut()
    return fitted._replace(tuning=replace(tuning, notes=(*tuning.notes, note)))


def cluster(
    train: TrainOutputs,
    bank: BankConfig,
    preset: Preset,
    *,
    n_classes: int | None,
    class_names: Sequence[str] | None,
) -> PrototypeBank:
    """Cluster the training embeddings into a bank."""
    return PrototypeBank.fit(
        train.z,
        train.y,
        bank.n_prototypes,
        train.groups,
        n_classes,
        bank.seed,
        ids=train.ids,
        merge_above=preset.merge_above,
        class_names=class_names or None,
    )
