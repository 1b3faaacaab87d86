"""Model files that are sealed and make no sense: each is refused in one sentence, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from tdumpra import artifacts
from tdumpra.artifacts import read_artifact, write_artifact
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.networks.model_file import KIND, SCHEMA, Model
from tdumpra.networks.predict import Predictor

Change = Callable[[dict[str, Any], dict[str, Tensor]], object]


@pytest.fixture(scope="module")
def sound(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "m.safetensors"
    model.write(path)
    return path


def put(*keys: str, value: Any) -> Change:
    """Replace a value of the metadata, named by the keys that lead to it."""

    def change(meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for key in keys[:-1]:
            meta = meta[key]
        assert keys[-1] in meta
        meta[keys[-1]] = value

    return change


def drop(*keys: str) -> Change:
    def change(meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for key in keys[:-1]:
            meta = meta[key]
        del meta[keys[-1]]

    return change


def tensor(name: str, value: Callable[[Tensor], Tensor]) -> Change:
    def change(meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors[name] = value(tensors[name])

    return change


def thumbnail(value: Tensor) -> Change:
    def change(meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors[next(name for name in tensors if name.startswith("thumbnail."))] = value

    return change


DECISION = ("decision", "decision")
CLASSIFIER = ("encoders", "classifier")
WEIGHT = "classifier.classifier.weight"
DOCTORED: dict[str, Change] = {
    "no decision": drop("decision"),
    "no encoders": drop("encoders"),
    "no classifier": drop(*CLASSIFIER),
    "no transform": drop(*CLASSIFIER, "transform"),
    "no thresholds": drop(*DECISION, "thresholds"),
    "decision of another type": put("decision", value=[1, 2]),
    "encoders of another type": put("encoders", value="classifier"),
    "too few classes": put("class_names", value=["a"]),
    "a class that is no name": put("class_names", value=["a", 7, "c"]),
    "classes in one word": put("class_names", value="abc"),
    "unknown precision": put(*CLASSIFIER, "precision", value="int4"),
    "a thousand million views": put(*CLASSIFIER, "views", value=10**9),
    "half a view": put(*CLASSIFIER, "views", value=2.0),
    "an unknown setting": put(*CLASSIFIER, "network", value={"backbone": "tf_efficientnet_lite0", "shell": "rm"}),
    "a network that is no table": put(*CLASSIFIER, "network", value=None),
    "an embedding of a million millions": put(*CLASSIFIER, "network", "embedding", value=10**12),
    "an input of a million pixels": put(*CLASSIFIER, "network", "image_size", value=10**6),
    "a transform to a million pixels": put(*CLASSIFIER, "transform", "size", value=10**6),
    "a frame of a million pixels": put(*CLASSIFIER, "transform", "framing", "height", value=10**6),
    "colours of words": put(*CLASSIFIER, "transform", "mean", value=["r", "g", "b"]),
    "colours of zero": put(*CLASSIFIER, "transform", "std", value=[0, 0, 0]),
    "a framing of another type": put(*CLASSIFIER, "transform", "framing", value=3),
    "kappa in words": put(*DECISION, "kappa", value="twenty"),
    "kappa without end": put(*DECISION, "kappa", value=float("inf")),
    "tau of zero": put(*DECISION, "tau", value=0),
    "a temperature that is no number": put(*DECISION, "temperature", value=float("nan")),
    "an unknown rule": put(*DECISION, "rule", value="loudest"),
    "a list for a rule": put(*DECISION, "rule", value=["linear"]),
    "theta of two": put(*DECISION, "thresholds", "theta", value=2),
    "an unknown threshold": put(*DECISION, "thresholds", value={"omega": 1}),
    "a calibrated gate of words": put(*DECISION, "calibrated", value={"classifier": "abc", "margin": 0}),
    "a huge exponent": put(*DECISION, "prior_exponent", value=1e300),
    "exemplars of no class": put("decision", "bank", "exemplars", value=[]),
    "exemplars of no prototype": put("decision", "bank", "exemplars", value=[[], [], []]),
    "an exemplar of two values": put("decision", "bank", "exemplars", value=[[[["a", "b"]]] * 2] * 3),
    "an exemplar without a name": put("decision", "bank", "exemplars", value=[[[[{}, "b", 1.0]]] * 2] * 3),
    "a label of a million millions": put("decision", "bank", "merged", value=[10**12]),
    "an identity of lists": put("identity", value={"data": []}),
    "prototypes that are flat": tensor("decision.prototypes", lambda t: t[0]),
    "prototypes of no class": tensor("decision.prototypes", lambda t: t[:0]),
    "prototypes without direction": tensor("decision.prototypes", torch.zeros_like),
    "prototypes that are no numbers": tensor("decision.prototypes", lambda t: t * torch.nan),
    "a mask of numbers": tensor("decision.mask", lambda t: t.float()),
    "a mask of another shape": tensor("decision.mask", lambda t: t[:, :1]),
    "no live prototype": tensor("decision.mask", torch.zeros_like),
    "no reference": tensor("decision.reference", lambda t: t[:0]),
    "a prior of other classes": tensor("decision.prior", lambda t: torch.ones(7) / 7),
    "a prior below zero": tensor("decision.prior", lambda t: torch.tensor([-1.0, 1, 1])),
    "a picture in floating point": thumbnail(torch.rand(4, 4, 3)),
    "a picture of four colours": thumbnail(torch.zeros(4, 4, 4, dtype=torch.uint8)),
    "a picture without pixels": thumbnail(torch.zeros(10**9, 0, 3, dtype=torch.uint8)),
    "a classifier of a thousand million classes": tensor(WEIGHT, lambda t: torch.zeros(10**9, 0)),
    "a classifier that is a number": tensor(WEIGHT, lambda t: torch.tensor(1.0)),
}  # fmt: skip


def reseal(sound: Path, path: Path, change: Change) -> Path:
    tensors, meta = read_artifact(sound, kind=KIND, schema=SCHEMA)
    change(meta, tensors)
    header = {"kind": KIND, "schema": str(SCHEMA), "checksum": "0" * 64, "meta": artifacts.json.dumps(meta)}
    contiguous = {name: each.contiguous() for name, each in tensors.items()}
    path.write_bytes(artifacts._seal(safetensors.torch.save(contiguous, metadata=header)))
    return path


@pytest.mark.parametrize("change", DOCTORED.values(), ids=DOCTORED)
def test_a_model_that_makes_no_sense_is_refused_when_it_is_read(sound, tmp_path, change):
    path = reseal(sound, tmp_path / "m.safetensors", change)
    with pytest.raises(ArtifactError) as error:
        Model.read(path)
    assert "m.safetensors" in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("meta", ["[" * 200_000, '{"decision":' * 50_000, "[1, 2]", "null", "1" * 10_000, "{"])
def test_values_that_are_no_object_or_nested_too_deeply(tmp_path, meta):
    header = {"kind": KIND, "schema": str(SCHEMA), "checksum": "0" * 64, "meta": meta}
    path = tmp_path / "m.safetensors"
    path.write_bytes(artifacts._seal(safetensors.torch.save({"a": torch.ones(1)}, metadata=header)))
    with pytest.raises(ArtifactError):
        Model.read(path)


@pytest.mark.parametrize(
    "change",
    [
        tensor(WEIGHT, lambda t: torch.cat([t, t])),
        tensor("retrieval.projection.2.weight", lambda t: t[:3]),
        tensor("decision.prototypes", lambda t: torch.cat([t, t], 2)),
        put(*CLASSIFIER, "network", "backbone", value="no_such_network"),
        put("encoders", "retrieval", "network", "embedding", value=3),
    ],
)
def test_networks_that_do_not_fit_are_refused_when_they_are_built(sound, tmp_path, change):
    path = reseal(sound, tmp_path / "m.safetensors", change)
    with pytest.raises(TdumpraError) as error:
        Predictor.load(path)
    assert "\n" not in str(error.value)


def test_a_model_above_the_limit_is_not_read(sound, monkeypatch):
    monkeypatch.setenv("TDUMPRA_LIMITS", "artifact_bytes=1000")
    with pytest.raises(ArtifactError, match="artifact_bytes"):
        Model.read(sound)


def test_a_sound_model_stays_as_it_is(sound, tmp_path):
    tensors, meta = read_artifact(sound, kind=KIND, schema=SCHEMA)
    write_artifact(tmp_path / "again", kind=KIND, schema=SCHEMA, tensors=tensors, meta=meta)
    assert (tmp_path / "again").read_bytes() == sound.read_bytes()
    Model.read(tmp_path / "again").write(tmp_path / "third")
    assert (tmp_path / "third").read_bytes() == sound.read_bytes()
