"""The two kinds of gate: what the search scores, and that each reaches the decision, the evidence and the file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.planted import PRIOR, planted, unit_bank
from tests.support import fit_and_tune, make_problem

from tdumpra import DualPathClassifier, PrototypeBank
from tdumpra.core.calibration import class_prior
from tdumpra.method.evidence import explain
from tdumpra.method.outputs import ValidationOutputs
from tdumpra.tuning.goal import Goal
from tdumpra.tuning.presets import PRESETS, GateKind, Preset
from tdumpra.tuning.search import Search
from tdumpra.tuning.tune import tune

CALIBRATED = Preset(gates=("calibrated",), kappa=(5.0, 10.0))
GATES: tuple[GateKind, ...] = ("clauses", "calibrated")
FOR_ACCURACY = Search(CALIBRATED, Goal("accuracy"))


def test_the_calibrated_gate_finds_a_better_path():
    rows = planted(0, cls_right=0.1, sim_right=0.8)
    tuned = tune(unit_bank(), rows, PRIOR, FOR_ACCURACY)
    assert tuned.best.calibrated is not None
    assert tuned.best.gate == "the calibrated gate"
    decided = tuned.decision.decide(rows.p, rows.z)
    assert (decided.p.argmax(1) == rows.y).sum() > (decided.p_cls.argmax(1) == rows.y).sum()
    assert torch.equal(decided.p[~decided.opened], decided.p_cls[~decided.opened])


def test_its_figures_are_out_of_fold():
    """A useless path must not look useful: with weights fitted on the very rows it would, a little."""
    rows = planted(3, cls_right=0.4, sim_right=0.4)
    tuned = tune(unit_bank(), rows, PRIOR, FOR_ACCURACY)
    assert tuned.calibrated_curve is not None
    gain = tuned.calibrated_curve.accuracy.max() - tuned.base.accuracy
    assert gain < 0.02


def test_the_better_kind_wins():
    problem = make_problem(0, dtype=np.float64)
    for seed in range(4):
        problem = make_problem(seed, dtype=np.float64)
        both = fit_and_tune(problem, preset=Preset(gates=("clauses", "calibrated"), kappa=(10.0,))).tuning_
        kinds = [fit_and_tune(problem, preset=Preset(gates=(kind,), kappa=(10.0,))).tuning_ for kind in GATES]
        assert both.best.objective == max(kind.best.objective for kind in kinds)
        assert [each.objective for each in both.contenders] == [kind.best.objective for kind in kinds]
        assert both.n_tried == sum(kind.n_tried for kind in kinds)  # type: ignore[misc]


def test_few_disagreements_leave_it_out():
    rows = planted(0, cls_right=0.2, sim_right=0.6)
    agree = rows.p.argmax(1) == rows.z.argmax(1)
    few = rows.rows((agree | (torch.arange(len(rows)) < 10)).numpy())
    tuned = tune(unit_bank(), few, PRIOR, Search(CALIBRATED))
    assert tuned.calibrated_curve is None
    assert tuned.is_shut


def test_no_disagreement_at_all():
    rows = planted(0, cls_right=0.2, sim_right=0.6)
    agree = rows.rows((rows.p.argmax(1) == rows.z.argmax(1)).numpy())
    tuned = tune(unit_bank(), agree, PRIOR)
    assert tuned.is_shut
    assert tuned.n_disagreements == 0
    assert "the classifier and retrieval never disagree" in tuned.sentence()
    assert tuned.sentence().endswith("the gate stays shut")


def test_a_class_that_validation_lacks_is_named():
    problem = make_problem(0, dtype=np.float64)
    kept = problem.val.y != 2
    bank = PrototypeBank.fit(problem.train.z, problem.train.y, 2)
    validation = ValidationOutputs.check(*(column[kept] for column in problem.val[:3]))
    tuned = tune(bank, validation, class_prior(torch.from_numpy(problem.train.y), 4))
    assert {note.kind: note.values for note in tuned.notes}["absent classes"] == {"classes": [2]}


class TestEvidence:
    def test_a_calibrated_gate_explains_itself(self):
        rows = planted(0, cls_right=0.1, sim_right=0.8)
        decision = tune(unit_bank(), rows, PRIOR, FOR_ACCURACY).decision
        decided = decision.decide(rows.p, rows.z)
        for row in range(60):
            evidence = explain(decision, rows.p[row : row + 1], rows.z[row : row + 1])
            assert all(clause.holds for clause in evidence.clauses) == bool(decided.opened[row])
            assert [clause.name for clause in evidence.clauses][-2:] == ["advantage", "disagreement"]
        row = int(decided.opened.nonzero()[0])
        evidence = explain(decision, rows.p[row : row + 1], rows.z[row : row + 1])
        assert evidence.sentence.startswith("retrieval likelier right (0.")
        assert "prediction moved from" in evidence.sentence

    def test_a_certain_classifier_fails_the_ceiling(self):
        """The calibrated gate's thresholds let all rows through but those without any doubt."""
        rows = planted(0, cls_right=0.1, sim_right=0.8)
        decision = tune(unit_bank(), rows, PRIOR, FOR_ACCURACY).decision
        certain = torch.eye(4, dtype=torch.float64)[:1]
        evidence = explain(replace(decision, temperature=1.0), certain, torch.eye(4, dtype=torch.float64)[1:2])
        assert not evidence.opened
        assert not all(clause.holds for clause in evidence.clauses)


def test_the_file_keeps_the_calibrated_gate(tmp_path):
    problem = make_problem(2, dtype=np.float64)
    classifier = fit_and_tune(problem, preset=CALIBRATED)
    assert classifier.decision_.calibrated is not None
    classifier.save(tmp_path / "model.safetensors")
    loaded = DualPathClassifier.load(tmp_path / "model.safetensors")
    assert loaded.decision_.calibrated == classifier.decision_.calibrated
    assert loaded.tuning_.best == classifier.tuning_.best
    assert loaded.tuning_.contenders == classifier.tuning_.contenders
    test = problem.test
    assert (loaded.predict_proba(test.p, test.z) == classifier.predict_proba(test.p, test.z)).all()


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="gates must be one of clauses, calibrated, not 'magic'"):
        Preset(gates=("magic",))  # type: ignore[arg-type]


class TestSearch:
    def test_is_built_from_a_users_settings(self):
        search = Search.check("paper", "cost", 1 - np.eye(3), True, n_classes=3)
        assert (search.preset, search.goal.objective, search.adjust_for_prior) == (PRESETS["paper"], "cost", True)
        assert np.array_equal(search.goal.costs, 1 - np.eye(3))  # type: ignore[arg-type]
        assert Search.check(CALIBRATED, n_classes=3).preset is CALIBRATED

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"preset": "papre"}, "preset must be one of default, free, paper, .* or a Preset, not 'papre'"),
            ({"objective": "auc"}, "objective must be one of"),
            ({"objective": "cost"}, "the objective cost needs costs"),
            ({"costs": np.zeros((2, 2))}, "costs are given for 2 classes where there are 3"),
        ],
    )
    def test_says_which_setting_is_wrong(self, settings, message):
        with pytest.raises(ValueError, match=message):
            Search.check(**settings, n_classes=3)
