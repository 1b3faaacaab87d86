"""Predict images with one model file: networks, preprocessing, bank and thresholds, bound together by checksums.

The second network is lazy. The clause ``top probability < theta`` needs the classifier alone, so only rows below theta
get a second pass: the cost is 1 + their share. Labels and openings agree with those of the eager mode except in a
narrow band around the thresholds, because kernels may round differently with the batch size.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from tdumpra import checks
from tdumpra.core.gate import GateSignals
from tdumpra.data.images.framing import EvalTransform
from tdumpra.data.images.new import Framed, Image, Pixels, read_images
from tdumpra.errors import BrokenImageError
from tdumpra.method.bank import Exemplar
from tdumpra.method.decision import Decided
from tdumpra.method.evidence import Evidence, explain
from tdumpra.networks.build import Encoding, arithmetic
from tdumpra.networks.model_file import Encoder, Model
from tdumpra.networks.settings import Precision

Mode = Literal["lazy", "eager"]
_NOT_FINITE = "the network's output for this image is not finite: its weights may be damaged, or the precision too low"


class Prediction(NamedTuple):
    """The outcome for one image."""

    path: str
    label: str
    probabilities: dict[str, float]
    opened: bool
    signals: dict[str, float] | None  # None where the bank was not asked; ``label_cls`` and ``label_sim`` are integers
    evidence: Evidence | None  # None unless asked for
    error: str | None = None  # why there is no prediction
    # with evidence:
    pixels: Pixels | None = None  # the framed image, as the network that matches prototypes gets it
    picture: Pixels | None = None  # the image as it was decoded, scaled down if it is large
    exemplar: Exemplar | None = None  # the training image that it was recognised as


Recognise = Callable[[Image, Pixels], Exemplar | None]


class Batch(NamedTuple):
    """A decided batch. ``decided`` and ``z`` hold only the rows about which the bank was asked."""

    p: Tensor
    opened: Tensor
    finite: Tensor  # whether the networks gave finite numbers
    place: dict[int, int]  # from a row of the batch to its row in ``decided`` and ``z``
    decided: Decided | None
    z: Tensor | None


class Predictor:
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
        self.device = _check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._classifier, self._retrieval = model.build(self.device, trusted=trusted)
        self.rows_seen = self.rows_matched = 0

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Predictor:
        """Load a model file; options as in the class."""
        return cls(Model.read(path), **options)

    def predict(
        self,
        images: Sequence[str | Path],
        *,
        batch_size: int = 64,
        evidence: bool = False,
        groups: Sequence[str | None] | None = None,
        masks: Sequence[str | Path | None] | None = None,
        recognise: Recognise | None = None,
    ) -> Iterator[Prediction]:
        """Yield predictions in order. An image that cannot be read or decided gives one with its ``error``.

        Args:
            images: files.
            batch_size: how many at once.
            evidence: ask the bank about every image, and attach the evidence, the picture and the framed pixels.
            groups: lesion or patient of each image, as in training: evidence shows no training image of the same.
            masks: files of the lesion's segmentation, nonzero inside, for a model that :attr:`cuts_out` lesions; an
                image without one is seen whole.
            recognise: with evidence, tells from an image and its pixels, framed for the classifier, which training
                image it is. Without a group of its own, it gets that image's.
        """
        checks.check_count(batch_size, "batch_size")
        paths = _listed(images)
        own = _one_each(groups, "groups", len(paths))
        outlines = [None if mask is None else Path(mask) for mask in _one_each(masks, "masks", len(paths))]
        if self.cuts_out and None in outlines:
            warnings.warn(
                "the model was trained on lesions that were cut out along their masks: an image without a mask is seen "
                "whole, as few were in training",
                stacklevel=2,
            )
        if not self.cuts_out and any(outlines):
            warnings.warn("the model looks at whole images: their masks change nothing", stacklevel=2)
        cases = [Image(Path(path), mask) for path, mask in zip(paths, outlines, strict=True)]
        framings = (self.model.classifier.transform.framing, self.matcher[1].framing)
        read = read_images(cases, *framings, picture=evidence)
        for start in range(0, len(paths), batch_size):
            some = slice(start, start + batch_size)
            found = list(itertools.islice(read, batch_size))
            yield from self._predict_batch(cases[some], found, own[some], evidence, recognise)

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
        return self._run(self.matcher[0], self.model.retrieval or self.model.classifier, pixels).z

    def pictures(self, evidence: Evidence) -> dict[str, np.ndarray]:
        """Return small pictures (h, w, 3) of the training images behind ``evidence``, where the model holds them."""
        held = self.model.thumbnails
        return {name: held[name].numpy() for name in evidence.exemplar_ids if name in held}

    @torch.inference_mode()
    def decide(self, pixels: Tensor, second: Tensor | None = None, *, eager: bool = False) -> Batch:
        """Decide transformed images (n, 3, s, s).

        ``second`` holds the same images for the second network, where its preprocessing differs.
        """
        decision = self.model.decision
        first = self._run(self._classifier, self.model.classifier, pixels)
        p = first.logits.double().softmax(1).cpu()
        final = decision.classifier(p).clone()
        finite = first.logits.isfinite().all(1).cpu()
        self.rows_seen += len(p)
        asked = torch.ones(len(p), dtype=torch.bool)
        if self._retrieval is not None and self.mode == "lazy" and not eager:
            asked = final.amax(1) < decision.thresholds.theta
        rows, opened = asked.nonzero().flatten(), torch.zeros(len(p), dtype=torch.bool)
        if not len(rows):
            return Batch(final, opened, finite, {}, None, None)
        if self._retrieval is None:
            z = first.z
        else:
            z = self.embed((pixels if second is None else second)[rows.to(pixels.device)])
            self.rows_matched += len(rows)
        z = z.float().cpu()
        finite[rows] &= z.isfinite().all(1)
        decided = decision.decide(p[rows], z)
        final[rows], opened[rows] = decided.p, decided.opened
        return Batch(final, opened, finite, {row: j for j, row in enumerate(rows.tolist())}, decided, z)

    def _run(self, network: nn.Module, encoder: Encoder, pixels: Tensor) -> Encoding:
        with arithmetic(self.precision or encoder.precision, self.device):
            encoding: Encoding = network(pixels)
        return encoding

    def _predict_batch(
        self,
        images: list[Image],
        read: list[Framed | BrokenImageError],
        groups: list[str | None],
        evidence: bool,
        recognise: Recognise | None,
    ) -> Iterator[Prediction]:
        transforms = (self.model.classifier.transform, self.matcher[1])
        framed = {image: each for image, each in zip(images, read, strict=True) if isinstance(each, Framed)}
        numbers = {image: i for i, image in enumerate(framed)}
        if framed:
            first = self._transformed(transforms[0], [each.first for each in framed.values()])
            same = transforms[0] == transforms[1]
            second = None if same else self._transformed(transforms[1], [each.second for each in framed.values()])
            batch = self.decide(first, second, eager=evidence)
        for image, each, group in zip(images, read, groups, strict=True):
            if isinstance(each, BrokenImageError):
                yield Prediction(str(image.path), "", {}, False, None, None, str(each))
                continue
            prediction = self._prediction(image.path, batch, numbers[image])
            if evidence and prediction.error is None:
                exemplar = None if recognise is None else recognise(image, each.first)
                own = exemplar.group if exemplar is not None and group is None else group
                found = self._explain(batch, numbers[image], own)
                prediction = prediction._replace(
                    evidence=found, pixels=each.second, picture=each.picture, exemplar=exemplar
                )
            yield prediction

    def _transformed(self, transform: EvalTransform, framed: list[Pixels]) -> Tensor:
        return transform(torch.from_numpy(np.stack(framed)).to(self.device))

    def _prediction(self, path: Path, batch: Batch, i: int) -> Prediction:
        if not batch.finite[i]:
            return Prediction(str(path), "", {}, False, None, None, _NOT_FINITE)
        names, p, signals = self.model.class_names, batch.p[i].tolist(), None
        if batch.decided is not None and i in batch.place:
            columns = batch.decided.signals._asdict().items()
            signals = {name: column[batch.place[i]].item() for name, column in columns}
        label = names[int(batch.p[i].argmax())]
        return Prediction(str(path), label, dict(zip(names, p, strict=True)), bool(batch.opened[i]), signals, None)

    def _explain(self, batch: Batch, i: int, group: str | None) -> Evidence | None:
        if batch.decided is None or batch.z is None:
            return None
        row, names = slice(i, i + 1), self.model.class_names  # with evidence, the bank was asked about every row
        p, opened, signals, p_cls, p_sim = batch.decided
        decided = Decided(p[row], opened[row], GateSignals(*(each[row] for each in signals)), p_cls[row], p_sim[row])
        return explain(self.model.decision, p[row], batch.z[row], class_names=names, group=group, decided=decided)


def _listed(values: str | Path | Sequence[Any]) -> list[Any]:
    return [values] if isinstance(values, str | Path) else list(values)


def _one_each(values: Any, name: str, n: int) -> list[Any]:
    """Return one value for each image, ``None`` for all where nothing was given."""
    each = [None] * n if values is None else _listed(values)
    if len(each) != n:
        raise ValueError(f"{name} needs one entry per image: {n}, not {len(each)}")
    return each


def _check_device(asked: str | torch.device) -> torch.device:
    """Return a device that can compute here; PyTorch knows the names of many that cannot."""
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise ValueError(f"device must be 'cpu', 'cuda' or the like, not {asked!r}") from error
    try:
        torch.empty(0, device=device)
    except Exception as error:  # each backend that is missing raises its own
        raise ValueError(f"PyTorch cannot compute on the device {str(device)!r} here: use 'cpu'") from error
    if device.type == "meta":  # shapes without numbers
        raise ValueError("the device 'meta' holds no numbers: use 'cpu'")
    return device
