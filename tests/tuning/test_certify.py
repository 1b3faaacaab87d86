from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom
from tests.planted import PRIOR, planted, unit_bank
from tests.support import make_problem

from tdumpra import DualPathClassifier
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


class TestRefusals:
    def test_test_outputs(self):
        rows = planted(0, cls_right=0.4, sim_right=0.4)
        with pytest.raises(TypeError, match="tuning needs validation outputs, not TestOutputs"):
            certify(unit_bank(), TestOutputs(p=rows.p, z=rows.z, y=rows.y), PRIOR)  # type: ignore[arg-type]

    def test_levels_and_corrections(self):
        rows = planted(0, cls_right=0.4, sim_right=0.4)
        with pytest.raises(ValueError, match="level must lie between 0 and 1"):
            certify(unit_bank(), rows, PRIOR, level=5)
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
