"""The one way from a source of local data to rows: predicted by the model's networks, or read from a file of outputs.

Whatever would make figures wrong is refused in a sentence: classes that the model does not know, and rows that it was
trained or tuned on, told by the names of groups and images, and by the pixels themselves.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from tdumpra.artifacts import fingerprint
from tdumpra.data.images.appearance import Appearance, appearance
from tdumpra.data.manifest import Manifest
from tdumpra.data.sources import open_source
from tdumpra.errors import BrokenImageError, InputFileError, SourceError, close_match, nearest
from tdumpra.estimator import DualPathClassifier
from tdumpra.method.local_outputs import SUFFIXES, LocalOutputs, read_local_outputs
from tdumpra.method.rows import UNLABELLED, KeptRows
from tdumpra.models.opened import OpenedModel
from tdumpra.models.seen_rows import refuse_seen_embeddings, refuse_seen_names, refuse_seen_pixels
from tdumpra.networks.build import Encoding
from tdumpra.networks.encode import refuse_non_finite
from tdumpra.networks.model_file import Model
from tdumpra.networks.predict import Predictor

_FOREIGN = 0.1  # difference of probabilities, for the middle row, that no rounding explains


class LocalRows(NamedTuple):
    """Rows of a source, and what is known of them as a whole."""

    rows: KeptRows
    metadata: Mapping[str, NDArray[Any]]  # columns for subgroups
    notes: tuple[str, ...]  # what a user should know: rows that were left out, labels that are missing
    fingerprint: str  # of the data, for the history of a model that is made of them
    class_names: tuple[str, ...]  # the model's, and after them new ones


class Asked(NamedTuple):
    """How the names of a source are to be taken."""

    group_by: str | None
    prefix: str
    rename: Mapping[str, str]
    new_classes: Collection[str]

    def named(self, names: Sequence[str] | NDArray[Any]) -> NDArray[Any]:
        """Return names of groups or images with the prefix."""
        return np.array([f"{self.prefix}{name}" for name in names], np.str_)

    def numbers(
        self, labels: Sequence[str | None], known: Sequence[str], source: str
    ) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return the model's number of each label, and all classes."""
        return label_numbers(labels, known, source, rename=self.rename, new_classes=self.new_classes)


def read_rows(
    model: OpenedModel,
    source: str,
    *,
    group_by: str | None = None,
    prefix: str = "",
    rename: Mapping[str, str] | None = None,
    new_classes: Collection[str] = (),
    on_rows: Callable[[int, int], object] | None = None,
    **options: Any,
) -> LocalRows:
    """Return the rows of a source as the model sees them.

    Args:
        model: the model.
        source: ``KIND:PLACE``, as everywhere; or a file of outputs, ``.npz``, ``.csv`` or ``.parquet``.
        group_by: the column that says which images belong together.
        prefix: goes before the names of groups and images, where another place numbers them anew.
        rename: names of classes as the source has them, and what the model calls them.
        new_classes: names that may pass though the model does not know them; they are numbered after its own.
        on_rows: gets the number of images that are done, and of all.
        options: device, precision and trusted code of the :class:`Predictor`.
    """
    if is_outputs_file(source):
        if group_by is not None:
            raise ValueError(f"--group-by names a column of a table of images; {source} has its groups in 'group'")
        found = _from_file(model, Path(source), Asked(None, prefix, rename or {}, new_classes))
    else:
        asked = Asked(group_by, prefix, rename or {}, new_classes)
        found = _from_source(model, source, asked, on_rows, options)
    rows = found.rows
    missing = int((~rows.labelled).sum())
    notes = found.notes
    if 0 < missing < len(rows):
        notes += (f"{missing:,} of {len(rows):,} rows have no label: figures are of the other {len(rows) - missing:,}",)
    if copied := len(np.unique(rows.groups)) - len(np.unique(rows.kin)):
        notes += (
            f"{copied:,} groups hold copies of others' images (the same pixels or the same embedding): they count as "
            "one with those",
        )
    return found._replace(notes=notes)


def is_outputs_file(source: str) -> bool:
    """Return whether a source is a file of outputs, not of images."""
    return ":" not in source.removeprefix(Path(source).drive) and Path(source).suffix.lower() in SUFFIXES


def label_numbers(
    labels: Sequence[str | None],
    known: Sequence[str],
    source: str,
    *,
    rename: Mapping[str, str] | None = None,
    new_classes: Collection[str] = (),
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the model's number of each label, -1 for none, and all classes: the model's own, then new ones.

    Names are matched ignoring case, as everywhere; a name that the model does not know is refused.
    """
    number = {name.casefold(): c for c, name in enumerate(known)}
    names = list(known)
    wanted = {word: (rename or {}).get(word, word) for word in dict.fromkeys(labels) if word is not None}
    for word, name in wanted.items():
        if name.casefold() in number:
            continue
        if name not in new_classes:
            count = sum(label == word for label in labels)
            raise SourceError(
                f"{source} has {count:,} rows of the class {name!r}, which the model does not know (it has "
                f"{', '.join(known)}): {_renaming(word, name, known)}, leave these rows out, or teach it to a bank "
                f"with  tdumpra bank add --new-class {shlex.quote(name)}{nearest(name, known)}"
            )
        number[name.casefold()] = len(names)
        names.append(name)
    y = [UNLABELLED if label is None else number[wanted[label].casefold()] for label in labels]
    return np.array(y, dtype=np.int64), tuple(names)


def _renaming(word: str, name: str, known: Sequence[str]) -> str:
    """Return how a class that a model does not know is given one of its names."""
    ours = close_match(name, known) or "NAME"
    return f"rename it with  --rename {shlex.quote(f'{word}={ours}')}"


def _refuse_idle_renames(rename: Mapping[str, str], found: Collection[str], source: str) -> None:
    for word in rename:
        if word not in found:
            raise ValueError(f"--rename names {word!r}, which {source} does not have{nearest(word, found)}")


def _from_file(model: OpenedModel, path: Path, asked: Asked) -> LocalRows:
    outputs = read_local_outputs(path)
    names, width = model.class_names, model.decision.bank.width
    classes = model.record.train.p.shape[1]
    if outputs.p.shape[1] != classes:
        raise InputFileError(f"{path}: p has {outputs.p.shape[1]} classes, and the model's classifier has {classes}")
    if outputs.z.shape[1] != width:
        raise InputFileError(f"{path}: z has width {outputs.z.shape[1]}, and the model's bank has width {width}")
    words = {each for each in outputs.labels if isinstance(each, str)}
    _refuse_idle_renames(asked.rename, {*(outputs.class_names or names), *words}, str(path))
    order = _columns(path, outputs, names[:classes], asked.rename)
    labels = [names[order[label]] if isinstance(label, int) else label for label in outputs.labels]
    y, all_names = asked.numbers(labels, names, str(path))
    content = fingerprint(path.read_bytes())
    numbered = [f"{path.stem} {content} {i}" for i in range(len(y))]  # no two files give the same names
    ids = asked.named(numbered if outputs.ids is None else outputs.ids)
    p = np.empty_like(outputs.p)
    p[:, order] = outputs.p
    if isinstance(model.content, DualPathClassifier):  # an adapted head speaks in place of the file's classifier
        p = model.content.classifier_rows(torch.from_numpy(p), outputs.features).numpy()
    rows = KeptRows(
        ids=ids,
        groups=ids if outputs.groups is None else asked.named(outputs.groups),
        y=y,
        p=p,
        z=outputs.z,
        features=None if outputs.features is None else outputs.features.astype(np.float32),
        named=outputs.ids is not None,
        grouped=outputs.groups is not None,
    )
    named, grouped = outputs.ids is not None, outputs.groups is not None
    refuse_seen_names(model.record, rows.ids if named else None, rows.groups if grouped else None, str(path))
    refuse_seen_embeddings(model.record, rows, str(path))
    notes = list(_whose_outputs(model, p, outputs, path))
    if outputs.left_out:
        notes.append(f"{outputs.left_out:,} rows of train and val are left out: the file's test rows are taken")
    return LocalRows(rows, outputs.metadata, tuple(notes), content, all_names)


def _whose_outputs(model: OpenedModel, p: NDArray[Any], outputs: LocalOutputs, path: Path) -> Iterator[str]:
    """Refuse outputs of another network than the model's, where that can be told; else say that it cannot."""
    if not isinstance(model.content, Model):  # the network is the user's own
        return
    if outputs.network is not None:
        if outputs.network != model.content.networks_fingerprint:
            raise InputFileError(
                f"{path} holds outputs of other networks than the model's, or of these before they got another head: "
                "give the images"
            )
        return
    head, features = model.content.classifier.head, outputs.features
    if features is None or head is None or features.shape[1] != head.weight.shape[1]:
        yield (
            f"nothing in {path} tells which network its rows are of: if it was another than the model's own, every "
            "figure is wrong; give the images, or a file that  tdumpra validate --outputs  wrote"
        )
        return
    own = softmax(head.logits(features), axis=1)
    if (off := float(np.median(np.abs(own - p).max(1)))) > _FOREIGN:
        raise InputFileError(
            f"{path} holds outputs of another network: the model's classifier gives its features other probabilities "
            f"(half of the rows differ by more than {off:.2f})"
        )


def _columns(path: Path, outputs: LocalOutputs, names: Sequence[str], rename: Mapping[str, str]) -> list[int]:
    """Return the model's class for each column of a file's probabilities."""
    if not outputs.class_names:
        return list(range(len(names)))
    theirs = [rename.get(name, name) for name in outputs.class_names]
    unknown = [name for name in theirs if name not in names]
    if unknown:
        word = outputs.class_names[theirs.index(unknown[0])]
        raise InputFileError(
            f"{path} has probabilities of the class {unknown[0]!r}, which the model's classifier does not know (it has "
            f"{', '.join(names)}): {_renaming(word, unknown[0], names)}{nearest(unknown[0], names)}"
        )
    if len(set(theirs)) < len(theirs):
        raise InputFileError(f"{path}: two of its classes are one after --rename: {', '.join(theirs)}")
    return [names.index(name) for name in theirs]


def _from_source(
    model: OpenedModel,
    source: str,
    asked: Asked,
    on_rows: Callable[[int, int], object] | None,
    options: Mapping[str, Any],
) -> LocalRows:
    if not isinstance(model.content, Model):
        raise InputFileError(
            f"{model.path} was made from saved outputs and has no network to look at images with: give a file of its "
            f"own model's outputs ({', '.join(SUFFIXES)}) in place of {source!r}"
        )
    manifest = open_source(source, group_column=asked.group_by, partial=True)
    notes = list(manifest.notes)
    if any(record.split == "test" for record in manifest.records):
        kept = tuple(record for record in manifest.records if record.split == "test")
        if len(kept) < len(manifest):
            notes.append(f"{len(manifest) - len(kept):,} images of train and val are left out: test images are taken")
        manifest = replace(manifest, records=kept)
    words = [None if r.label == UNLABELLED else manifest.class_names[r.label] for r in manifest.records]
    _refuse_idle_renames(asked.rename, {word for word in words if word is not None}, source)
    y, all_names = asked.numbers(words, model.class_names, source)
    ids, groups = (asked.named([getattr(r, name) for r in manifest.records]) for name in ("id", "group"))
    grouped = bool((ids != groups).any())
    refuse_seen_names(model.record, ids, groups if grouped else None, source)  # before the work of predicting
    predictor = Predictor(model.content, **options)
    encodings, looks, broken = _encode(predictor, manifest, on_rows)
    good = np.array([number not in broken for number in range(len(manifest))])
    if broken:
        first = min(broken)
        notes.append(
            f"{len(broken):,} of {len(manifest):,} images cannot be read and are left out "
            f"({manifest.records[first].id}: {broken[first]})"
        )
    refuse_non_finite([encodings], ids[good].tolist())
    rows = KeptRows(
        ids=ids[good],
        groups=groups[good],
        y=y[good],
        p=encodings.logits.double().softmax(1).numpy(),
        z=encodings.z.numpy(),
        features=encodings.features.numpy(),
        colours=looks.colours,
        content=np.array(looks.content, np.str_),
        grouped=grouped,
    )
    refuse_seen_pixels(model.record, rows, source)
    keys = sorted({key for record in manifest.records for key in record.meta})
    metadata = {key: np.array([record.meta.get(key, "") for record in manifest.records])[good] for key in keys}
    return LocalRows(rows, metadata, tuple(notes), fingerprint(manifest.fingerprint, *looks.content), all_names)


def _encode(
    predictor: Predictor, manifest: Manifest, on_rows: Callable[[int, int], object] | None
) -> tuple[Encoding, Appearance, dict[int, str]]:
    """Return outputs and appearance of the images that can be read, and why the others cannot, by number."""
    encodings, looks, broken, done = list[Encoding](), list[Appearance](), dict[int, str](), 0
    for batch in predictor.outputs(manifest):
        for number, each in enumerate(batch, start=done):
            if isinstance(each, BrokenImageError):
                broken[number] = str(each)
        seen = [each for each in batch if not isinstance(each, BrokenImageError)]
        if seen:
            looks.append(appearance(np.stack([framed.first for framed, _ in seen])))
            encodings += [encoding for _, encoding in seen]
        done += len(batch)
        if on_rows is not None:
            on_rows(done, len(manifest))
    if not encodings:
        raise SourceError(f"none of {len(manifest):,} images can be read; the first: {broken[0]}")
    joined = Encoding(*(torch.stack(column) for column in zip(*encodings, strict=True)))
    return joined, Appearance.join(looks), broken
