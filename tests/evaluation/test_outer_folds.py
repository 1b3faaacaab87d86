"""The outer folds of a seed: each scores its own rows by its own fits, and all figures are of the rows together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.evaluation.cases import case_of
from tests.support import fit_and_tune, make_problem

from tdumpra.artifacts import jsonable
from tdumpra.evaluation.comparators import COMPARATORS, Case
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.evaluation.over_seeds import over_seeds
from tdumpra.evaluation.settings import EvaluateConfig

SETTINGS = EvaluateConfig(bootstrap=40, subgroups=("site",))


def fold_case(number: int) -> Case:
    """A network, a bank and a gate of its own, and lesions of its own."""
    problem = make_problem(number, dtype=np.float64)
    case = case_of(fit_and_tune(problem, n_prototypes=2), problem)
    test, n = case.test, len(case.test)
    assert test.groups is not None
    named = replace(
        test,
        groups=np.char.add(f"fold{number}-", test.groups),
        ids=np.array([f"fold{number}-image{i}" for i in range(n)]),
        metadata={"site": np.array(["here", "there"])[np.arange(n) % 2]},
    )
    return replace(case, test=named)


@pytest.fixture(scope="module")
def folds() -> list[Case]:
    return [fold_case(number) for number in range(3)]


def test_one_fold_is_a_case(folds):
    alone, listed = (evaluate(each, settings=SETTINGS) for each in (folds[0], [folds[0]]))
    assert jsonable(alone.document) == jsonable(listed.document)
    assert alone.compared == listed.compared


def test_rows_are_pooled_and_scored_by_their_own_fold(folds):
    found = evaluate(folds, settings=SETTINGS)
    y = torch.cat([case.test.y for case in folds])
    for name in ("student", "logit_adjusted", "knn", "gate", "paper_gate"):
        parts = [COMPARATORS[name].posterior(case) for case in folds]
        p = torch.cat([part for part in parts if part is not None])
        assert found.document["comparators"][name]["accuracy"] == pytest.approx(
            float((p.argmax(1) == y).double().mean())
        )
    gate = found.document["gate"]
    assert gate["n"] == len(y) == sum(part["n"] for part in found.document["subgroups"]["site"].values())
    apart = [evaluate(case, settings=SETTINGS) for case in folds]
    for count in ("opened", "flipped", "fixed", "broken"):
        assert gate[count] == sum(each.document["gate"][count] for each in apart)
    assert found.gained == {name: gain for each in apart for name, gain in each.gained.items()}
    assert found.document["bootstrap"]["groups"] == sum(each.document["bootstrap"]["groups"] for each in apart)
    ambiguous = sum(each.document["ambiguous"]["n"] for each in apart)
    assert found.document["ambiguous"]["n"] == ambiguous  # each below the theta of its own gate
    refer = [each.document["selective"]["student"]["refer"] for each in apart]
    assert found.document["selective"]["student"]["refer"]["answered"] == sum(each["answered"] for each in refer)


def test_settings_are_listed_by_fold(folds):
    gate = evaluate(folds).document["gate"]
    assert gate["thresholds"] == [case.decision.to_json()["thresholds"] for case in folds]
    assert gate["kappa"] == [case.decision.kappa for case in folds]
    assert gate["guarantees_similarity"] is all(case.decision.guarantees_similarity for case in folds)


def test_each_fold_names_its_own_champions(folds):
    """What is the champion of one fold must not be carried to rows that chose another."""
    worth = evaluate(folds, settings=SETTINGS).document["retrieval_worth"]
    champions = [evaluate(case).document["retrieval_worth"] for case in folds]
    p = [COMPARATORS[each["with_bank"]].posterior(case) for each, case in zip(champions, folds, strict=True)]
    y = torch.cat([case.test.y for case in folds])
    right = torch.cat([part for part in p if part is not None]).argmax(1) == y
    assert worth["with_bank"] == ", ".join(dict.fromkeys(each["with_bank"] for each in champions))
    assert worth["with_bank_accuracy"] == pytest.approx(float(right.double().mean()))
    low, high = worth["interval"]
    assert low <= worth["difference"] <= high


def test_a_seed_of_folds_is_averaged_like_any_other(folds):
    documents = {}
    for seed in range(2):
        found = evaluate(folds, settings=SETTINGS)
        about = {"rows": {"test": 1}, "grouped": True, "tuning": "tuned"}
        documents[seed] = found._replace(document={**found.document, **about})
    both = over_seeds(documents)
    assert both["gate"]["n"] == 2 * sum(len(case.test) for case in folds)
    assert both["paired"]["student"]["accuracy"]["difference"] == pytest.approx(
        documents[0].document["comparators"]["gate"]["accuracy"]
        - documents[0].document["comparators"]["student"]["accuracy"]
    )


def test_a_lesion_belongs_to_one_fold(folds):
    with pytest.raises(ValueError, match="is tested in two folds"):
        evaluate([folds[0], folds[0]])
    bare = [replace(case, test=replace(case.test, groups=None)) for case in folds]
    assert evaluate(bare).document["gate"]["n"] == sum(len(case.test) for case in folds)
    with pytest.raises(ValueError, match="groups for all test rows, or for none"):
        evaluate([bare[0], folds[1]])
    same_ids = [bare[0], replace(bare[1], test=replace(bare[1].test, ids=bare[0].test.ids))]
    with pytest.raises(ValueError, match="is tested in two folds"):
        evaluate(same_ids)


def test_no_fold_at_all():
    with pytest.raises(ValueError, match="at least one case"):
        evaluate([])
