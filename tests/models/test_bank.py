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
from tdumpra.estimator import DualPathClassifier
from tdumpra.estimator_file import KIND, SCHEMA
from tdumpra.method import lineage
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.record import Record
from tdumpra.method.replay import drawn
from tdumpra.models.adapted import content_of
from tdumpra.models.bank import add, remove
from tdumpra.models.bank_view import difference, listed
from tdumpra.models.bank_worth import worth
from tdumpra.models.ways import Plan, Workbench

GONE = "train-lesion-0004"


@pytest.fixture
def path(tmp_path):
    return array_model(tmp_path)


def assert_same_files(one, other):
    """Compare every number, its type, and every word, but for the history and proofs, which are of another bank."""
    (tensors, meta), (others, words) = (read_artifact(path, kind=KIND, schema=SCHEMA) for path in (one, other))
    assert {name: each.dtype for name, each in tensors.items()} == {name: each.dtype for name, each in others.items()}
    differing = [name for name in tensors if not torch.equal(tensors[name], others[name])]
    assert differing == []
    told = ("lineage", "certificate", "estimate", "made_from")
    assert {key: meta[key] for key in meta if key not in told} == {key: words[key] for key in words if key not in told}


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
    assert_same_files(out, never_held(opened(path), gone, tmp_path))
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
    assert_same_files(second, both)
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
    model.content.lineage_ = lineage.append(model.lineage, command="adapt", settings={}, inputs={}, parent=model.digest)
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
    assert_same_files(back, path)
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
    assert back["ascends"]
    assert "The first model was made from the second" in tdumpra("bank", "diff", out, path, columns=1000).out
    assert back["classes"][1]["rows_new"] == ["train-image-0008", "train-image-0009"]
    assert json.loads(tdumpra("bank", "diff", path, out, "--json").out)["descends"]
    assert "amber" in tdumpra("bank", "list", path).out


def test_rows_beside_the_bank_are_compared_too(path, tmp_path, tdumpra):
    """Those of validation, and those that adapting was fitted on and did not put into the bank."""
    model: Any = opened(path)
    rows, plan = local_rows([0, 1, 2], "local", seed=7), Plan()
    bench = Workbench(model.decision, model.record, CLASSES, rows)
    child: Any = content_of(model, bench, bench.fit(np.ones(6, bool), plan), plan, "here")
    child.save(tmp_path / "adapted.safetensors")
    adapted = opened(tmp_path / "adapted.safetensors")
    found = difference(model, adapted)
    assert all(not each["rows_new"] and not each["rows_gone"] for each in found["classes"])
    assert found["beside"] == {"rows_gone": [], "rows_new": sorted(rows.ids)}
    assert listed(adapted)["beside"] == listed(model)["beside"] + 6
    changed: Any = remove(adapted, groups=["val-lesion-0000"])
    changed.content.save(tmp_path / "less.safetensors")
    less = difference(adapted, opened(tmp_path / "less.safetensors"))["beside"]
    assert less == {"rows_gone": ["val-image-0000", "val-image-0001"], "rows_new": []}
    assert "6 rows came" in tdumpra("bank", "diff", path, adapted.path, columns=1000).out
    assert "keeps 54 rows" in tdumpra("bank", "list", adapted.path, columns=1000).out
    older: Any = opened(path)
    older.content.record_ = None
    assert difference(older, model)["beside"] is None


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


def in_half_precision(path, **changes):
    """Write the model again with embeddings of 16 bits, as files that are handed on have them."""
    model: Any = opened(path)
    record = model.record
    train, validation = (
        replace(rows, z=rows.z.astype(np.float16), **changes) for rows in (record.train, record.validation)
    )
    record = replace(record, train=train, validation=validation)
    content = model.with_rows(record, replace(model.decision, bank=record.rebuild_bank(CLASSES)))
    content.save(path)
    return opened(path)


def seen_from_afar(rows):
    """Return rows that know more than a model of arrays: names, colours, contents, long numbers."""
    n = len(rows)
    return replace(
        rows, z=rows.z.astype(np.float64), p=rows.p.astype(np.float64), colours=np.ones((n, 6), np.float32),
        content=np.array([f"{i:016x}" for i in range(n)]),
    )  # fmt: skip


@pytest.mark.parametrize("with_validation", [False, True], ids=["train", "crossfit"])
@pytest.mark.parametrize("weight", [0.0, 1.0, 8.0])
def test_adapted_and_then_without_all_local_rows_is_the_parent(tmp_path, with_validation, weight):
    path = array_model(tmp_path, with_validation=with_validation)
    model: Any = in_half_precision(path, named=False, grouped=False)
    rows = seen_from_afar(local_rows([0, 1, 2, 1], "local", seed=7))
    bench = Workbench(model.decision, model.record, CLASSES, rows)
    plan = Plan(bank_weight=weight)
    content = content_of(model, bench, bench.fit(np.ones(8, bool), plan), plan, "here")
    adapted, back = tmp_path / "adapted.safetensors", tmp_path / "back.safetensors"
    model.write_child(adapted, content, command="adapt", settings={}, inputs={"data": "here"})
    child = opened(adapted)
    if weight:
        assert not torch.equal(child.decision.bank.prototypes, model.decision.bank.prototypes)
    changed = remove(child, groups=np.unique(rows.groups).tolist())
    child.write_child(back, changed.content, command="bank remove", settings={}, inputs={})
    assert_same_files(back, path)


def test_rows_of_several_sources_keep_what_their_names_are_worth(tmp_path):
    model = in_half_precision(array_model(tmp_path), named=False, grouped=False)
    child: Any = add(model, local_rows([0, 1], "local"), CLASSES, "here").content
    child.save(tmp_path / "child.safetensors")
    train = opened(tmp_path / "child.safetensors").record.train
    for flag in (train.named, train.grouped):
        assert flag.tolist() == [False] * 72 + [True] * 4


def test_what_stays_is_told_by_where_the_rows_come_from(path, tmp_path):
    """Rows that came after training and tuning had no part in them."""
    model, rows = opened(path), local_rows([0, 1, 2], "local", seed=7)
    added = tmp_path / "added.safetensors"
    model.write_child(
        added, add(model, rows, CLASSES, "1234").content, command="bank add", settings={}, inputs={"rows": "1234"}
    )
    child = opened(added)
    (note,) = remove(child, groups=["local-lesion-0000"]).notes
    assert "nothing else rests on these rows" in note
    assert any("thresholds" in note for note in remove(child, groups=[GONE]).notes)
    assert any("validation rows, 2 of these" in note for note in remove(child, groups=["val-lesion-0000"]).notes)
    later = tmp_path / "later.safetensors"
    child.write_child(later, child.content, command="adapt", settings={}, inputs={"data": "5678"})
    (note,) = remove(opened(later), groups=["local-lesion-0000"]).notes
    assert "adapt again" in note
    grown = add(opened(later), local_rows([2], "more", seed=8), CLASSES, "9abc").content
    opened(later).write_child(
        tmp_path / "m.safetensors", grown, command="bank add", settings={}, inputs={"rows": "9abc"}
    )
    (note,) = remove(opened(tmp_path / "m.safetensors"), groups=["more-lesion-0000"]).notes
    assert "nothing else rests on these rows" in note


def test_copies_of_a_removed_image_under_other_names_are_told(path):
    model: Any = opened(path)
    train = model.record.train
    first, other = (int(np.flatnonzero(train.groups == name)[0]) for name in (GONE, "train-lesion-0005"))

    def copies_told(**columns):
        record = replace(model.record, train=replace(train, **columns))
        model.content.record_ = record
        return [note for note in remove(model, groups=[GONE]).notes if "copies" in note]

    assert copies_told() == []
    z = train.z.copy()
    z[other] = z[first]
    assert "in 1 rows" in copies_told(z=z)[0]
    content = np.full(len(train), "", dtype="<U4")
    assert copies_told(content=content) == []  # nobody knows the pixels of any
    content[[first, other]] = "abcd"
    (note,) = copies_told(content=content)
    assert "train-" not in note


def test_a_new_class_goes_with_its_last_row_and_later_ones_move_up(path, tmp_path):
    model, names = opened(path), (*CLASSES, "dun", "ecru")
    dun, ecru = local_rows([3] * 3, "dun", seed=7), local_rows([4] * 3, "ecru", seed=8)
    both: Any = add(model, ecru, names, "b").content
    both = add(replace(model, content=both), dun, names, "a").content
    both.save(tmp_path / "both.safetensors")
    changed: Any = remove(opened(tmp_path / "both.safetensors"), groups=np.unique(dun.groups).tolist())
    assert changed.content.classes_.tolist() == [*CLASSES, "ecru"]
    assert any("dun has no row left, and is no class" in note for note in changed.notes)
    changed.content.save(tmp_path / "left.safetensors")
    never: Any = add(model, replace(ecru, y=np.full(6, 3)), (*CLASSES, "ecru"), "b").content
    never.save(tmp_path / "never.safetensors")
    assert_same_files(tmp_path / "left.safetensors", tmp_path / "never.safetensors")


def test_classes_without_names_have_none_again(tmp_path):
    parent: Any = opened(array_model(tmp_path))
    parent.content.class_names_, parent.content.classes_ = None, np.arange(3)
    parent.content.save(tmp_path / "numbers.safetensors")
    model = opened(tmp_path / "numbers.safetensors")
    rows = local_rows([3] * 3, "local", seed=7)
    grown: Any = add(model, rows, ("0", "1", "2", "dun"), "a").content
    assert grown.classes_.tolist() == ["0", "1", "2", "dun"]
    grown.save(tmp_path / "grown.safetensors")
    back: Any = remove(opened(tmp_path / "grown.safetensors"), groups=np.unique(rows.groups).tolist()).content
    assert back.classes_.tolist() == [0, 1, 2]


def test_a_replay_place_that_stays_empty_is_said(path, monkeypatch):
    for module in ("models.removal", "method.replay"):
        monkeypatch.setattr(f"tdumpra.{module}.REPLAY_ROWS", 20)
    model: Any = opened(path)
    train = model.record.train
    first = drawn(train, model.record.bank.seed, 20)
    gone = str(train.groups[(train.y == 1) & first][0])
    assert not any("fewer" in note for note in remove(model, groups=[gone]).notes)  # others have waited for the place
    model.content.record_ = replace(model.record, train=replace(train, has_features=first))
    places = int((first & (train.groups == gone)).sum())
    assert any(f"{places} rows fewer (blue)" in note for note in remove(model, groups=[gone]).notes)
