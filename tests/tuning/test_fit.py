from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support import BANK, SMALL, equal_tensors, splits_of, with_own_lesions

from tdumpra import PrototypeBank
from tdumpra.artifacts import read_artifact, write_artifact
from tdumpra.core.calibration import class_prior
from tdumpra.core.groups import group_folds
from tdumpra.method.output_files import SplitOutputs
from tdumpra.tuning import fit as fitting
from tdumpra.tuning.fit import Fitted, cluster, fit
from tdumpra.tuning.presets import PRESETS
from tdumpra.tuning.search import Search
from tdumpra.tuning.settings import BankConfig, TuneConfig
from tdumpra.tuning.tune import tune


@pytest.fixture(scope="module")
def splits() -> SplitOutputs:
    return with_own_lesions(splits_of(0), 0)


def written_and_read(fitted: Fitted, path: Path) -> Fitted:
    artifact = fitted.to_artifact()
    write_artifact(path, kind="fitted", schema=1, tensors=artifact.tensors, meta=artifact.meta)
    return Fitted.from_artifact(read_artifact(path, kind="fitted", schema=1))


class TestArtifact:
    @pytest.mark.parametrize("settings", [TuneConfig(), TuneConfig(certify=True), TuneConfig(folds=3)])
    def test_round_trip(self, splits, settings, tmp_path):
        fitted = fit(splits, BANK, settings)
        again = written_and_read(fitted, tmp_path / "fitted.safetensors")
        assert (again.certificate, again.estimate) == (fitted.certificate, fitted.estimate)
        assert (again.certificate is not None) == (again.estimate is None) == settings.certify
        assert (again.unseen_bank is None) == (fitted.unseen_bank is None) == (settings.folds == 0)
        assert again.verdict() == fitted.verdict()
        assert (again.tuning.best, again.tuning.contenders) == (fitted.tuning.best, fitted.tuning.contenders)
        assert again.tuning.decision.to_json() == fitted.tuning.decision.to_json()
        assert equal_tensors(again.to_artifact().tensors, fitted.to_artifact().tensors)
        for part in (splits.validation, splits.test):
            for one, other in ((again.unseen, fitted.unseen), (again.tuning.decision, fitted.tuning.decision)):
                assert torch.equal(one.decide(part.p, part.z).p, other.decide(part.p, part.z).p)

    def test_a_choice_over_seeds(self, splits, tmp_path):
        fitted = fit(splits, BANK, TuneConfig(), preset=SMALL, others=[with_own_lesions(splits_of(1), 1)], judge=True)
        again = written_and_read(fitted, tmp_path / "fitted.safetensors")
        assert again.estimate == fitted.estimate is not None


class TestBanks:
    def test_a_bank_that_was_made_is_not_clustered_again(self, splits, monkeypatch):
        """Nor does it change anything."""
        made = cluster(splits.train, BANK, SMALL, n_classes=4, class_names=())
        fresh = {name: fit(splits, BANK, settings, preset=SMALL) for name, settings in WAYS.items()}
        clustered = []
        original = cluster

        def spy(train, *args, **kwargs):
            clustered.append(train)
            return original(train, *args, **kwargs)

        monkeypatch.setattr(fitting, "cluster", spy)
        for name, settings in WAYS.items():
            fitted = fit(splits, BANK, settings, preset=SMALL, made=made)
            assert fitted.unseen.bank is made
            assert fitted.tuning.best == fresh[name].tuning.best
        assert all(train is not splits.train for train in clustered)
        assert len(clustered) == 4  # three folds, and all rows

    def test_each_seed_is_scored_by_its_own(self, splits):
        other = with_own_lesions(splits_of(1), 1)
        made = cluster(splits.train, BANK, SMALL, n_classes=4, class_names=())
        fitted = fit(splits, BANK, TuneConfig(), preset=SMALL, others=[other], made=made)
        assert fitted.tuning.decision.bank is made
        assert fitted.tuning.best == fit(splits, BANK, TuneConfig(), preset=SMALL, others=[other]).tuning.best

    @pytest.mark.parametrize("preset", ["default", "paper"])
    def test_settings_reach_the_clustering(self, splits, preset):
        train, chosen = splits.train, PRESETS[preset]
        bank = cluster(train, BankConfig(n_prototypes=4, seed=3), chosen, n_classes=5, class_names=())
        wanted = PrototypeBank.fit(
            train.z, train.y, 4, train.groups, 5, 3, ids=train.ids, merge_above=chosen.merge_above
        )
        assert equal_tensors(bank.to_artifact().tensors, wanted.to_artifact().tensors)
        assert (bank.exemplars, bank.merged) == (wanted.exemplars, wanted.merged)


WAYS = {"validation": TuneConfig(), "certified": TuneConfig(certify=True), "crossfit": TuneConfig(folds=3)}


def test_a_verdict_names_the_proof_or_the_lack_of_it(splits):
    plain = fit(splits, BANK, TuneConfig(), preset=SMALL)
    crossed = fit(splits, BANK, TuneConfig(folds=3), preset=SMALL)
    for fitted in (plain, crossed):
        assert fitted.estimate is not None
        assert fitted.verdict() == f"{fitted.estimate.sentence()}; {fitted.tuning.sentence()}"
    proven = fit(splits, BANK, TuneConfig(certify=True), preset=SMALL)
    assert proven.certificate is not None
    assert proven.certificate.granted
    assert proven.verdict() == f"{proven.certificate.sentence()}; {proven.tuning.sentence()}"
    refused = fit(splits, BANK, TuneConfig(certify=True, level=1e-9), preset=SMALL)
    assert refused.certificate is not None
    assert refused.verdict() == refused.certificate.sentence()


class TestEstimate:
    """What the choice earns on rows that had no say in it."""

    def test_each_fold_is_judged_by_a_choice_on_the_others(self, splits):
        rows, preset = splits.validation, replace(SMALL, gates=("clauses", "calibrated"))
        fitted = fit(splits, BANK, TuneConfig(), preset=preset)
        bank, prior = fitted.tuning.decision.bank, class_prior(splits.train.y, 4)
        fold = group_folds(rows.groups, rows.y.numpy(), 5, seed=2)
        before, after, opened = np.empty(len(rows), int), np.empty(len(rows), int), 0
        for number in range(5):
            decision = tune(bank, rows.rows(fold != number), prior, Search(preset)).decision
            held_out = rows.rows(fold == number)
            decided = decision.decide(held_out.p, held_out.z)
            before[fold == number], after[fold == number] = decided.p_cls.argmax(1), decided.p.argmax(1)
            opened += int(decided.opened.sum())
        found, y = fitted.estimate, rows.y.numpy()
        assert found is not None
        assert (found.rows, found.opened, found.left_out) == (200, opened, "fold")
        assert found.fixed == ((after == y) & (before != y)).sum() > 0
        assert found.broken == ((after != y) & (before == y)).sum()
        assert (found.base_accuracy, found.accuracy) == pytest.approx(((before == y).mean(), (after == y).mean()))
        for c, moved in enumerate(found.by_class):
            gained = ((after == c) & (before != c) & (y == c)).sum()
            lost = ((after != c) & (before == c) & (y == c)).sum()
            falsely_called = ((after == c) & (before != c) & (y != c)).sum()
            assert moved == (gained, lost, falsely_called)

    def test_labels_by_chance_look_better_than_they_are(self, splits):
        """Where there is nothing to find, the search finds something, and rows without a say deny it."""
        seen, unseen = [], []
        for seed in range(4):
            y = torch.from_numpy(np.random.default_rng(seed).integers(0, 4, len(splits.validation)))
            lucky = splits._replace(validation=replace(splits.validation, y=y))
            free = fit(lucky, BANK, TuneConfig(objective="accuracy"), preset=replace(PRESETS["free"], kappa=(10.0,)))
            assert free.estimate is not None
            seen.append(free.tuning.best.accuracy - free.tuning.base.accuracy)
            unseen.append(free.estimate.accuracy - free.estimate.base_accuracy)
        assert np.mean(seen) > 0.01
        assert np.mean(unseen) < np.mean(seen) / 2

    @pytest.mark.parametrize(
        ("changes", "survives"),
        [
            ({}, True),
            ({"accuracy": 0.69}, False),
            ({"objective": 0.6}, False),
            ({"objective": 0.5}, False),
        ],
    )
    def test_a_gain_that_does_not_survive_is_not_taken(self, splits, changes, survives):
        fitted = fit(splits, BANK, TuneConfig(), preset=SMALL)
        assert fitted.estimate is not None
        made = {"objective": 0.7, "base_objective": 0.6, "accuracy": 0.7, "base_accuracy": 0.7, **changes}
        judged = fitted._replace(estimate=fitted.estimate._replace(**made))
        told = fitting._judged(judged, Search(SMALL)).tuning
        taken = fitting._judged(judged, Search(replace(SMALL, must_survive=True))).tuning
        assert (told.is_shut, taken.is_shut) == (False, not survives)
        kinds = [{note.kind for note in each.notes} & {"not kept up", "not survived"} for each in (told, taken)]
        assert kinds == ([set(), set()] if survives else [{"not kept up"}, {"not survived"}])
        if not survives:
            rows = splits.validation
            decided = taken.decision.decide(rows.p, rows.z)
            assert not decided.opened.any()
            assert "did not survive" in taken.sentence()

    def test_the_default_preset_is_judged_even_where_nobody_asks(self, splits):
        assert fit(splits, BANK, TuneConfig(), judge=False).estimate is not None
        assert fit(splits, BANK, TuneConfig(preset="free"), judge=False).estimate is None

    def test_one_lesion_cannot_be_left_out(self, splits):
        rows = splits.validation
        lone = splits._replace(validation=replace(rows, groups=np.full(len(rows), "one")))
        fitted = fit(lone, BANK, TuneConfig(), preset=SMALL)
        assert fitted.estimate is None
        assert fit(lone, BANK, TuneConfig()).tuning.is_shut
