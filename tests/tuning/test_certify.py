from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom
from tests.planted import PRIOR, C, outputs_of, planted, unit_bank
from tests.support import make_problem

from tdumpra import DualPathClassifier
from tdumpra.core.groups import group_folds
from tdumpra.core.significance import sign_flip_test
from tdumpra.errors import ArtifactError
from tdumpra.method.outputs import TestOutputs
from tdumpra.tuning.certificate import Certificate
from tdumpra.tuning.certify import LEVEL, certify
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import Preset
from tdumpra.tuning.result import Tuning
from tdumpra.tuning.search import Search
from tdumpra.tuning.tune import tune

PRESET = Preset(
    kappa=(5.0,), theta=(0.5, 0.7, 0.9), beta=(0.0, 0.4, 0.6), margin=(0.0, 0.2), delta=(0.05,), alpha=(0.1,),
    rule=("linear",), gates=("clauses", "calibrated"),
)  # fmt: skip
SEARCH = Search(PRESET, Goal("accuracy"))


def trial(
    seed: int, *, cls_right: float, sim_right: float, correction: str = "fixed-sequence"
) -> tuple[Tuning, Certificate]:
    rows = planted(seed, cls_right=cls_right, sim_right=sim_right)
    return certify(unit_bank(), rows, PRIOR, SEARCH, correction=correction)  # type: ignore[arg-type]


def opened_share(trials: int, *, cls_right: float, sim_right: float, correction: str) -> float:
    results = [trial(s, cls_right=cls_right, sim_right=sim_right, correction=correction) for s in range(trials)]
    for tuning, certificate in results:
        assert tuning.is_shut != certificate.granted
    return float(np.mean([certificate.granted for _, certificate in results]))


@pytest.mark.parametrize("correction", ["fixed-sequence", "holm"])
@pytest.mark.parametrize(("trials"), [25, pytest.param(200, marks=pytest.mark.slow)])
class TestTrials:
    def test_a_useless_path_opens_no_more_gates_than_the_level_allows(self, trials, correction):
        """At 5 % some of the trials may open; more than the 99.9 % point of that binomial would be a broken promise."""
        share = opened_share(trials, cls_right=0.4, sim_right=0.4, correction=correction)
        assert share <= binom.ppf(0.999, trials, LEVEL) / trials

    def test_a_better_path_opens_most(self, trials, correction):
        assert opened_share(trials, cls_right=0.1, sim_right=0.7, correction=correction) > 0.8


def test_without_a_certificate_the_useless_path_opens_most_gates():
    """What certification is for: the best of many settings looks good on the rows that it was chosen on."""
    tuned = [tune(unit_bank(), planted(s, cls_right=0.4, sim_right=0.4), PRIOR, SEARCH) for s in range(20)]
    assert np.mean([not each.is_shut for each in tuned]) > 0.5


class TestCertificate:
    def test_a_granted_one_says_what_was_shown(self):
        tuning, certificate = trial(0, cls_right=0.1, sim_right=0.8)
        proven = [each for each in certificate.tested if each.proven]
        assert tuning.best in [each.setting for each in proven]
        assert proven[0].p_value <= LEVEL
        assert "; certified at level 0.05: on " in certificate.sentence()
        assert tuning.decision.thresholds == tuning.best.thresholds
        plain = certificate.to_json()
        assert Certificate.from_json(plain) == certificate
        assert plain["granted"] is True
        assert plain["tested"][0]["setting"]["thresholds"]["alpha"] == 0.1

    def test_the_sentence_speaks_of_the_gate_that_is_used(self):
        """The first on the list is the most promising, which need not be the best of the proven."""
        tuning, certificate = trial(0, cls_right=0.1, sim_right=0.8)
        assert certificate.chosen is not None
        assert tuning.best == certificate.chosen.setting
        first = certificate.tested[0]
        better = replace(first, setting=replace(first.setting, objective=0.99), fixed=7, broken=3)
        unproven = replace(better, setting=replace(first.setting, objective=1.0), proven=False)
        certificate = replace(certificate, tested=(first, better, unproven))
        assert certificate.chosen == better
        assert "the gate fixed 7 predictions and broke 3 " in certificate.sentence()

    def test_the_halves_share_no_lesion_and_all_rows_are_used(self):
        rows = planted(0, cls_right=0.2, sim_right=0.6)
        _, certificate = trial(0, cls_right=0.2, sim_right=0.6)
        assert certificate.design_rows + certificate.proof_rows == len(rows)
        assert certificate.proof_groups == 150

    def test_the_counts_are_those_of_the_second_half(self):
        rows = planted(0, cls_right=0.2, sim_right=0.6)
        tuning, certificate = trial(0, cls_right=0.2, sim_right=0.6)
        each = next(each for each in certificate.tested if each.setting == tuning.best)
        assert 0 < each.fixed < len(rows)
        decided = tuning.decision.decide(rows.p, rows.z)
        gained = (decided.p.argmax(1) == rows.y).long() - (decided.p_cls.argmax(1) == rows.y).long()
        assert each.fixed < (gained > 0).sum()  # both halves have more than one

    def test_a_refused_one_leaves_the_gate_shut_and_says_so(self):
        tuning, certificate = next(
            result for s in range(30) if (result := trial(s, cls_right=0.4, sim_right=0.4))[1].tested
            and not result[1].granted
        )  # fmt: skip
        assert tuning.is_shut
        assert not tuning.decision.decide(
            *(getattr(planted(0, cls_right=0.4, sim_right=0.4), n) for n in "pz")
        ).opened.any()
        assert "; not certified, so the gate stays shut: on " in certificate.sentence()

    def test_nothing_promising(self):
        tuning, certificate = trial(0, cls_right=1.0, sim_right=0.0)
        assert tuning.is_shut
        assert certificate.tested == ()
        assert "stays shut" in certificate.sentence()


def halved(lesions: int) -> np.ndarray:
    """Tell which lesions choose (0) and which prove (1)."""
    return group_folds(None, np.zeros(lesions, dtype=np.int64), 2, seed=0)


class TestClusters:
    """Both halves: so many single images fixed, one lesion of ten images broken, and others left alone."""

    def found(self, fixed: int, largest: int = 10) -> tuple[Certificate, np.ndarray]:
        half = halved(400)
        sizes, gains = np.ones(400, dtype=int), np.zeros(400, dtype=int)
        for number in range(2):
            rows = np.flatnonzero(half == number)
            sizes[rows[:5]] = largest
            gains[rows[0]] = -largest
            gains[rows[5 : 5 + fixed]] = 1
        certificate = certify(unit_bank(), outputs_of(sizes, gains, np.arange(400) % C), PRIOR, SEARCH)[1]
        return certificate, gains[half == 1]

    def test_a_break_of_many_images_is_not_outvoted_by_single_ones(self):
        """Twice as many such breaks, and nothing is gained: 32 fixed lesions are no proof that there are none."""
        certificate, gains = self.found(32)
        assert (certificate.tested[0].fixed, certificate.tested[0].broken) == (32, 10)
        assert sign_flip_test(gains, alternative="greater") <= LEVEL  # under symmetry it would be one
        assert certificate.most_images == 10
        assert not certificate.granted

    def test_so_many_fixes_are_a_proof(self):
        assert self.found(150)[0].granted
        assert self.found(32, largest=2)[0].granted

    def test_the_guarantee_says_what_a_lesion_counts_for(self):
        certificate, _ = self.found(32)
        assert "at most 10 images" in certificate.guarantee()
        assert certificate.to_json()["guarantee"] == certificate.guarantee()
        assert "one image" in replace(certificate, most_images=1).guarantee()

    def test_labels_have_no_say_in_the_halves(self):
        sizes, gains = np.ones(60, dtype=int), np.zeros(60, dtype=int)
        for y in (np.zeros(60, dtype=int), np.arange(60) % C, np.arange(60) // 15):
            rows = outputs_of(sizes, gains, y)
            found = certify(unit_bank(), rows, PRIOR, SEARCH)[1]
            assert found.design_rows == (halved(60) == 0).sum()


def test_fixed_and_broken_are_counted_against_the_classifier_as_it_came():
    """Its prior is adjusted here: what that breaks is the decision's doing, and so is what it fixes."""
    rows = planted(0, cls_right=0.1, sim_right=0.7)
    half = group_folds(rows.groups, np.zeros(len(rows), dtype=np.int64), 2, seed=0)
    search = Search(PRESET, Goal("balanced_accuracy"), adjust_for_prior=True)
    prior = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)
    leaning = rows.p * prior.sqrt()
    rows = replace(rows, p=leaning / leaning.sum(1, keepdim=True))
    tuning, certificate = certify(unit_bank(), rows, prior, search, classes={"b": 1}, class_harm=0.5)
    assert tuning.decision.prior_exponent > 0
    assert certificate.tested
    proof = rows.rows(half == 1)
    was_right = proof.p.argmax(1) == proof.y
    adjusted = tuning.decision.classifier(proof.p).argmax(1) == proof.y
    assert (adjusted != was_right).any()
    assert certificate.granted
    right = tuning.decision.decide(proof.p, proof.z).p.argmax(1) == proof.y
    found = certificate.chosen
    assert found is not None
    assert (found.fixed, found.broken) == (int((right & ~was_right).sum()), int((was_right & ~right).sum()))
    of_b = proof.y == 1
    broken = int((was_right & ~right & of_b).sum())
    assert (found.harm[0].fixed, found.harm[0].broken) == (int((right & ~was_right & of_b).sum()), broken)


def test_a_granted_gate_is_not_said_to_stay_shut():
    """The proof stands in for the floor on disagreements."""
    search = replace(SEARCH, preset=replace(PRESET, least_disagreeing=1000))
    tuning, certificate = certify(unit_bank(), planted(0, cls_right=0.1, sim_right=0.8), PRIOR, search)
    assert certificate.granted
    assert not tuning.is_shut
    assert "too few disagreements" not in {note.kind for note in tuning.notes}


@pytest.mark.parametrize(("correction", "listed"), [("fixed-sequence", False), ("holm", True)])
def test_a_gate_that_moves_nothing_ends_a_fixed_sequence(correction, listed):
    """The first half promises most where the classifier is very unsure, which it never is on the second half."""
    half, y = halved(600), np.arange(600) % C
    gains, confidence = np.zeros(600, dtype=int), np.full(600, 0.97)
    design, proof = (np.flatnonzero(half == number) for number in range(2))
    for rows, sure, gain in (
        (design[:60], 0.45, 1), (design[60:90], 0.65, 1), (design[90:110], 0.65, -1), (proof[:60], 0.65, 1),
    ):  # fmt: skip
        gains[rows], confidence[rows] = gain, sure
    made = outputs_of(np.ones(600, dtype=int), gains, y)
    label = torch.nn.functional.one_hot(made.p.argmax(1), C)
    top = torch.from_numpy(confidence)[:, None]
    validation = replace(made, p=torch.where(label > 0, top, (1 - top) / (C - 1)))
    preset = replace(PRESET, theta=(0.5, 0.7), gates=("clauses",), temperatures=False)
    certificate = certify(unit_bank(), validation, PRIOR, Search(preset, Goal("accuracy")), correction=correction)[1]
    assert bool(certificate.tested) == certificate.granted == listed


@pytest.mark.parametrize(("rare", "absent"), [(True, []), (False, [3])])
def test_a_class_is_noted_as_absent_only_if_neither_half_has_it(rare, absent):
    half, y = halved(400), np.arange(400) % 3
    proof = np.flatnonzero(half)
    y[proof[-1]] = 3 if rare else 0
    gains = np.where(np.isin(np.arange(400), [*np.flatnonzero(half == 0)[:60], *proof[:60]]), 1, 0)
    tuning, certificate = certify(unit_bank(), outputs_of(np.ones(400, dtype=int), gains, y), PRIOR, SEARCH)
    assert certificate.granted
    assert [c for note in tuning.notes if note.kind == "absent classes" for c in note.values["classes"]] == absent


class TestClasses:
    def found(self, lost: int, **settings) -> Certificate:
        half, y = halved(1200), np.arange(1200) % C
        gains = np.zeros(1200, dtype=int)
        for number in range(2):
            rows = np.flatnonzero(half == number)
            gains[rows[y[rows] == 0][:60]] = 1
            gains[rows[y[rows] == 3][:lost]] = -1
        validation = outputs_of(np.ones(1200, dtype=int), gains, y)
        return certify(unit_bank(), validation, PRIOR, SEARCH, **settings)[1]

    def test_a_class_that_is_spared(self):
        certificate = self.found(0, classes={"mel": 3})
        assert certificate.granted
        assert certificate.share == LEVEL / 2
        assert certificate.chosen is not None
        (harm,) = certificate.chosen.harm
        assert harm.name == "mel"
        assert 0 < harm.upper <= certificate.class_harm == 0.05
        assert "mel" in certificate.guarantee()
        assert "mel" in certificate.sentence()
        assert Certificate.from_json(certificate.to_json()) == certificate

    def test_a_class_that_pays(self):
        assert self.found(15).granted
        certificate = self.found(15, classes={"mel": 3})
        assert not certificate.granted
        harm = certificate.tested[0].harm[0]
        assert (harm.fixed, harm.broken) == (0, 15)
        assert harm.upper > 0.1
        assert self.found(15, classes={"mel": 3}, class_harm=0.25).granted

    def test_a_class_without_rows_is_not_spared_for_certain(self):
        """What cannot be shown is not promised."""
        half, y = halved(400), np.arange(400) % 3
        gains = np.where(np.isin(np.arange(400), [*np.flatnonzero(half == 0)[:60], *np.flatnonzero(half)[:60]]), 1, 0)
        rows = outputs_of(np.ones(400, dtype=int), gains, y)
        certificate = certify(unit_bank(), rows, PRIOR, SEARCH, classes={"mel": 3})[1]
        assert certificate.tested[0].harm[0].upper == 1.0
        assert certificate.power is not None
        assert certificate.power.least_harm == (1.0,)
        assert not certificate.granted


def test_power_comes_before_the_verdict():
    _, certificate = trial(0, cls_right=0.1, sim_right=0.8)
    assert certificate.power is not None
    assert certificate.power.lesions == certificate.proof_groups
    assert certificate.sentence().startswith(certificate.power.sentence())
    assert certificate.to_json()["power"]["sentence"] == certificate.power.sentence()


def test_a_certificate_of_the_test_that_needed_symmetry_is_refused():
    plain = trial(0, cls_right=0.1, sim_right=0.8)[1].to_json()
    del plain["most_images"]
    with pytest.raises(ArtifactError, match="tune again"):
        Certificate.from_json(plain)


class TestRefusals:
    def test_test_outputs(self):
        rows = planted(0, cls_right=0.4, sim_right=0.4)
        with pytest.raises(TypeError, match="tuning needs validation outputs, not TestOutputs"):
            certify(unit_bank(), TestOutputs(p=rows.p, z=rows.z, y=rows.y), PRIOR)  # type: ignore[arg-type]

    def test_levels_and_corrections(self):
        rows = planted(0, cls_right=0.4, sim_right=0.4)
        with pytest.raises(ValueError, match="level must lie between 0 and 1"):
            certify(unit_bank(), rows, PRIOR, level=5)
        with pytest.raises(ValueError, match="class_harm must lie between 0 and 1"):
            certify(unit_bank(), rows, PRIOR, class_harm=5)
        with pytest.raises(ValueError, match="correction must be one of fixed-sequence, holm, not 'none'"):
            certify(unit_bank(), rows, PRIOR, correction="none")  # type: ignore[arg-type]

    def test_one_lesion(self):
        rows = planted(0, cls_right=0.4, sim_right=0.4)
        alone = rows.rows(np.asarray(rows.groups) == "0")
        with pytest.raises(ValueError, match="2 folds need at least as many groups, and there are 1"):
            certify(unit_bank(), alone, PRIOR)


def test_the_estimator_certifies():
    problem = make_problem(dtype=np.float64)
    classifier = DualPathClassifier(n_prototypes=2, selection="certified").fit(*problem.train[1:4])
    classifier.tune(*problem.val[:4])
    assert classifier.certificate_ is not None
    assert classifier.tuning_.is_shut != classifier.certificate_.granted
    assert classifier.estimate_ is None
