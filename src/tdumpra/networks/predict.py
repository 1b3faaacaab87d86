"""Predictions on images from one file: networks, preprocessing, bank and thresholds, bound together by checksums.

The teacher is lazy. The clause ``top probability < theta`` needs the classifier alone, so only rows below theta get the
second pass: cost 1 + their share. Labels and openings are those of the eager path outside a numerical band around the
thresholds, since kernels may round differently with the batch size.
"""

from __future__ import annotations

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
from tdumpra.errors import BrokenImageError
from tdumpra.method.evidence import Evidence, explain
from tdumpra.networks.build import Encoding, arithmetic
from tdumpra.networks.model_file import Encoder, Model
from tdumpra.networks.settings import Precision

Mode = Literal["lazy", "eager"]


class Prediction(NamedTuple):
    """One image's outcome. ``signals`` and ``evidence`` are ``None`` where the second path was not asked."""

    path: str
    label: str
    probabilities: dict[str, float]
    opened: bool
    signals: dict[str, float] | None  # numbers of the classes, ``label_cls`` and ``label_sim``, are integers
    evidence: Evidence | None
    error: str | None = None  # why there is no prediction, where there is none


class Image(NamedTuple):
    """An image to predict."""

    path: Path
    mask: Path | None = None  # of the lesion, for networks that see it cut out


class Predictor:
    """Predicts images. Load one with :meth:`load`.

    Args:
        model: what ``model.safetensors`` holds.
        mode: ``lazy`` runs the second network only for rows below theta, ``eager`` for all.
        device: where to compute; a GPU if there is one.
        precision: ``float32`` or ``bfloat16``; left out, that of the outputs on which the model was tuned. Another one
            moves labels near the thresholds.
        trusted: names of factories (``package.module:function``) that the model's networks may be built by. A model
            that names any other code is refused.

    Attributes:
        rows_seen: images that went through the classifier so far.
        rows_matched: images that went through the second network as well.
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
        n_classes = len(model.class_names)
        self._classifier = model.classifier.build(n_classes, self.device, trusted=trusted)
        self._retrieval = (
            None if model.retrieval is None else model.retrieval.build(n_classes, self.device, trusted=trusted)
        )
        self.rows_seen = self.rows_matched = 0

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Predictor:
        """From a file; options as in the class."""
        return cls(Model.read(path), **options)

    def predict(
        self,
        images: Sequence[str | Path],
        *,
        batch_size: int = 64,
        evidence: bool = False,
        groups: Sequence[str | None] | None = None,
        masks: Sequence[str | Path | None] | None = None,
    ) -> Iterator[Prediction]:
        """Predictions in order. A broken image gives a prediction with its ``error``, and the others go on.

        Args:
            images: files.
            batch_size: how many at once.
            evidence: ask the second path about every image, and say what it found.
            groups: lesion or patient of each image, as in training: evidence shows no training image of the same.
            masks: files of the lesion's segmentation, nonzero inside, for a model that :attr:`cuts_out` lesions; an
                image without one is seen whole.
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
        asked = [Image(Path(path), mask) for path, mask in zip(paths, outlines, strict=True)]
        for start in range(0, len(paths), batch_size):
            some = slice(start, start + batch_size)
            yield from self._predict_batch(asked[some], own[some], evidence)

    @property
    def cuts_out(self) -> bool:
        """Whether one of the networks sees lesions cut out along their masks."""
        transforms = (self.model.classifier.transform, self.matcher[1])
        return any(transform.framing.lesion_margin is not None for transform in transforms)

    @property
    def matcher(self) -> tuple[nn.Module, EvalTransform]:
        """The network in whose space the bank lives, and the preprocessing of its images."""
        if self.model.retrieval is None or self._retrieval is None:
            return self._classifier, self.model.classifier.transform
        return self._retrieval, self.model.retrieval.transform

    def embed(self, pixels: Tensor) -> Tensor:
        """Embeddings of transformed images (n, 3, s, s) in the bank's space."""
        return self._run(self.matcher[0], self.model.retrieval or self.model.classifier, pixels).z

    def pictures(self, evidence: Evidence) -> dict[str, np.ndarray]:
        """Small pictures (h, w, 3) of the training images behind ``evidence``, as far as the model holds them."""
        held = self.model.thumbnails
        return {name: held[name].numpy() for name in evidence.exemplar_ids if name in held}

    @torch.inference_mode()
    def decide(self, pixels: Tensor, second_pixels: Callable[[Tensor], Tensor], *, eager: bool = False) -> Rows:
        """Decide transformed images (n, 3, s, s); ``second_pixels`` gives those of some rows to the second network."""
        decision = self.model.decision
        first = self._run(self._classifier, self.model.classifier, pixels)
        p = first.logits.double().softmax(1).cpu()
        p_cls = decision.classifier(p)
        self.rows_seen += len(p)
        asked = torch.ones(len(p), dtype=torch.bool)
        if self._retrieval is not None and self.mode == "lazy" and not eager:
            asked = p_cls.amax(1) < decision.thresholds.theta
        rows = asked.nonzero().flatten()
        final, opened = p_cls.clone(), torch.zeros(len(p), dtype=torch.bool)
        if not len(rows):
            return Rows(final, opened, asked, p, None, None)
        if self._retrieval is None or self.model.retrieval is None:
            z = first.z
        else:
            z = self._run(self._retrieval, self.model.retrieval, second_pixels(rows)).z
            self.rows_matched += len(rows)
        z = z.float().cpu()
        decided = decision.decide(p[rows], z)
        final[rows], opened[rows] = decided.p, decided.opened
        return Rows(final, opened, asked, p, decided.signals, z)

    def _run(self, network: nn.Module, encoder: Encoder, pixels: Tensor) -> Encoding:
        with arithmetic(self.precision or encoder.precision, self.device):
            encoding: Encoding = network(pixels)
        return encoding

    def _predict_batch(self, images: list[Image], groups: list[str | None], evidence: bool) -> Iterator[Prediction]:
        transform, second = self.model.classifier.transform, self.matcher[1]
        framed: dict[Image, np.ndarray] = {}
        errors: dict[Image, str] = {}
        for image in images:
            try:
                second.framing.mask_of(image.mask)  # broken now or never
                framed[image] = transform.read(*image)
            except BrokenImageError as error:
                errors[image] = str(error)
        good = list(framed)
        rows = None
        if good:
            pixels = transform(torch.from_numpy(np.stack(list(framed.values()))).to(self.device))
            rows = self.decide(pixels, lambda some: self._second_pixels(good, pixels, some), eager=evidence)
        place = {image: i for i, image in enumerate(good)}
        for image, group in zip(images, groups, strict=True):
            if rows is None or image in errors:
                yield Prediction(str(image.path), "", {}, False, None, None, errors[image])
            else:
                i = place[image]
                prediction = self._prediction(image.path, rows, i)
                yield prediction._replace(evidence=self._explain(rows, i, group)) if evidence else prediction

    def _second_pixels(self, images: list[Image], pixels: Tensor, rows: Tensor) -> Tensor:
        """What the second network sees: the same pixels, unless it was trained with other preprocessing."""
        retrieval = self.model.retrieval
        if retrieval is None or retrieval.transform == self.model.classifier.transform:
            return pixels[rows.to(pixels.device)]
        framed = np.stack([retrieval.transform.read(*images[i]) for i in rows.tolist()])
        return retrieval.transform(torch.from_numpy(framed).to(self.device))

    def _prediction(self, path: Path, rows: Rows, i: int) -> Prediction:
        names, p, signals = self.model.class_names, rows.p[i], None
        if rows.signals is not None and bool(rows.asked[i]):
            j = int(rows.asked[:i].sum())
            signals = {name: column[j].item() for name, column in rows.signals._asdict().items()}
        return Prediction(
            path=str(path),
            label=names[int(p.argmax())],
            probabilities={name: float(value) for name, value in zip(names, p.tolist(), strict=True)},
            opened=bool(rows.opened[i]),
            signals=signals,
            evidence=None,
        )

    def _explain(self, rows: Rows, i: int, group: str | None) -> Evidence | None:
        if rows.z is None:
            return None
        row = slice(i, i + 1)  # of both: whoever asks for evidence asks the second path about every image
        names = self.model.class_names
        return explain(self.model.decision, rows.p_raw[row], rows.z[row], class_names=names, group=group)


class Rows(NamedTuple):
    """A batch, decided: the second path's part exists for the rows in ``asked`` only."""

    p: Tensor
    opened: Tensor
    asked: Tensor
    p_raw: Tensor  # the classifier's, before calibration
    signals: GateSignals | None
    z: Tensor | None


def _listed(images: str | Path | Sequence[str | Path]) -> list[str | Path]:
    return [images] if isinstance(images, str | Path) else list(images)


def _one_each(values: Any, name: str, n: int) -> list[Any]:
    """One value for each image, ``None`` for all where nothing was given."""
    each = [None] * n if values is None else _listed(values)
    if len(each) != n:
        raise ValueError(f"{name} needs one entry per image: {n}, not {len(each)}")
    return each


def _check_device(asked: str | torch.device) -> torch.device:
    """A device that holds tensors here; PyTorch knows the names of many that do not."""
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise ValueError(f"device must be 'cpu', 'cuda' or the like, not {asked!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"PyTorch sees no CUDA device here, and device is {str(device)!r}: use 'cpu'")
    sentence = f"PyTorch cannot compute on the device {str(device)!r} here: use 'cpu'"
    try:
        torch.empty(0, device=device)
    except Exception as error:  # each backend that is not there says so in its own way
        raise ValueError(sentence) from error
    if device.type == "meta":  # shapes without numbers
        raise ValueError(sentence)
    return device
