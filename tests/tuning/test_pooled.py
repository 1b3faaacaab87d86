"""One gate for all seeds of a model: what is chosen on their validation rows together."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from tests.support import BANK, SMALL, likeliest_temperature, splits_of, with_own_lesions

from tdumpra import GateThresholds, PrototypeBank, fuse
from tdumpra.core.groups import group_folds
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import TrainOutputs
from tdumpra.tuning.fit import fit
from tdumpra.tuning.pooled import pooled
from tdumpra.tuning.presets import PRESETS
from tdumpra.tuning.settings import TuneConfig


def replace_train_labels(splits: SplitOutputs) -> SplitOutputs:
    """The same class shares in every seed, as where seeds share their training lesions."""
    rows = np.concatenate([np.flatnonzero(splits.train.y.numpy() == c)[:20] for c in range(4)])
    assert splits.train.groups is not None
    train = TrainOutputs.check(splits.train.z[rows], splits.train.y[rows], splits.train.groups[rows])
    return splits._replace(train=train)


class TestOneChoiceForAllSeeds:
    def test_equals_the_loop_over_settings_on_all_rows(self):
        """Temperatures and every setting's score, from each seed's own bank and posterior put one after the other."""
        seeds = [splits_of(seed) for seed in range(3)]
        tuning = fit(seeds[0], BANK, TuneConfig(), preset=SMALL, others=seeds[1:]).tuning
        p, y = (np.concatenate([getattr(each.validation, name).numpy() for each in seeds]) for name in ("p", "y"))
        temperature = likeliest_temperature(np.log(p), y)
        assert tuning.decision.temperature == pytest.approx(temperature, rel=1e-5)
        p_cls: np.ndarray = softmax(np.log(p) / tuning.decision.temperature, axis=1)
        banks = [PrototypeBank.fit(each.train.z, each.train.y, 2, each.train.groups) for each in seeds]
        prior = np.bincount(torch.cat([each.train.y for each in seeds])) / sum(len(each.train.y) for each in seeds)
        values = []
        for number, kappa in enumerate(SMALL.kappa):
            scores = np.concatenate([
                bank.class_scores(each.validation.z, kappa=kappa).numpy()
                for bank, each in zip(banks, seeds, strict=True)
            ])  # fmt: skip
            assert tuning.curve.tau[number] == pytest.approx(likeliest_temperature(scores, y), rel=1e-5)
            p_sim: np.ndarray = softmax(scores / tuning.curve.tau[number], axis=1)
            grid: Any = itertools.product(
                SMALL.rule, SMALL.alpha, SMALL.fused_exponent, SMALL.theta, SMALL.beta, SMALL.margin[::-1], SMALL.delta
            )
            for rule, alpha, exponent, theta, beta, margin, delta in grid:
                fused = fuse(p_cls, p_sim, GateThresholds(theta, beta, margin, delta, alpha), rule=rule)
                final, opened = np.array(fused.p), np.asarray(fused.opened)
                final[opened] /= prior**exponent
                label = final.argmax(1)
                values.append((
                    np.mean([(label[y == c] == c).mean() for c in range(4)]), (label == y).mean(), opened.sum()
                ))  # fmt: skip
        for name, column in zip(("objective", "accuracy", "opened"), zip(*values, strict=True), strict=True):
            np.testing.assert_allclose(getattr(tuning.curve, name).ravel(), column, atol=1e-12, err_msg=name)
        assert tuning.n_rows == len(y) == 600
        harmless = [value for value, accuracy, _ in values if accuracy >= tuning.base.accuracy]
        assert tuning.best.objective == pytest.approx(max(harmless))

    def test_every_seed_comes_to_the_same_choice_over_its_own_bank(self):
        seeds = [replace_train_labels(splits_of(seed)) for seed in range(3)]
        fitted = [fit(seeds[i], BANK, TuneConfig(), others=seeds[:i] + seeds[i + 1 :]) for i in range(3)]
        first = fitted[0].tuning
        for splits, each in zip(seeds, fitted, strict=True):
            decision = each.tuning.decision
            assert decision.thresholds == first.decision.thresholds
            assert decision.rule == first.decision.rule
            assert decision.fused_exponent == first.decision.fused_exponent
            assert (decision.kappa, decision.temperature) == pytest.approx(
                (first.decision.kappa, first.decision.temperature)
            )
            own = PrototypeBank.fit(splits.train.z, splits.train.y, 2, splits.train.groups)
            assert torch.equal(decision.bank.prototypes, own.prototypes)

    def test_the_estimate_leaves_out_each_seed_in_turn(self):
        seeds = [with_own_lesions(replace_train_labels(splits_of(seed)), seed) for seed in range(3)]
        fitted = fit(seeds[0], BANK, TuneConfig(), preset=SMALL, others=seeds[1:], judge=True)
        right_before, right_after, retrieved, opened = [], [], [], 0
        for i, splits in enumerate(seeds):
            first, *others = seeds[:i] + seeds[i + 1 :]
            chosen = fit(first, BANK, TuneConfig(), preset=SMALL, others=others).tuning.decision
            bank = PrototypeBank.fit(splits.train.z, splits.train.y, 2, splits.train.groups)
            rows = splits.validation
            decided = replace(chosen, bank=bank).decide(rows.p, rows.z)
            right_before.append((decided.p_cls.argmax(1) == rows.y).numpy())
            right_after.append((decided.p.argmax(1) == rows.y).numpy())
            retrieved.append((decided.p_sim.argmax(1) == rows.y).numpy())
            opened += int(decided.opened.sum())
        before, after, either = (np.concatenate(each) for each in (right_before, right_after, retrieved))
        found = fitted.estimate
        assert found is not None
        assert (found.rows, found.left_out, found.opened) == (600, "seed", opened)
        assert (found.fixed, found.broken) == ((after & ~before).sum(), (before & ~after).sum())
        assert found.fixable == (either & ~before).sum()
        assert (found.base_accuracy, found.accuracy) == pytest.approx((before.mean(), after.mean()))
        assert fitted.verdict().startswith(found.sentence())

    def test_lesions_are_left_out_where_seeds_share_them(self):
        seeds = [with_own_lesions(splits_of(seed), seed) for seed in range(3)]
        shared = [seeds[0], seeds[1], seeds[0]]
        fitted = fit(shared[0], BANK, TuneConfig(), preset=SMALL, others=shared[1:], judge=True)
        assert fitted.estimate is not None
        assert (fitted.estimate.left_out, fitted.estimate.rows) == ("fold", 600)
        assert "shared lesions" in {note.kind for note in fitted.tuning.notes}

    def test_a_choice_can_lose_where_it_had_no_say(self):
        """A classifier that is always wrong in one seed teaches the others, where it is right, to distrust it."""
        seeds = [with_own_lesions(splits_of(seed), seed) for seed in range(3)]
        said = [each.validation.p.argmax(1) for each in seeds]
        labels = [said[0], said[1], (said[2] + 1) % 4]
        parts = [each._replace(validation=replace(each.validation, y=y)) for each, y in zip(seeds, labels, strict=True)]
        fitted = fit(parts[0], BANK, TuneConfig(), preset=SMALL, others=parts[1:], judge=True)
        assert fitted.estimate is not None
        assert fitted.estimate.accuracy < fitted.estimate.base_accuracy
        assert not fitted.estimate.survives

    def test_whoever_asks_gets_the_same_choice_and_estimate(self):
        """Also where the seeds' training rows differ in their class shares; each applies its own."""
        seeds = [with_own_lesions(splits_of(seed), seed) for seed in range(3)]
        preset = PRESETS["rebalancing"]
        fitted = [
            fit(seeds[i], BANK, TuneConfig(), preset=preset, others=seeds[:i] + seeds[i + 1 :], judge=True)
            for i in range(3)
        ]
        assert len({each.tuning.decision.thresholds for each in fitted}) == 1
        assert len({each.tuning.decision.fused_exponent for each in fitted}) == 1
        counts = [(each.estimate.fixed, each.estimate.broken) for each in fitted if each.estimate is not None]
        assert len(counts) == 3
        assert len(set(counts)) == 1
        for splits, each in zip(seeds, fitted, strict=True):
            own = torch.bincount(splits.train.y, minlength=4).double() / len(splits.train.y)
            torch.testing.assert_close(each.tuning.decision.prior.double(), own)

    def test_another_seed_can_change_the_choice(self):
        alone = fit(splits_of(0), BANK, TuneConfig(), preset=SMALL)
        together = fit(splits_of(0), BANK, TuneConfig(), preset=SMALL, others=[splits_of(1)])
        assert alone.tuning.decision.temperature != together.tuning.decision.temperature

    def test_what_one_seed_lacks_the_pool_lacks(self):
        a, b = splits_of(0).validation, splits_of(1).validation
        both = pooled([replace(a, p_teacher=a.p, p_second=a.p), replace(b, p_teacher=b.p, p_second=b.p)])
        assert both.p_teacher is not None
        assert torch.equal(both.p_teacher, torch.cat([a.p, b.p]))
        assert both.groups is not None
        assert both.groups.tolist() == [*a.groups.tolist(), *b.groups.tolist()]  # type: ignore[union-attr]
        less = pooled([replace(a, p_teacher=a.p, p_second=a.p), b])
        assert (less.p_teacher, less.p_second) == (None, None)

    @pytest.mark.parametrize("named", [True, False])
    def test_without_groups_an_image_that_seeds_share_stays_in_one_fold(self, named):
        a, b = (replace(splits_of(0).validation, groups=None) for _ in range(2))
        both = pooled([a, b] if named else [replace(a, ids=None), replace(b, ids=None)])
        assert both.groups is not None
        fold = group_folds(both.groups, both.y.numpy(), 5, seed=0)
        assert fold[:200].tolist() == fold[200:].tolist()
        assert len(set(both.groups.tolist())) == 200
