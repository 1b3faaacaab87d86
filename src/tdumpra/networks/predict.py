"""Predict images with one model file: networks, preprocessing, bank and thresholds, bound together by checksums.

Files are decoded ahead of the networks (:mod:`tdumpra.data.images.new`), which run in batches of few sizes, the
second one only where the classifier is unsure (:mod:`tdumpra.networks.engine`). Labels and openings depend neither on
the batch size nor on laziness nor on how many batches run at a time, except in a narrow band around the thresholds:
kernels may round differently with the size of a batch and the number of threads, in float32 by less than 1e-5.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from tdumpra import checks
from tdumpra.core.gate import GateSignals
from tdumpra.data.images import new
from tdumpra.data.images.framing import EvalTransform, Framing
from tdumpra.data.images.new import Batches, Framed, Image, Pixels, Read
from tdumpra.data.manifest import Manifest
from tdumpra.errors import BrokenImageError
from tdumpra.method.bank import Exemplar
from tdumpra.method.decision import Decided
from tdumpra.method.evidence import Evidence, explain
from tdumpra.networks.build import Encoding
from tdumpra.networks.engine import Batch, Engine, usual_batch_size
from tdumpra.networks.model_file import Encoder, Model
from tdumpra.networks.passes import NetworkPass, Recordings, check_device, most_lanes
from tdumpra.networks.settings import Precision
from tdumpra.networks.shared import Shared
from tdumpra.runtime.prediction import NOT_FINITE, Prediction, failed

Mode = Literal["lazy", "eager"]

Recognise = Callable[[Image, Pixels], Exemplar | None]


class _Wanted(NamedTuple):
    """What a prediction is to carry beside the decision."""

    evidence: bool
    embeddings: bool
    recognise: Recognise | None


class Predictor(Shared):
    """Predict images. Load one with :meth:`load`.

    Args:
        model: the contents of ``model.safetensors``.
        mode: ``lazy`` runs the second network only for rows below theta, ``eager`` for all.
        device: where to compute; by default a GPU if there is one.
        precision: ``float32`` or ``bfloat16``; by default that of the outputs on which the model was tuned. Another
            precision moves labels near the thresholds.
        trusted: names of factories (``package.module:function``) that may build the model's networks. A model that
            names any other code is refused.

    Attributes:
        rows_seen: number of images that went through the classifier so far.
        rows_matched: number of images that went through the second network as well.
    """

    def __init__(
        self,
        model: Model,
        *,
        mode: Mode = "lazy",
        device: str | torch.device | None = None,
        precision: Precision | None = None,
        trusted: Collection[str] = (),
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be 'lazy' or 'eager', not {mode!r}")
        if precision is not None and precision not in get_args(Precision):
            raise ValueError(f"precision must be 'float32' or 'bfloat16', not {precision!r}")
        self.model, self.mode, self.precision = model, mode, precision
        self.device = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._classifier, self._retrieval = model.build(self.device, trusted=trusted)
        self._recordings = Recordings()
        self.rows_seen = self.rows_matched = 0

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Predictor:
        """Load a model file; options as in the class."""
        return cls(Model.read(path), **options)

    def predict(
        self,
        images: Sequence[str | Path],
        *,
        batch_size: int | None = None,
        evidence: bool = False,
        groups: Sequence[str | None] | None = None,
        masks: Sequence[str | Path | None] | None = None,
        recognise: Recognise | None = None,
        embeddings: bool = False,
        read: Read | None = None,
    ) -> Iterator[Prediction]:
        """Yield predictions in order. An image that cannot be read or decided gives one with its ``error``.

        Args:
            images: files.
            batch_size: how many at once; by default what suits the device.
            evidence: ask the bank about every image, and attach the evidence, the picture and the framed pixels.
            groups: lesion or patient of each image, as in training: evidence shows no training image of the same.
            masks: files of the lesion's segmentation, nonzero inside, for a model that :attr:`cuts_out` lesions; an
                image without one is seen whole.
            recognise: with evidence, tells from an image and its pixels, framed for the classifier, which training
                image it is. Without a group of its own, it gets that image's.
            embeddings: ask the bank about every image, and attach its embedding and the classifier's features.
            read: the images as somebody else reads and frames them, in order; by default processes here do.
        """
        if batch_size is not None:
            checks.check_count(batch_size, "batch_size")
        cases = new.list_images(images, masks, cuts_out=self.cuts_out)
        own = new.one_each(groups, "groups", len(cases))
        size, wanted = batch_size or usual_batch_size(self.device), _Wanted(evidence, embeddings, recognise)
        batches = new.read_batches(cases, *self.framings, batch_size=size, picture=evidence, read=read)
        engine = self._engine(size, eager=evidence or embeddings, features=embeddings, n=len(cases))
        yield from self._predict(engine, cases, own, batches, wanted)

    def decide(
        self, framed: Sequence[Framed], *, evidence: bool = False, groups: Sequence[str | None] | None = None
    ) -> list[Prediction]:
        """Predict images that are read already, as one batch. Several threads may call this at a time.

        Args:
            framed: as :attr:`framings` frame them.
            evidence: as in :meth:`predict`.
            groups: as in :meth:`predict`.
        """
        own = new.one_each(groups, "groups", len(framed))
        if not framed:
            return []
        size = max(len(framed), usual_batch_size(self.device))  # so that a GPU sees few sizes, whatever comes
        [batch] = self._engine(size, eager=evidence).decide([list(framed)])
        rows = enumerate(zip(self._outcomes(batch), own, framed, strict=True))
        nowhere, wanted = Image(Path()), _Wanted(evidence, False, None)
        return [
            self._with_extras(outcome, batch, i, nowhere, group, each, wanted)
            if evidence and outcome.error is None
            else outcome
            for i, (outcome, group, each) in rows
        ]

    @property
    def framings(self) -> tuple[Framing, Framing]:
        """How images are cut and scaled for the classifier, and for the network that matches prototypes."""
        return self.model.classifier.transform.framing, self.matcher[1].framing

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of the probabilities."""
        return self.model.class_names

    @property
    def has_two_networks(self) -> bool:
        """Return whether prototypes are matched by a network of their own."""
        return self.model.retrieval is not None

    @property
    def cuts_out(self) -> bool:
        """Return whether one of the networks sees lesions cut out along their masks."""
        transforms = (self.model.classifier.transform, self.matcher[1])
        return any(transform.framing.lesion_margin is not None for transform in transforms)

    @property
    def matcher(self) -> tuple[nn.Module, EvalTransform]:
        """The network in whose space the bank lives, and the preprocessing of its images."""
        if self.model.retrieval is None or self._retrieval is None:
            return self._classifier, self.model.classifier.transform
        return self._retrieval, self.model.retrieval.transform

    def embed(self, pixels: Tensor) -> Tensor:
        """Return embeddings of transformed images (n, 3, s, s) in the bank's space."""
        encoder = self.model.retrieval or self.model.classifier
        return self._ready(self.matcher[0], encoder).encode(pixels).z

    def outputs(
        self, manifest: Manifest, *, batch_size: int | None = None
    ) -> Iterator[list[BrokenImageError | tuple[Framed, Encoding]]]:
        """Yield the outputs of both networks for the records of a source, in order, a batch at a time.

        Each image comes as it was framed, with the outputs of one row; one that cannot be read comes as its error.
        """
        size = batch_size or usual_batch_size(self.device)
        engine = self._engine(size, eager=True, features=True, n=len(manifest.records))
        under_way: deque[list[Framed | BrokenImageError]] = deque()

        def batches() -> Iterator[list[Framed]]:
            for read in new.record_batches(manifest, *self.framings, batch_size=size):
                under_way.append(read)
                framed = [each for each in read if isinstance(each, Framed)]
                if framed:
                    yield framed

        for encoding in engine.encode(batches()):
            rows = zip(*encoding, strict=True)
            yield [
                each if isinstance(each, BrokenImageError) else (each, Encoding(*next(rows)))
                for each in under_way.popleft()
            ]
        for read in under_way:  # none of which could be read
            yield [each for each in read if isinstance(each, BrokenImageError)]

    def pictures(self, evidence: Evidence) -> dict[str, np.ndarray]:
        """Return small pictures (h, w, 3) of the training images behind ``evidence``, where the model holds them."""
        held = self.model.thumbnails
        return {name: held[name].numpy() for name in evidence.exemplar_ids if name in held}

    def _predict(
        self, engine: Engine, images: list[Image], groups: list[str | None], read: Batches, wanted: _Wanted
    ) -> Iterator[Prediction]:
        under_way: deque[list[Framed | BrokenImageError | None]] = deque()
        keep = wanted.evidence  # pixels are kept for evidence alone

        def batches() -> Iterator[list[Framed]]:
            for some in read:
                framed = [each for each in some if isinstance(each, Framed)]
                under_way.append([each if keep or isinstance(each, BrokenImageError) else None for each in some])
                if framed:
                    yield framed

        todo = zip(images, groups, strict=True)
        try:
            for batch in engine.decide(batches()):
                outcomes = enumerate(self._outcomes(batch))
                for found in under_way.popleft():
                    image, group = next(todo)
                    if isinstance(found, BrokenImageError):
                        yield failed(image.path, str(found))
                        continue
                    i, outcome = next(outcomes)
                    prediction = outcome._replace(path=str(image.path))
                    if prediction.error is None:
                        prediction = self._with_extras(prediction, batch, i, image, group, found, wanted)
                    yield prediction
            last = [each for some in under_way for each in some]  # none of which could be read
            for (image, _), reason in zip(todo, last, strict=True):
                yield failed(image.path, str(reason))
        finally:
            self.rows_seen += engine.rows_seen
            self.rows_matched += engine.rows_matched

    def _engine(self, batch_size: int, *, eager: bool, features: bool = False, n: int | None = None) -> Engine:
        """Return an engine, for ``n`` images in batches; without their number for one batch, on this thread."""
        lanes = 0 if n is None or self.device.type != "cpu" else min(most_lanes(), max(1, ceil(n / batch_size)))
        model, retrieval = self.model, None
        if model.retrieval is not None and self._retrieval is not None:
            retrieval = self._ready(self._retrieval, model.retrieval)
        return Engine(
            model.decision, self._ready(self._classifier, model.classifier), retrieval, device=self.device,
            batch_size=batch_size, eager=eager or self.mode == "eager", features=features, lanes=lanes,
            recordings=self._recordings if n is not None and self._may_record() else None,
        )  # fmt: skip

    def _may_record(self) -> bool:
        """Return whether passes may be recorded: while that is done no other thread should draw random numbers."""
        return self.device.type == "cuda" and threading.current_thread() is threading.main_thread()

    def _ready(self, network: nn.Module, encoder: Encoder) -> NetworkPass:
        return NetworkPass(network, encoder.transform, self.precision or encoder.precision)

    def _outcomes(self, batch: Batch) -> Iterator[Prediction]:
        """Yield the rows of a batch, without their paths. Whole columns leave the tensors at once."""
        names = self.model.class_names
        signals = {} if batch.decided is None else batch.decided.signals._asdict()
        columns = {name: column.tolist() for name, column in signals.items()}
        rows = zip(*(each.tolist() for each in (batch.p, batch.p.argmax(1), batch.opened, batch.finite)), strict=True)
        for i, (p, label, opened, finite) in enumerate(rows):
            if not finite:
                yield failed("", NOT_FINITE)
                continue
            place = batch.place.get(i)
            own = None if place is None else {name: column[place] for name, column in columns.items()}
            yield Prediction("", names[label], dict(zip(names, p, strict=True)), opened, own, None)

    def _with_extras(
        self, prediction: Prediction, batch: Batch, i: int, image: Image, group: str | None, framed: Framed | None,
        wanted: _Wanted,
    ) -> Prediction:  # fmt: skip
        if batch.z is not None and batch.features is not None:
            embedding, features = batch.z[batch.place[i]].numpy(), batch.features[i].numpy()
            prediction = prediction._replace(embedding=embedding, features=features)
        if framed is None:
            return prediction
        exemplar = None if wanted.recognise is None else wanted.recognise(image, framed.first)
        own = exemplar.group if exemplar is not None and group is None else group
        return prediction._replace(
            evidence=self._explain(batch, i, own), pixels=framed.second, picture=framed.picture, exemplar=exemplar
        )

    def _explain(self, batch: Batch, i: int, group: str | None) -> Evidence | None:
        if batch.decided is None or batch.z is None:
            return None
        row, names = slice(i, i + 1), self.model.class_names  # with evidence, the bank was asked about every row
        p, opened, signals, p_cls, p_sim = batch.decided
        decided = Decided(p[row], opened[row], GateSignals(*(each[row] for each in signals)), p_cls[row], p_sim[row])
        return explain(self.model.decision, p[row], batch.z[row], class_names=names, group=group, decided=decided)
