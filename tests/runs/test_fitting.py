"""From outputs to a decision: validation rows of several seeds as one set, and another run's classifier."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from tdumpra.runs.fitting import (
    case_of,
    gate_document,
    metadata_fingerprint,
    with_baseline,
    with_metadata,
)
from tests.support import likeliest_temperature, make_problem

from tdumpra import GateThresholds, PrototypeBank, fuse
from tdumpra.core.groups import group_folds
from tdumpra.errors import ArtifactError, InputFileError
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs
from tdumpra.runs.config import BankConfig, Config, EvaluateConfig, TuneConfig
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.tables import OutputsTable
from tdumpra.tuning.fit import fit
from tdumpra.tuning.pooled import pooled
from tdumpra.tuning.presets import PRESETS, Preset

SMALL = Preset(
    kappa=(5.0, 20.0),
    theta=(0.5, 0.7, 0.9),
    beta=(0.3,),
    margin=(0.0, 0.2),
    delta=(0.02,),
    alpha=(0.3, 0.7),
    fused_exponent=(0.0, 0.4),
)
BANK = BankConfig(n_prototypes=2)


def splits_of(seed: int, **test: Any) -> SplitOutputs:
    problem = make_problem(seed, dtype=np.float64)
    train, val, scored = problem
    return SplitOutputs(
        train=TrainOutputs.check(train.z, train.y, train.groups, ids=train.ids),
        validation=ValidationOutputs.check(val.p, val.z, val.y, val.groups, ids=val.ids),
        test=TestOutputs.check(scored.p, scored.z, scored.y, scored.groups, ids=scored.ids, **test),
        n_classes=4,
        fingerprint=f"seed {seed}",
        class_names=("a", "b", "c", "d"),
    )


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
        assert "chosen without the seed that it is judged on, on 600 rows" in fitted.verdict()

    def test_no_estimate_where_seeds_hold_out_the_same_lesions(self):
        seeds = [with_own_lesions(splits_of(seed), seed) for seed in range(3)]
        shared = [seeds[0], seeds[1], seeds[0]]
        fitted = fit(shared[0], BANK, TuneConfig(), preset=SMALL, others=shared[1:], judge=True)
        assert fitted.estimate is None
        assert fitted.tuning.notes[-1].kind == "shared lesions"

    def test_a_choice_that_loses_where_it_had_no_say_is_told(self):
        """A classifier that is always wrong in one seed teaches the others, where it is right, to distrust it."""
        seeds = [with_own_lesions(splits_of(seed), seed) for seed in range(3)]
        said = [each.validation.p.argmax(1) for each in seeds]
        labels = [said[0], said[1], (said[2] + 1) % 4]
        parts = [each._replace(validation=replace(each.validation, y=y)) for each, y in zip(seeds, labels, strict=True)]
        fitted = fit(parts[0], BANK, TuneConfig(), preset=SMALL, others=parts[1:], judge=True)
        assert fitted.estimate is not None
        assert fitted.estimate.accuracy < fitted.estimate.base_accuracy
        note, found = fitted.tuning.notes[-1], fitted.estimate
        assert note.kind == "lost on other seeds"
        assert note.values == {"before": found.base_accuracy, "after": found.accuracy}

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
        assert alone.pool is None
        assert together.pool is not None
        assert alone.tuning.decision.temperature != together.tuning.decision.temperature

    def test_comparators_are_fitted_on_the_same_rows(self):
        splits, other = splits_of(0), splits_of(1)
        fitted = fit(splits, BANK, TuneConfig(), preset=SMALL, others=[other])
        case = case_of(splits, fitted, TuneConfig())
        assert case.choice is fitted.pool
        assert case.validation is splits.validation
        assert case.choice is not None
        assert len(case.choice) == 400

    def test_the_gates_document_counts_the_rows_that_were_chosen_on(self):
        splits = splits_of(0)
        fitted = fit(splits, BANK, TuneConfig(pool_seeds=True), preset=SMALL, others=[splits_of(1)])
        cases = gate_document(splits, fitted, Config())["cases"]
        assert cases["rows"] == sum(cases["by_class"]) == 400
        groups = {*splits.validation.groups.tolist(), *splits_of(1).validation.groups.tolist()}  # type: ignore[union-attr]
        assert cases["groups"] == len(groups)
        alone = gate_document(splits, fit(splits, BANK, TuneConfig(), preset=SMALL), Config())["cases"]
        assert alone["rows"] == sum(alone["by_class"]) == 200

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
        splits = splits_of(0)._replace(validation=a)
        fitted = fit(splits, BANK, TuneConfig(pool_seeds=True), preset=SMALL, others=[splits])
        assert gate_document(splits, fitted, Config())["cases"]["groups"] is None


def with_own_lesions(splits: SplitOutputs, seed: int) -> SplitOutputs:
    """Validation lesions that no other seed has."""
    groups = splits.validation.groups
    assert groups is not None
    own = np.array([f"{seed}-{name}" for name in groups])
    return splits._replace(validation=replace(splits.validation, groups=own))


def replace_train_labels(splits: SplitOutputs) -> SplitOutputs:
    """The same class shares in every seed, as where seeds share their training lesions."""
    rows = np.concatenate([np.flatnonzero(splits.train.y.numpy() == c)[:20] for c in range(4)])
    assert splits.train.groups is not None
    train = TrainOutputs.check(splits.train.z[rows], splits.train.y[rows], splits.train.groups[rows])
    return splits._replace(train=train)


def test_the_preset_rebalancing_divides_by_the_prior_where_the_paths_disagree():
    splits = splits_of(0)
    fitted = fit(splits, BANK, TuneConfig(preset="rebalancing"))
    assert fitted.tuning.curve.axes["fused_exponent"] == PRESETS["rebalancing"].fused_exponent
    document = gate_document(splits, fitted, Config())["decision"]
    assert document["fused_exponent"] == fitted.tuning.decision.fused_exponent == fitted.tuning.best.fused_exponent
    assert document["guarantees_similarity"] is (fitted.tuning.decision.guarantees_similarity)


# --- another run's classifier


def write_test_table(root: Path, splits: SplitOutputs, order: list[int] | None = None) -> OutputsTable:
    """Tables of a run that tested the same images, in another order."""
    order = list(range(len(splits.test))) if order is None else order
    assert splits.test.ids is not None
    table = OutputsTable(
        ids=tuple(str(splits.test.ids[i]) for i in order),
        groups=tuple("g" for _ in order),
        labels=splits.test.y[order],
        logits=torch.randn(len(order), 4, generator=torch.Generator().manual_seed(1)),
        z_student=splits.test.z[order].float(),
        class_names=splits.class_names,
        metadata={},
        identity={"encoder": "e", "split": "s"},
    )
    (root / "outputs").mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        table.write(RunFolder(root).outputs(part))
    return table


def test_a_baseline_is_matched_by_id(tmp_path):
    splits = splits_of(0)
    order = np.random.default_rng(0).permutation(160).tolist()
    table = write_test_table(tmp_path, splits, order)
    found = with_baseline(splits, str(tmp_path), 0).test.p_baseline
    assert found is not None
    torch.testing.assert_close(found[order], table.logits.double().softmax(1))


def test_a_baseline_is_scored_and_its_seed_is_the_runs(tmp_path):
    splits = splits_of(0)
    table = write_test_table(tmp_path / "seed-3", splits)
    config = Config(evaluate=EvaluateConfig(bootstrap=0, baseline=str(tmp_path)))
    fitted = fit(splits, BANK, TuneConfig(), preset=SMALL)
    scored = evaluate_outputs(splits, fitted, config, 3).document["comparators"]
    right = table.logits.argmax(1) == splits.test.y
    assert scored["baseline"]["accuracy"] == pytest.approx(right.double().mean().item())
    with pytest.raises(ArtifactError, match=r"evaluate\.baseline = .* of seed 0: there are seed-3"):
        evaluate_outputs(splits, fitted, config, 0)


def test_a_baseline_that_did_not_test_these_images(tmp_path):
    splits = splits_of(0)
    write_test_table(tmp_path, splits, list(range(5, 160)))
    with pytest.raises(
        InputFileError, match=r"did not test 5 of the test images, for example 'test-image-0': give both"
    ):
        with_baseline(splits, str(tmp_path), 0)
    write_test_table(tmp_path, splits._replace(test=replace(splits.test, y=(splits.test.y + 1) % splits.n_classes)))
    with pytest.raises(
        ArtifactError,
        match=r"evaluate\.baseline names a run that labels 160 of 160 images otherwise, for example 'test-image-0'",
    ):
        with_baseline(splits, str(tmp_path), 0)
    nameless = splits._replace(test=replace(splits.test, ids=None))
    with pytest.raises(InputFileError, match="the outputs carry no id"):
        with_baseline(nameless, str(tmp_path), 0)


def test_a_baseline_of_other_classes(tmp_path):
    splits = splits_of(0)
    table = write_test_table(tmp_path, splits)
    turned = splits._replace(class_names=tuple(reversed(table.class_names)))
    with pytest.raises(InputFileError, match=r"apart, and these outputs .*: a baseline needs the same classes"):
        with_baseline(turned, str(tmp_path), 0)
    with pytest.raises(InputFileError, match="and these outputs 5 classes"):
        with_baseline(splits._replace(class_names=(), n_classes=5), str(tmp_path), 0)


def test_an_altered_table_of_columns_asks_for_a_new_evaluation(tmp_path):
    table = tmp_path / "columns.csv"
    config = Config(evaluate=EvaluateConfig(metadata=str(table), subgroups=("site",)))
    with pytest.raises(InputFileError, match="not a readable"):
        metadata_fingerprint(config)
    table.write_text("id,site\na,back\n")
    before = metadata_fingerprint(config)
    assert metadata_fingerprint(config) == before
    table.write_text("id,site\na,face\n")
    assert metadata_fingerprint(config) != before
    assert metadata_fingerprint(Config()) == {}


@pytest.mark.filterwarnings("ignore:n_prototypes=120 is more than")
class TestCrossFitted:
    """Validation rows are in the bank that goes into use, so nothing may be judged by how well it knows them."""

    @pytest.fixture
    def noise(self) -> SplitOutputs:
        rng = np.random.default_rng(0)
        splits = splits_of(0)
        parts = {
            name: replace(part, z=torch.from_numpy(rng.normal(size=part.z.shape)))
            for name, part in splits._asdict().items()
            if name in ("train", "validation", "test")
        }
        return splits._replace(**parts)

    def test_retrieval_that_knows_nothing_rehearses_at_chance(self, noise):
        bank = BankConfig(n_prototypes=120)  # nearly every row is its own prototype
        fitted = fit(noise, bank, TuneConfig(folds=3), preset=SMALL)
        validation = noise.validation
        memorised = fitted.tuning.decision.decide(validation.p, validation.z).p_sim
        assert (memorised.argmax(1) == validation.y).double().mean() > 0.8  # what must not be used
        rehearsal = case_of(noise, fitted, TuneConfig(folds=3)).on_validation()
        assert rehearsal is not None
        assert (rehearsal.decided.p_sim.argmax(1) == validation.y).double().mean() < 0.5
        for comparator in (COMPARATORS[name].posterior for name in ("similarity", "calibrated_gate", "paper_gate")):
            posterior = comparator(rehearsal)
            assert posterior is not None
            gained = (posterior.argmax(1) == validation.y).double().mean() - (
                validation.p.argmax(1) == validation.y
            ).double().mean()
            assert gained < 0.05

    def test_gates_beside_ours_are_not_tuned_on_rows_of_the_bank(self, noise):
        """Else they would trust retrieval, which knows validation by heart and nothing of test."""
        settings = TuneConfig(folds=3)
        case = case_of(noise, fit(noise, BankConfig(n_prototypes=120), settings, preset=SMALL), settings)
        posterior = COMPARATORS["calibrated_gate"].posterior(case)
        assert posterior is not None
        before, after = ((p.argmax(1) == case.test.y).double().mean() for p in (case.test.p, posterior))
        assert after > before - 0.05

    def test_what_a_gate_won_is_not_counted_on_rows_of_its_own_bank(self, noise):
        config = Config(bank=BankConfig(n_prototypes=120), tune=TuneConfig(folds=3))
        fitted = fit(noise, config.bank, config.tune, preset=replace(SMALL, beta=(0.0,), delta=(0.0,)))
        won = gate_document(noise, fitted, config)["won_by"]
        assert won["fixed"] <= won["broken"] + 5


def test_a_table_that_contradicts_itself(tmp_path):
    splits = splits_of(0)
    assert splits.test.ids is not None
    first = splits.test.ids[0]
    (tmp_path / "t.csv").write_text(f"id,sex,site\n{first},f,a\n{first},m,a\n")
    with pytest.raises(InputFileError, match=f"says different things of '{first}' in its column 'sex'"):
        with_metadata(splits, tmp_path / "t.csv", ("sex",))
    assert with_metadata(splits, tmp_path / "t.csv", ("site",)).test.metadata["site"][0] == "a"
