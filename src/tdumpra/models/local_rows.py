"""The one way from a source of local data to rows: predicted by the model's networks, or read from a file of outputs.

Whatever would make figures wrong is refused in a sentence: classes that the model does not know, and rows that it was
trained or tuned on, told by the names of groups and images, and by the pixels themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tdumpra.artifacts import fingerprint
from tdumpra.data.images.appearance import Appearance, appearance
from tdumpra.data.manifest import Manifest
from tdumpra.data.sources import open_source
from tdumpra.errors import BrokenImageError, InputFileError, SourceError, nearest
from tdumpra.method.local_outputs import SUFFIXES, LocalOutputs, read_local_outputs
from tdumpra.method.record import UNLABELLED, KeptRows, Record
from tdumpra.models.opened import OpenedModel
from tdumpra.networks.build import Encoding
from tdumpra.networks.encode import refuse_non_finite
from tdumpra.networks.model_file import Model
from tdumpra.networks.predict import Predictor

_SHOWN = 3  # names that a sentence shows


class LocalRows(NamedTuple):
    """Rows of a source, and what is known of them as a whole."""

    rows: KeptRows
    metadata: Mapping[str, NDArray[Any]]  # columns for subgroups
    notes: tuple[str, ...]  # what a user should know: rows that were left out, labels that are missing
    fingerprint: str  # of the data, for the history of a model that is made of them


def read_rows(
    model: OpenedModel,
    source: str,
    *,
    group_by: str | None = None,
    prefix: str = "",
    rename: Mapping[str, str] | None = None,
    new_classes: bool = False,
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
        new_classes: let classes through that the model does not know; they are numbered after its own.
        on_rows: gets the number of images that are done, and of all.
        options: device, precision and trusted code of the :class:`Predictor`.
    """
    if is_outputs_file(source):
        found = _from_file(model, Path(source), rename or {}, new_classes)
    else:
        found = _from_source(model, source, group_by, rename or {}, new_classes, on_rows, options)
    rows = found.rows
    if prefix:
        rows = replace(rows, ids=np.char.add(prefix, rows.ids), groups=np.char.add(prefix, rows.groups))
    _refuse_seen(model.record, rows, source)
    missing = int((~rows.labelled).sum())
    notes = found.notes
    if 0 < missing < len(rows):
        notes += (f"{missing:,} of {len(rows):,} rows have no label: figures are of the other {len(rows) - missing:,}",)
    return found._replace(rows=rows, notes=notes)


def is_outputs_file(source: str) -> bool:
    """Return whether a source is a file of outputs, not of images."""
    return ":" not in source.removeprefix(Path(source).drive) and Path(source).suffix.lower() in SUFFIXES


def label_numbers(
    labels: Sequence[str | None],
    known: Sequence[str],
    source: str,
    *,
    rename: Mapping[str, str] | None = None,
    new_classes: bool = False,
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
        if not new_classes:
            count = sum(label == word for label in labels)
            raise SourceError(
                f"{source} has {count:,} rows of the class {name!r}, which the model does not know (it has "
                f"{', '.join(known)}){nearest(name, known)}: rename it with --rename {name}=NAME, or leave these out"
            )
        number[name.casefold()] = len(names)
        names.append(name)
    y = [UNLABELLED if label is None else number[wanted[label].casefold()] for label in labels]
    return np.array(y, dtype=np.int64), tuple(names)


def _from_file(model: OpenedModel, path: Path, rename: Mapping[str, str], new_classes: bool) -> LocalRows:
    outputs = read_local_outputs(path)
    names, width = model.class_names, model.decision.bank.width
    classes = model.record.train.p.shape[1]
    if outputs.p.shape[1] != classes:
        raise InputFileError(f"{path}: p has {outputs.p.shape[1]} classes, and the model's classifier has {classes}")
    if outputs.z.shape[1] != width:
        raise InputFileError(f"{path}: z has width {outputs.z.shape[1]}, and the model's bank has width {width}")
    order = _columns(path, outputs, names[:classes])
    labels = [names[order[label]] if isinstance(label, int) else label for label in outputs.labels]
    y, _ = label_numbers(labels, names, str(path), rename=rename, new_classes=new_classes)
    numbers = np.array([f"{path.stem} {i}" for i in range(len(y))], np.str_)
    ids = numbers if outputs.ids is None else outputs.ids
    p = np.empty_like(outputs.p)
    p[:, order] = outputs.p
    rows = KeptRows(
        ids=ids,
        groups=ids if outputs.groups is None else outputs.groups,
        y=y,
        p=p.astype(np.float32),
        z=outputs.z,
        features=None if outputs.features is None else outputs.features.astype(np.float16),
        named=outputs.ids is not None,
        grouped=outputs.groups is not None,
    )
    notes = (f"{outputs.left_out:,} rows of train and val are left out: the file's test rows are taken",)
    return LocalRows(rows, outputs.metadata, notes if outputs.left_out else (), fingerprint(path.read_bytes()))


def _columns(path: Path, outputs: LocalOutputs, names: Sequence[str]) -> list[int]:
    """Return the model's class for each column of a file's probabilities."""
    if not outputs.class_names:
        return list(range(len(names)))
    unknown = [name for name in outputs.class_names if name not in names]
    if unknown:
        raise InputFileError(
            f"{path} has probabilities of the class {unknown[0]!r}, which the model does not know (it has "
            f"{', '.join(names)}){nearest(unknown[0], names)}"
        )
    return [names.index(name) for name in outputs.class_names]


def _from_source(
    model: OpenedModel,
    source: str,
    group_by: str | None,
    rename: Mapping[str, str],
    new_classes: bool,
    on_rows: Callable[[int, int], object] | None,
    options: Mapping[str, Any],
) -> LocalRows:
    if not isinstance(model.content, Model):
        raise InputFileError(
            f"{model.path} was made from saved outputs and has no network to look at images with: give a file of its "
            f"own model's outputs ({', '.join(SUFFIXES)}) in place of {source!r}"
        )
    manifest = open_source(source, group_column=group_by, partial=True)
    notes = list(manifest.notes)
    if any(record.split == "test" for record in manifest.records):
        kept = tuple(record for record in manifest.records if record.split == "test")
        if len(kept) < len(manifest):
            notes.append(f"{len(manifest) - len(kept):,} images of train and val are left out: test images are taken")
        manifest = replace(manifest, records=kept)
    words = [None if r.label == UNLABELLED else manifest.class_names[r.label] for r in manifest.records]
    y, _ = label_numbers(words, model.class_names, source, rename=rename, new_classes=new_classes)
    predictor = Predictor(model.content, **options)
    encodings, looks, broken = _encode(predictor, manifest, on_rows)
    good = np.array([number not in broken for number in range(len(manifest))])
    if broken:
        first = min(broken)
        notes.append(
            f"{len(broken):,} of {len(manifest):,} images cannot be read and are left out "
            f"({manifest.records[first].id}: {broken[first]})"
        )
    ids, groups = np.array([record.id for record in manifest.records], np.str_)[good], manifest.groups[good]
    refuse_non_finite([encodings], ids.tolist())
    rows = KeptRows(
        ids=ids,
        groups=groups,
        y=y[good],
        p=encodings.logits.double().softmax(1).float().numpy(),
        z=encodings.z.numpy(),
        features=encodings.features.half().numpy(),
        colours=looks.colours,
        content=np.array(looks.content, np.str_),
        grouped=bool((ids != groups).any()),
    )
    keys = sorted({key for record in manifest.records for key in record.meta})
    metadata = {key: np.array([record.meta.get(key, "") for record in manifest.records])[good] for key in keys}
    return LocalRows(rows, metadata, tuple(notes), fingerprint(manifest.fingerprint, *looks.content))


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


def _refuse_seen(record: Record, rows: KeptRows, source: str) -> None:
    """Refuse rows that the model was trained or tuned on: figures on them would be too good."""
    for name, kept in (("training", record.train), ("validation", record.validation)):
        if rows.grouped and kept.grouped:
            _refuse_shared(rows.groups, kept.groups, "groups", name, source)
        if rows.named and kept.named:
            _refuse_shared(rows.ids, kept.ids, "images", name, source)
        if rows.content is not None and kept.content is not None:
            same = np.isin(rows.content, kept.content) & (rows.content != "")
            if same.any():
                first = int(same.argmax())
                theirs = kept.ids[int((kept.content == rows.content[first]).argmax())]
                raise SourceError(
                    f"{int(same.sum()):,} images of {source} are {name} images of the model under other names, for "
                    f"example {rows.ids[first]!r}, which is {str(theirs)!r}: leave them out"
                )


def _refuse_shared(own: NDArray[Any], seen: NDArray[Any], what: str, part: str, source: str) -> None:
    shared = np.intersect1d(own, seen)
    if len(shared):
        shown = ", ".join(map(repr, shared[:_SHOWN].tolist())) + (", …" if len(shared) > _SHOWN else "")
        raise SourceError(
            f"{len(shared):,} {what} of {source} are among the {part} {what} of the model ({shown}), and figures would "
            "be too good: leave them out, or, if another place uses the same names, tell them apart with --prefix NAME-"
        )
