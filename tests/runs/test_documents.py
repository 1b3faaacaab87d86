"""What gate.json and evaluation.json say, and what an evaluation asks for beyond the outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import BANK, SMALL, splits_of

from tdumpra.errors import ArtifactError, InputFileError
from tdumpra.evaluation.comparators import COMPARATORS
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs.config import BankConfig, Config, EvaluateConfig, TuneConfig
from tdumpra.runs.documents import (
    Part,
    case_of,
    evaluated,
    gate_document,
    metadata_fingerprint,
    redrawn,
    with_baseline,
    with_metadata,
)
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.tables import OutputsTable
from tdumpra.tuning.fit import cluster, fit
from tdumpra.tuning.presets import PRESETS


def test_comparators_are_fitted_on_the_rows_that_the_gate_was_chosen_on():
    splits, other = splits_of(0), splits_of(1)
    fitted = fit(splits, BANK, TuneConfig(), preset=SMALL, others=[other])
    case = case_of(splits, [other], fitted, Config())
    assert case.validation is splits.validation
    assert case.pool is not None
    assert torch.equal(case.pool.p, torch.cat([splits.validation.p, other.validation.p]))
    assert len(case.pool) == 400
    scores, own = case.choice_scores(20.0), fitted.tuning.decision.bank.class_scores(splits.validation.z, kappa=20.0)
    assert scores is not None
    assert torch.equal(scores[:200], own)
    theirs = cluster(other.train, Config().bank, PRESETS["default"], n_classes=4, class_names=other.class_names)
    assert torch.equal(scores[200:], theirs.class_scores(other.validation.z, kappa=20.0))  # each by its own bank
    assert case_of(splits, [], fitted, Config()).pool is None


def test_the_gates_document_counts_the_rows_that_were_chosen_on():
    splits, other = splits_of(0), splits_of(1)
    fitted = fit(splits, BANK, TuneConfig(pool_seeds=True), preset=SMALL, others=[other])
    cases = gate_document(splits, [other], fitted, Config())["cases"]
    assert cases["rows"] == sum(cases["by_class"]) == 400
    groups = {*splits.validation.groups.tolist(), *other.validation.groups.tolist()}  # type: ignore[union-attr]
    assert cases["groups"] == len(groups)
    alone = gate_document(splits, [], fit(splits, BANK, TuneConfig(), preset=SMALL), Config())["cases"]
    assert alone["rows"] == sum(alone["by_class"]) == 200


def test_without_groups_none_are_counted():
    """Rows that seeds share stay together when they are pooled, which makes no lesion of them."""
    splits = splits_of(0)
    splits = splits._replace(validation=replace(splits.validation, groups=None))
    fitted = fit(splits, BANK, TuneConfig(pool_seeds=True), preset=SMALL, others=[splits])
    assert gate_document(splits, [splits], fitted, Config())["cases"]["groups"] is None


def test_the_preset_rebalancing_divides_by_the_prior_where_the_paths_disagree():
    splits = splits_of(0)
    fitted = fit(splits, BANK, TuneConfig(preset="rebalancing"))
    assert fitted.tuning.curve.axes["fused_exponent"] == PRESETS["rebalancing"].fused_exponent
    document = gate_document(splits, [], fitted, Config())["decision"]
    assert document["fused_exponent"] == fitted.tuning.decision.fused_exponent == fitted.tuning.best.fused_exponent
    assert document["guarantees_similarity"] is fitted.tuning.decision.guarantees_similarity


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
    scored = evaluated([Part(splits, (), fitted)], config, 3).document["comparators"]
    right = table.logits.argmax(1) == splits.test.y
    assert scored["baseline"]["accuracy"] == pytest.approx(right.double().mean().item())
    with pytest.raises(ArtifactError, match=r"evaluate\.baseline = .* of seed 0: there are seed-3"):
        evaluated([Part(splits, (), fitted)], config, 0)


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
        rehearsal = case_of(noise, [], fitted, Config(tune=TuneConfig(folds=3))).on_validation()
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
        case = case_of(
            noise, [], fit(noise, BankConfig(n_prototypes=120), settings, preset=SMALL), Config(tune=settings)
        )
        posterior = COMPARATORS["calibrated_gate"].posterior(case)
        assert posterior is not None
        before, after = ((p.argmax(1) == case.test.y).double().mean() for p in (case.test.p, posterior))
        assert after > before - 0.05

    def test_what_a_gate_won_is_not_counted_on_rows_of_its_own_bank(self, noise):
        config = Config(bank=BankConfig(n_prototypes=120), tune=TuneConfig(folds=3))
        fitted = fit(noise, config.bank, config.tune, preset=replace(SMALL, beta=(0.0,), delta=(0.0,)))
        won = gate_document(noise, [], fitted, config)["won_by"]
        assert won["fixed"] <= won["broken"] + 5


def test_a_table_that_contradicts_itself(tmp_path):
    splits = splits_of(0)
    assert splits.test.ids is not None
    first = splits.test.ids[0]
    (tmp_path / "t.csv").write_text(f"id,sex,site\n{first},f,a\n{first},m,a\n")
    with pytest.raises(InputFileError, match=f"says different things of '{first}' in its column 'sex'"):
        with_metadata(splits, tmp_path / "t.csv", ("sex",))
    assert with_metadata(splits, tmp_path / "t.csv", ("site",)).test.metadata["site"][0] == "a"


class TestEvaluated:
    CONFIG = Config(evaluate=EvaluateConfig(bootstrap=20, sensitivity_classes=("b",)), tune=TuneConfig(preset=SMALL))

    def parts(self, **tune: Any) -> list[Part]:
        """Two outer folds, each with lesions of its own."""
        found = []
        for number in range(2):
            splits = splits_of(number)
            test = splits.test
            assert test.groups is not None
            assert test.ids is not None
            groups, ids = (np.char.add(f"{number}-", names) for names in (test.groups, test.ids))
            own = splits._replace(test=replace(test, groups=groups, ids=ids))
            found.append(Part(own, (), fit(own, BANK, replace(self.CONFIG.tune, **tune))))
        return found

    def test_folds_are_counted_together(self):
        parts = self.parts()
        document = evaluated(parts, self.CONFIG, 0).document
        assert document["rows"]["test"] == 320
        assert document["rows"]["val"] == 200  # of a fold
        assert document["gate"]["n"] == 320
        assert all(f"fold {number}:" in document["tuning"] for number in range(2))
        assert document["certified"] is None
        estimates = [part.fitted.expected for part in parts]
        assert all(each is not None for each in estimates)
        validation = document["per_1000"]["validation"]
        rows = sum(each.rows for each in estimates if each is not None)
        for name in ("opened", "fixed", "broken"):
            count = sum(getattr(each, name) for each in estimates)
            assert validation[name] == pytest.approx(1000 * count / rows)
        gained, lost, called = np.sum([each.by_class[1] for each in estimates if each is not None], axis=0)
        expected = {"gained": gained, "lost": lost, "falsely_called": called}
        assert validation["by_class"] == {
            "b": {name: pytest.approx(1000 * count / rows) for name, count in expected.items()}
        }

    def test_a_choice_that_was_not_taken_moves_no_row(self):
        part = self.parts()[0]
        assert part.fitted.estimate is not None
        assert part.fitted.estimate.opened
        shut = part.fitted._replace(tuning=part.fitted.tuning.kept_shut())
        validation = evaluated([part._replace(fitted=shut)], self.CONFIG, 0).document["per_1000"]["validation"]
        assert (validation["opened"], validation["fixed"], validation["broken"]) == (0, 0, 0)

    def test_it_says_whether_the_gate_is_certified(self):
        parts = self.parts(certify=True)
        granted = [part.fitted.certificate is not None and part.fitted.certificate.granted for part in parts]
        assert evaluated(parts, self.CONFIG, 0).document["certified"] is all(granted)
        for part, own in zip(parts, granted, strict=True):
            assert evaluated([part], self.CONFIG, 0).document["certified"] is own

    def test_the_run_can_be_tuned_again(self):
        part = self.parts()[0]
        case = case_of(part.splits, part.others, part.fitted, self.CONFIG)
        rows = np.arange(len(part.splits.validation))
        again = case.chosen_again(rows)
        assert again.decision.to_json() == case.decision.to_json()  # the same rows, the same choice
        assert torch.equal(again.decided.p, case.decided.p)
        half = case.chosen_again(np.repeat(rows[:100], 2))
        assert half.choice is not None
        assert torch.equal(half.choice.y, part.splits.validation.y[:100].repeat_interleave(2))

    def test_a_draw_need_not_hold_as_many_disagreeing_lesions_as_the_run(self):
        splits = splits_of(0)
        free = fit(splits, BANK, TuneConfig(), preset=SMALL).tuning.decision
        rows, p_sim = splits.validation, free.similarity(splits.validation.z)
        lesions = len(np.unique(rows.lesions()[(rows.p.argmax(1) != p_sim.argmax(1)).numpy()]))
        config = Config(bank=BANK, tune=TuneConfig(preset=replace(SMALL, least_disagreeing=lesions)))
        fitted = fit(splits, BANK, config.tune)
        assert not fitted.tuning.is_shut
        case = case_of(splits, (), fitted, config)
        numbers = np.repeat(np.arange(0, 200, 2), 2)
        again = fit(redrawn([splits], numbers)[0], BANK, TuneConfig(), preset=SMALL).tuning
        assert not again.is_shut
        assert case.chosen_again(numbers).decision.to_json() == again.decision.to_json()

    @pytest.mark.parametrize("ids", [True, False])
    @pytest.mark.parametrize("folds", [0, 2])
    def test_without_groups_a_row_that_is_drawn_twice_stays_one_lesion(self, ids, folds):
        parts = [splits_of(seed) for seed in range(2)]
        names: dict[str, Any] = {"groups": None} if ids else {"groups": None, "ids": None}
        parts = [
            each._replace(train=replace(each.train, **names), validation=replace(each.validation, **names))
            for each in parts
        ]
        numbers = np.repeat(np.arange(0, 400, 4), 3)
        drawn = redrawn(parts, numbers)
        for part, each in zip(parts, drawn, strict=True):
            assert each.validation.lesions().tolist() == np.repeat(part.validation.lesions()[::4], 3).tolist()
            assert len(np.unique(each.validation.lesions())) == 50
        if folds:
            assert not set(drawn[0].train.groups) & set(drawn[0].validation.groups)  # type: ignore[arg-type]
        config = Config(bank=BANK, tune=TuneConfig(preset=SMALL, folds=folds))
        case = case_of(parts[0], (), fit(parts[0], BANK, config.tune), config)
        assert len(case.chosen_again(np.repeat(np.arange(100), 2)).decided.p) == 160

    def test_the_rows_of_all_seeds_are_drawn_seed_by_seed(self):
        parts = [splits_of(seed) for seed in range(2)]
        drawn = redrawn(parts, np.array([0, 0, 199, 200, 399]))
        assert [len(each.validation) for each in drawn] == [3, 2]
        assert torch.equal(drawn[1].validation.p, parts[1].validation.p[[0, 199]])
