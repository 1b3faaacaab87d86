"""A bank that lives: what is removed was never there, what is added is measured, and bad input changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from array_models import CLASSES, OPEN, array_model, local_rows, opened, write_outputs

from tdumpra.artifacts import read_artifact
from tdumpra.core.calibration import class_prior
from tdumpra.core.gate import GateThresholds
from tdumpra.core.linear_head import LinearHead
from tdumpra.errors import ArtifactError, InputFileError
from tdumpra.estimator import KIND, SCHEMA, DualPathClassifier
from tdumpra.method import lineage
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.record import Record
from tdumpra.models.bank import add, remove
from tdumpra.models.bank_view import difference, listed
from tdumpra.models.bank_worth import worth

GONE = "train-lesion-0004"


@pytest.fixture
def path(tmp_path):
    return array_model(tmp_path)


def tensors(path):
    return read_artifact(path, kind=KIND, schema=SCHEMA).tensors


def assert_same_tensors(one, other):
    assert one.keys() == other.keys()
    differing = [name for name in one if not torch.equal(one[name], other[name])]
    assert differing == []


def never_held(model, groups, folder):
    """Write the model whose record never had these groups, every part of it made from the rows themselves."""
    record = model.record
    train, validation = (rows.rows(~np.isin(rows.groups, groups)) for rows in (record.train, record.validation))
    rows = train.joined(validation) if record.bank.with_validation else train
    bank = PrototypeBank.fit(
        rows.z, rows.y, record.bank.n_prototypes, rows.groups, 3, record.bank.seed, ids=rows.ids, merge_above=None
    )
    decision = replace(model.decision, bank=bank, prior=class_prior(torch.from_numpy(rows.y), 3))
    fitted = model.content.fitted_
    unseen = fitted.unseen_bank and PrototypeBank.fit(
        train.z, train.y, record.bank.n_prototypes, train.groups, 3, 0, ids=train.ids, merge_above=None
    )
    made = DualPathClassifier.from_fitted(
        fitted._replace(tuning=replace(fitted.tuning, decision=decision), unseen_bank=unseen),
        CLASSES, **model.content.get_params(deep=False),
    )  # fmt: skip
    made.record_ = Record.keep(train, validation, record.bank)
    made.save(folder / "never.safetensors")
    return folder / "never.safetensors"


@pytest.mark.parametrize("with_validation", [False, True], ids=["train", "crossfit"])
def test_what_is_removed_was_never_there(tdumpra, tmp_path, with_validation):
    path = array_model(tmp_path, with_validation=with_validation)
    gone = [GONE, "val-lesion-0001"]
    out = tmp_path / "new.safetensors"
    done = tdumpra("bank", "remove", path, "--group", gone[0], "--group", gone[1], "--out", out)
    assert done.code == 0, done.err
    assert_same_tensors(tensors(out), tensors(never_held(opened(path), gone, tmp_path)))
    data = out.read_bytes()
    for name in (*gone, "train-image-0008", "train-image-0009", "val-image-0002", "val-image-0003"):
        assert name.encode() not in data
        assert name.encode() in path.read_bytes()


def test_a_second_removal_does_not_bring_the_first_back(path, tmp_path):
    model = opened(path)
    first, second, both = (tmp_path / f"{name}.safetensors" for name in ("first", "second", "both"))
    others = {"groups": ["val-lesion-0000"], "ids": ["train-image-0030"]}
    model.write_child(first, remove(model, groups=[GONE]).content, command="bank remove", settings={}, inputs={})
    child = opened(first)
    child.write_child(second, remove(child, **others).content, command="bank remove", settings={}, inputs={})
    at_once = remove(model, groups=[GONE, "val-lesion-0000"], ids=["train-image-0030"])
    model.write_child(both, at_once.content, command="bank remove", settings={}, inputs={})
    assert_same_tensors(tensors(second), tensors(both))
    assert GONE.encode() not in second.read_bytes()


def test_the_history_tells_how_many_and_names_nobody(tdumpra, path, tmp_path):
    out = tmp_path / "new.safetensors"
    before = path.read_bytes()
    assert tdumpra("bank", "remove", path, "--id", "train-image-0008", "--out", out).code == 0
    entry = opened(out).lineage[-1]
    assert (entry.command, entry.parent) == ("bank remove", opened(path).digest)
    assert entry.settings["removed"] == {"train": 1, "validation": 0}
    assert any("same groups stay" in note for note in entry.settings["stays"])  # its lesion has another image
    lineage.check(opened(out).lineage)
    assert path.read_bytes() == before


def test_a_proof_of_the_bank_that_was_is_dropped(path):
    child: Any = remove(opened(path), groups=[GONE]).content
    assert child.certificate_ is None
    assert child.estimate_ is None


def test_an_adapted_head_and_the_figures_stay(path):
    model: Any = opened(path)
    head = LinearHead(np.zeros((3, 4), np.float32), np.zeros(3, np.float32))
    model.content.head_, model.content.evaluation_ = head, {"name": "study"}
    changed: Any = remove(model, groups=[GONE])
    assert changed.content.head_ is head
    assert changed.content.evaluation_ == {"name": "study"}
    assert any("adapt again" in note for note in changed.notes)


def test_added_rows_do_not_change_the_shares_that_the_classifier_learnt(path):
    model = opened(path)
    more: Any = add(model, local_rows([0] * 20, "local"), CLASSES, "here").content
    assert torch.equal(more.decision_.prior, model.decision.prior)
    new: Any = add(model, local_rows([3] * 12, "local"), (*CLASSES, "dun"), "here").content
    torch.testing.assert_close(new.decision_.prior, torch.full((4,), 0.25, dtype=torch.float64))


def test_names_are_matched_to_the_letter(tdumpra, path, tmp_path):
    out = tmp_path / "new.safetensors"
    wrong = {
        ("--group", "train-lesion-0004x"): "did you mean 'train-lesion-0004'",
        ("--group", "folder/train-lesion-0004"): "no group of the model is called",
        ("--group", "train-image-0008"): "--id train-image-0008",
        ("--id", GONE): f"--group {GONE}",
        ("--id", "image"): "no image of the model is called",
    }
    for asked, told in wrong.items():
        done = tdumpra("bank", "remove", path, *asked, "--out", out)
        assert (done.code, len(done.err.splitlines())) == (2, 1)
        assert told in done.err
    assert tdumpra("bank", "remove", path, "--out", out).code == 2
    assert not out.exists()


def test_an_existing_file_and_an_older_model_are_refused(tdumpra, path, tmp_path):
    before = path.read_bytes()
    for command in (("remove", path, "--group", GONE), ("add", path, "synthetic:n=20")):
        done = tdumpra("bank", *command, "--out", path)
        assert done.code == 2
        assert "never changed in place" in done.err
    assert path.read_bytes() == before
    older = DualPathClassifier.load(path)
    older.record_ = None
    older.save(tmp_path / "older.safetensors")
    for word, *rest in (("remove", "--group", GONE), ("add", "rows.npz")):
        done = tdumpra("bank", word, tmp_path / "older.safetensors", *rest, "--out", tmp_path / "n")
        assert done.code == 2
        assert "keeps no record" in done.err
    assert tdumpra("bank", "list", tmp_path / "older.safetensors").code == 0


@pytest.mark.filterwarnings("default")
def test_a_class_whose_rows_are_all_removed_stays_and_is_never_retrieved(path, tmp_path):
    model = opened(path)
    train = model.record.train
    changed = remove(model, groups=np.unique(train.groups[train.y == 1]).tolist())
    assert any("blue has no row left" in note for note in changed.notes)
    model.write_child(tmp_path / "n.safetensors", changed.content, command="bank remove", settings={}, inputs={})
    child = DualPathClassifier.load(tmp_path / "n.safetensors")
    rows = local_rows([1] * 5, "new", seed=5)
    assert child.classes_.tolist() == list(CLASSES)
    assert float(child.decision_.similarity(torch.from_numpy(rows.z))[:, 1].max()) == 0
    with pytest.raises(InputFileError, match="every training row"):
        remove(model, groups=np.unique(train.groups).tolist())


def test_what_is_added_and_removed_again_leaves_no_trace(path, tmp_path):
    model, rows = opened(path), local_rows([0, 1, 3, 3, 3], "local", seed=7)
    added, back = tmp_path / "added.safetensors", tmp_path / "back.safetensors"
    model.write_child(
        added, add(model, rows, (*CLASSES, "dun"), "here").content, command="bank add", settings={}, inputs={}
    )
    child = opened(added)
    assert child.class_names == (*CLASSES, "dun")
    changed = remove(child, groups=np.unique(rows.groups).tolist())
    child.write_child(back, changed.content, command="bank remove", settings={}, inputs={})
    # everything but the proof and the estimate, which were of another bank
    assert_same_tensors(tensors(back), tensors(path))
    assert opened(back).class_names == CLASSES
    assert opened(back).decision.known is None


def test_a_new_class_is_found_by_bank_evidence_and_gate(tdumpra, path, tmp_path):
    rows = local_rows([3] * 12 + [0] * 4, "local", seed=7)
    source = write_outputs(tmp_path / "rows.npz", rows, (*CLASSES, "dun"))
    out = tmp_path / "new.safetensors"
    done = tdumpra("bank", "add", path, source, "--new-class", "dun", "--out", out, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    (of_new,) = (each for each in found["worth"]["classes"] if each["is_new"])
    assert (of_new["name"], of_new["rows"], of_new["groups"], of_new["before"]) == ("dun", 24, 12, None)
    assert of_new["retrieval"] > 0.9
    assert of_new["after"] > 0.6
    child = DualPathClassifier.load(out)
    fresh = local_rows([3] * 10, "fresh", seed=9)
    p = child.predict_proba(fresh.p, fresh.z)
    assert p.shape == (20, 4)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    assert (child.predict(fresh.p, fresh.z) == "dun").mean() > 0.6
    evidence = child.explain(fresh.p[0], fresh.z[0])
    assert evidence.matches[0].name == "dun"
    assert evidence.p_classifier[3] == 0


def test_known_columns_of_shut_rows_are_the_classifiers(path, tmp_path):
    model = opened(path)
    rows, fresh = local_rows([3] * 12, "local", seed=7), local_rows([0, 1, 2] * 4, "fresh", seed=9)
    before = model.decision.decide(*map(torch.from_numpy, (fresh.p, fresh.z)))
    child: Any = add(model, rows, (*CLASSES, "dun"), "here").content
    after = child.decision_.decide(*map(torch.from_numpy, (fresh.p, fresh.z)))
    assert torch.equal(after.p_cls[:, :3], before.p_cls)
    assert not after.p_cls[:, 3].any()
    assert (~after.opened).any()
    assert torch.equal(after.p[~after.opened], after.p_cls[~after.opened])


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"thresholds": GateThresholds.shut()}, "gate is shut"), ({"rule": "log-linear"}, "log-linear fusion")],
    ids=["shut", "log-linear"],
)
def test_a_gate_that_can_never_say_the_new_class_is_told(tmp_path, changes, told):
    model = opened(array_model(tmp_path, **{"thresholds": OPEN, **changes}))
    rows = local_rows([3] * 6, "local", seed=7)
    assert any(told in note for note in add(model, rows, (*CLASSES, "dun"), "here").notes)
    measured: Any = worth(model, rows, (*CLASSES, "dun"))
    assert measured.classes[0].after == 0
    assert measured.classes[0].retrieval > 0.9


def test_each_row_is_measured_without_its_group(path):
    """Rows like nothing else but the other image of their lesion: a bank with that image would know them."""
    rows = local_rows([0] * 6, "odd", seed=7)
    z = np.repeat(np.random.default_rng(3).normal(size=(6, rows.z.shape[1])), 2, axis=0).astype(np.float32)
    rows = replace(rows, z=z, y=np.full(12, 3), p=np.tile(np.array([0.34, 0.33, 0.33], np.float32), (12, 1)))
    model = opened(path)
    measured: Any = worth(model, rows, (*CLASSES, "dun"))
    whole: Any = add(model, rows, (*CLASSES, "dun"), "here").content
    whole = whole.decision_.similarity(torch.from_numpy(z)).argmax(1)
    assert measured.classes[0].retrieval < float((whole == 3).double().mean())


def test_one_group_cannot_be_measured(path):
    rows = local_rows([3], "one", seed=7)
    assert worth(opened(path), rows, (*CLASSES, "dun")) is None
    two: Any = worth(opened(path), local_rows([3, 0], "two", seed=7), (*CLASSES, "dun"))
    assert [each.after is None for each in two.classes] == [False, True]


def test_unknown_classes_and_seen_groups_are_refused(tdumpra, path, tmp_path):
    out, names = tmp_path / "new.safetensors", (*CLASSES, "amberr")
    near = write_outputs(tmp_path / "near.npz", local_rows([3] * 4, "local"), names)
    done = tdumpra("bank", "add", path, near, "--out", out)
    assert done.code == 2
    assert "did you mean 'amber'" in done.err
    seen = write_outputs(tmp_path / "seen.npz", local_rows([0] * 4, "train"), names)
    done = tdumpra("bank", "add", path, seen, "--out", out)
    assert done.code == 2
    assert "train-lesion-0000" in done.err
    fine = write_outputs(tmp_path / "fine.npz", local_rows([0] * 4, "local"), names)
    done = tdumpra("bank", "add", path, fine, "--new-class", "dun", "--out", out)
    assert done.code == 2
    assert "'dun'" in done.err
    assert tdumpra("bank", "add", path, fine, "--rename", "amber", "--out", out).code == 2
    assert not out.exists()
    assert tdumpra("bank", "add", path, fine, "--out", out).code == 0


def test_unlabelled_rows_are_left_out_of_a_bank(path):
    rows = local_rows([0] * 4, "local")
    with pytest.raises(ValueError, match="no label"):
        add(opened(path), replace(rows, y=np.where(np.arange(8) < 2, -1, rows.y)), CLASSES, "here")


def test_list_and_diff_tell_what_is_there(path, tmp_path, tdumpra):
    model, out = opened(path), tmp_path / "new.safetensors"
    document = listed(model)
    assert [each["rows"] for each in document["classes"]] == [24, 24, 24]
    assert [each["groups"] for each in document["classes"]] == [12, 12, 12]
    assert sum(prototype["weight"] for prototype in document["classes"][0]["prototypes"]) == pytest.approx(1)
    model.write_child(out, remove(model, groups=[GONE]).content, command="bank remove", settings={}, inputs={})
    found = difference(model, opened(out))
    assert found["descends"]
    assert [each["rows_gone"] for each in found["classes"]] == [[], ["train-image-0008", "train-image-0009"], []]
    assert [each["unchanged"] == each["prototypes"][0] for each in found["classes"]] == [True, False, True]
    assert found["settings_changed"] == []
    back = difference(opened(out), model)
    assert not back["descends"]
    assert back["classes"][1]["rows_new"] == ["train-image-0008", "train-image-0009"]
    assert json.loads(tdumpra("bank", "diff", path, out, "--json").out)["descends"]
    assert "amber" in tdumpra("bank", "list", path).out


def test_damaged_columns_of_a_classifier_are_refused(path, tmp_path):
    model = opened(path)
    child: Any = add(model, local_rows([3] * 4, "local"), (*CLASSES, "dun"), "here").content
    for known in (1, 4, "two"):
        decision = replace(child.decision_, known=known)
        child.fitted_ = child.fitted_._replace(tuning=replace(child.fitted_.tuning, decision=decision))
        child.tuning_ = child.fitted_.tuning
        child.save(tmp_path / "damaged.safetensors")
        with pytest.raises(ArtifactError, match="known"):
            DualPathClassifier.load(tmp_path / "damaged.safetensors")
