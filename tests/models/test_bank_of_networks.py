"""The bank of a model with networks: pictures go with their rows, and a class that no network saw is predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import decide, make_model
from tiny_runs import CLASS_NAMES, colours, embed_run, settings

from tdumpra.artifacts import read_artifact
from tdumpra.core.calibration import class_prior
from tdumpra.core.gate import GateThresholds
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.record import Record
from tdumpra.models.bank import add, remove
from tdumpra.models.card import card_of
from tdumpra.models.opened import open_model
from tdumpra.networks.model_file import KIND, SCHEMA
from tdumpra.networks.predict import Predictor

OPEN = GateThresholds(theta=1.0, beta=0.0, margin=0.0, delta=0.0, alpha=0.1)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    config, data = settings(epochs=2), colours(90)
    folder = embed_run(config, tmp_path_factory.mktemp("run"), data)
    torch.use_deterministic_algorithms(False)
    made: Any = make_model(config, data, folder, decide(config, folder, OPEN))
    record = replace(made.record, bank=made.record.bank._replace(n_prototypes=2))
    made = replace(made, record=record, decision=replace(made.decision, bank=record.rebuild_bank(CLASS_NAMES)))
    place = tmp_path_factory.mktemp("model") / "model.safetensors"
    made.write(place)
    return place


def test_pictures_and_replay_go_with_their_rows(tdumpra, path, tmp_path):
    model, out = open_model(path), tmp_path / "new.safetensors"
    gone = next(each for each in model.decision.bank.exemplars[0][0] if each.id in model.content.thumbnails)
    done = tdumpra("bank", "remove", path, "--group", gone.group, "--out", out)
    assert done.code == 0, done.err
    assert "only training again without them undoes that" in done.out.replace("\n", " ")
    record = model.record
    train, validation = (rows.rows(rows.groups != gone.group) for rows in (record.train, record.validation))
    bank = PrototypeBank.fit(
        train.z, train.y, 2, train.groups, 3, record.bank.seed, ids=train.ids, merge_above=record.bank.merge_above
    )
    decision = replace(model.decision, bank=bank, prior=class_prior(torch.from_numpy(train.y), 3))
    never = replace(model.content, decision=decision, record=Record.keep(train, validation, record.bank))
    never.write(tmp_path / "never.safetensors")
    found, expected = (
        read_artifact(each, kind=KIND, schema=SCHEMA).tensors for each in (out, tmp_path / "never.safetensors")
    )
    shown = {f"thumbnail.{each.id}" for of_class in bank.exemplars for some in of_class for each in some}
    expected = {name: each for name, each in expected.items() if not name.startswith("thumbnail.") or name in shown}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    ids = record.train.ids[record.train.groups == gone.group]
    assert all(name.encode() not in out.read_bytes() for name in (gone.group, *ids))
    assert not any(gone.group in str(entry) for entry in open_model(out).lineage)


@pytest.mark.filterwarnings("ignore:n_prototypes")
def test_pictures_come_back_when_what_was_added_goes(path, tmp_path):
    """Added cases may take exemplars' places for a while; the pictures of those are kept until they have them again."""
    model = open_model(path)
    own = model.record.train
    rows = replace(own, ids=np.char.add("more-", own.ids), groups=np.char.add("more-", own.groups), features=None)
    rows = replace(rows, z=own.z + np.float32(0.01), has_features=np.zeros(len(own), bool))
    grown: Any = add(model, rows, CLASS_NAMES, "here").content
    assert grown.decision.bank.exemplars != model.decision.bank.exemplars
    assert grown.thumbnails.keys() == model.content.thumbnails.keys()
    grown.write(tmp_path / "grown.safetensors")
    back: Any = remove(open_model(tmp_path / "grown.safetensors"), groups=np.unique(rows.groups).tolist()).content
    back.write(tmp_path / "back.safetensors")
    found, expected = (read_artifact(each, kind=KIND, schema=SCHEMA) for each in (tmp_path / "back.safetensors", path))
    shown = {each.id for of_class in model.decision.bank.exemplars for some in of_class for each in some}
    kept = {n: t for n, t in expected.tensors.items() if not n.startswith("thumbnail.") or n[10:] in shown}
    assert found.tensors.keys() == kept.keys()
    assert all(found.tensors[n].dtype == kept[n].dtype and torch.equal(found.tensors[n], kept[n]) for n in kept)
    assert found.meta["record"] == expected.meta["record"]
    assert found.meta["decision"] == expected.meta["decision"]


def test_the_networks_see_images_of_a_new_class(tdumpra, path, tmp_path):
    random = np.random.default_rng(0)
    for kind, colour, n in (("green", (20, 220, 20), 12), ("amber", (200, 120, 40), 4)):
        (tmp_path / "images" / kind).mkdir(parents=True)
        for i in range(n):
            pixels = (np.array(colour) + random.normal(0, 20, (16, 16, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / kind / f"local{kind}{i}.png")
    out = tmp_path / "new.safetensors"
    refused = tdumpra("bank", "add", path, f"folder:{tmp_path / 'images'}", "--out", out)
    assert refused.code == 2
    assert "--new-class green" in refused.err
    done = tdumpra("bank", "add", path, f"folder:{tmp_path / 'images'}", "--new-class", "green", "--out", out)
    assert done.code == 0, done.err
    assert "green (new)" in done.out
    child = open_model(out)
    assert child.class_names == (*CLASS_NAMES, "green")
    (prediction,) = Predictor(child.content, mode="eager").predict(
        [tmp_path / "images" / "green" / "localgreen0.png"], evidence=True
    )
    assert prediction.error is None
    assert prediction.evidence is not None
    assert list(prediction.probabilities) == [*CLASS_NAMES, "green"]
    assert sum(prediction.probabilities.values()) == pytest.approx(1)
    assert prediction.evidence.p_similarity[3] > 1 / 4
    again = tdumpra("bank", "add", out, f"folder:{tmp_path / 'images'}", "--out", tmp_path / "twice.safetensors")
    assert again.code == 2  # the same images, which its record knows
    assert "localgreen" in again.err or "localamber" in again.err


def test_cards_of_both(tdumpra, path, tmp_path):
    model = open_model(path)
    text = card_of(model, "tiny")
    assert "tiny_networks:plain" in text
    assert f"{len(model.record.train):,} rows" in text
    out = tmp_path / "card.md"
    assert tdumpra("card", path, "--out", out, "--name", "tiny").code == 0
    assert out.read_text() == text
    refused = tdumpra("card", path, "--out", out)
    assert refused.code == 2
    assert "there already" in refused.err
    replace(model.content, evaluation={"metrics": 3}).write(tmp_path / "odd.safetensors")
    odd = tdumpra("card", tmp_path / "odd.safetensors")
    assert (odd.code, len(odd.err.splitlines())) == (2, 1)


def test_frozen_networks_took_nothing(path):
    model: Any = open_model(path)
    frozen = replace(model.content.classifier.network, frozen=True, weights="timm")
    content = replace(
        model.content,
        classifier=replace(model.content.classifier, network=frozen),
        retrieval=replace(model.content.retrieval, network=frozen),
    )
    changed = remove(replace(model, content=content), groups=[str(model.record.train.groups[0])])
    assert not any("weights" in note for note in changed.notes)
