"""A data set for FiftyOne: images with their predictions, the gate, the evidence and the embeddings, on disk.

This writes the folder that FiftyOne calls ``FiftyOneDataset``: ``metadata.json`` (the fields), ``samples.json`` (one
document an image, in MongoDB's extended JSON) and ``data/`` (the images). FiftyOne is neither needed nor imported::

    fiftyone.Dataset.from_dir("folder", dataset_type=fiftyone.types.FiftyOneDataset)
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tdumpra.artifacts import jsonable
from tdumpra.errors import InputFileError
from tdumpra.networks.predict import Predictor
from tdumpra.runtime.prediction import Prediction
from tdumpra.writing import make_folder, write_bytes

_VERSION = "0.24.0"  # of FiftyOne, whose layout this is; later ones bring it up to date as they read it
_FIELDS = "fiftyone.core.fields"
_CLASSIFICATION = "fiftyone.core.labels.Classification"
_LABELS = {"ground_truth": "the label that was given", "prediction": "the model's label",
           "classifier": "the classifier's label, before the gate", "retrieval": "retrieval's label"}  # fmt: skip
_NUMBERS = {"familiarity": "percentile of the cosine to the nearest prototype", "entropy": "of the classifier, in nats"}
_TEXTS = {"gate": "moved, opened or shut", "evidence": "why it was decided so", "group": "lesion or patient",
          "error": "why there is no prediction"}  # fmt: skip


def write_dataset(
    predictor: Predictor,
    images: Sequence[str | Path],
    folder: str | Path,
    *,
    name: str = "tdumpra",
    labels: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
) -> Path:
    """Predict ``images`` with evidence, copy them, and write the data set; return its folder.

    Args:
        predictor: decides.
        images: files, each of which is copied to ``data/``.
        folder: a new one.
        name: of the data set.
        labels: the truth of each image, where it is known.
        groups: lesion or patient of each image: evidence shows no training image of the same.
    """
    target, paths = Path(folder), [Path(image) for image in images]
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputFileError(f"{target} is there already: name a new folder")
    for what, given in {"labels": labels, "groups": groups}.items():
        if given is not None and len(given) != len(paths):
            raise ValueError(f"{what} needs one entry per image: {len(paths)}, not {len(given)}")
    if missing := [path for path in paths if not path.is_file()]:
        raise InputFileError(f"{missing[0]} is no file ({len(missing)} of {len(paths)} images)")
    make_folder(target / "data")
    names = _distinct_names(paths)
    samples = []
    found = predictor.predict(paths, evidence=True, embeddings=True, groups=groups)
    for i, prediction in enumerate(found):
        shutil.copyfile(paths[i], target / "data" / names[i])
        truth, group = labels[i] if labels is not None else None, groups[i] if groups is not None else None
        samples.append(_sample(names[i], prediction, predictor.model.class_names, truth, group))
    classes = list(predictor.model.class_names)
    _write(target / "samples.json", {"samples": samples})
    _write(target / "metadata.json", _metadata(name, classes))
    return target


def _sample(
    file: str, prediction: Prediction, names: Sequence[str], truth: str | None, group: str | None
) -> dict[str, Any]:
    evidence = prediction.evidence
    sample: dict[str, Any] = {
        "_id": _object_id("sample", file),
        "filepath": f"data/{file}",
        "tags": [],
        "metadata": None,
        "_media_type": "image",
        "_rand": int(_digest("rand", file)[:8], 16) / 16**8,
        "ground_truth": None if truth is None else _label("ground_truth", file, truth),
        "group": group,
        "error": prediction.error,
        **dict.fromkeys(("prediction", "classifier", "retrieval", "gate", "evidence", *_NUMBERS)),
        "embedding": [] if prediction.embedding is None else np.asarray(prediction.embedding, np.float64).tolist(),
    }
    if evidence is None:
        return sample
    own = names[evidence.label_classifier]
    posteriors = {
        "prediction": evidence.p, "classifier": evidence.p_classifier, "retrieval": evidence.p_similarity,
    }  # fmt: skip
    sample |= {key: _label(key, file, names[int(np.argmax(p))], p) for key, p in posteriors.items()}
    sample["gate"] = "moved" if own != prediction.label else "opened" if evidence.opened else "shut"
    sample["evidence"] = evidence.sentence
    return sample | {key: getattr(evidence, key) for key in _NUMBERS}


def _label(field: str, file: str, label: str, p: Iterable[float] | None = None) -> dict[str, Any]:
    posterior = None if p is None else list(p)
    return {
        "_id": _object_id(field, file),
        "_cls": "Classification",
        "tags": [],
        "label": label,
        "confidence": None if posterior is None else max(posterior),
        "posterior": posterior,
    }


def _metadata(name: str, classes: list[str]) -> dict[str, Any]:
    key = _object_id("dataset", name)
    inner = [
        _field("id", "ObjectIdField", db_field="_id"), _field("tags", "ListField", "StringField"),
        _field("label", "StringField"), _field("confidence", "FloatField"),
        _field("posterior", "ListField", "FloatField"),
    ]  # fmt: skip
    fields = [
        _field("id", "ObjectIdField", db_field="_id"), _field("filepath", "StringField"),
        _field("tags", "ListField", "StringField"), _field("_media_type", "StringField"),
        _field("_rand", "FloatField"), _field("embedding", "ListField", "FloatField"),
        *(_field(each, "FloatField", about=words) for each, words in _NUMBERS.items()),
        *(_field(each, "StringField", about=words) for each, words in _TEXTS.items()),
        *({**_document(each, _CLASSIFICATION, about=words), "fields": inner} for each, words in _LABELS.items()),
        _document("metadata", "fiftyone.core.metadata.ImageMetadata"),
    ]  # fmt: skip
    return {
        "_id": key,
        "name": name,
        "slug": name,
        "version": _VERSION,
        "created_at": {"$date": "1970-01-01T00:00:00Z"},  # FiftyOne sets its own as it reads
        "last_loaded_at": {"$date": "1970-01-01T00:00:00Z"},
        "sample_collection_name": f"samples.{key['$oid']}",
        "persistent": False,
        "media_type": "image",
        "group_media_types": {},
        "tags": [],
        "info": {},
        "app_config": {},
        "classes": dict.fromkeys(_LABELS, classes),
        "default_classes": classes,
        "mask_targets": {},
        "default_mask_targets": {},
        "skeletons": {},
        "sample_fields": fields,
        "frame_fields": [],
        "saved_views": [],
        "workspaces": [],
        "annotation_runs": {},
        "brain_methods": {},
        "evaluations": {},
        "runs": {},
    }


def _field(
    name: str, kind: str, inside: str | None = None, *, about: str | None = None, db_field: str | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "ftype": f"{_FIELDS}.{kind}",
        "embedded_doc_type": None,
        "subfield": None if inside is None else f"{_FIELDS}.{inside}",
        "fields": [],
        "db_field": db_field or name,
        "description": about,
        "info": None,
    }


def _document(name: str, kind: str, about: str | None = None) -> dict[str, Any]:
    return {**_field(name, "EmbeddedDocumentField", about=about), "embedded_doc_type": kind}


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return a file name for each image; images of one name in several folders get numbers."""
    taken: set[str] = set()
    names = []
    for path in paths:
        name, number = path.name, 1
        while name.casefold() in taken:
            number += 1
            name = f"{path.stem}-{number}{path.suffix}"
        taken.add(name.casefold())
        names.append(name)
    return names


def _object_id(*parts: str) -> dict[str, str]:
    return {"$oid": _digest(*parts)[:24]}


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def _write(path: Path, document: dict[str, Any]) -> None:
    write_bytes(path, json.dumps(jsonable(document), allow_nan=False).encode())
