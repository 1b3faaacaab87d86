"""The deterministic part of preprocessing: from pixels of any size to the network's input.

:class:`Framing` brings a photograph to the fixed size at which it is cached; :class:`EvalTransform` holds a framing and
adds what the network needs, so that a model which stores it sees a new file exactly as it saw its validation set.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tdumpra.artifacts import fingerprint
from tdumpra.data.images.decode import DECODER_VERSION, MASK_VERSION, decode_mask
from tdumpra.data.images.resize import resize
from tdumpra.errors import BrokenImageError
from tdumpra.values import check_count, check_positive, check_unit_interval

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float32, UInt8
    from torch import Tensor

Fit = Literal["stretch", "crop"]
Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """Bring a photograph of any size to ``height`` × ``width`` by one antialiased bicubic resize.

    ``stretch`` keeps the whole picture and gives up its proportions: the paper's resize to 224×224. It is the default
    because a lesion's border is diagnostic and often near the edge. ``crop`` keeps the proportions and cuts the longer
    side evenly. Random resized crops are taken from what is framed, so a framing larger than the network's input gives
    them more detail, and one of the data's own proportions (192×256, say) gives them no distortion.

    With ``lesion_margin`` the frame is the lesion's bounding box, widened on each side by that share of its longer
    side, and then to the frame's proportions where the picture has room. A record without a mask keeps its whole frame.
    """

    height: int = 224
    width: int = 224
    fit: Fit = "stretch"
    lesion_margin: float | None = None

    def __post_init__(self) -> None:
        check_count(self.height, "height", least=8)
        check_count(self.width, "width", least=8)
        if self.fit not in ("stretch", "crop"):
            raise ValueError(f"fit must be 'stretch' or 'crop', not {self.fit!r}")
        if self.lesion_margin is not None:
            check_unit_interval(self.lesion_margin, "lesion_margin", upper=10.0)

    @property
    def nbytes(self) -> int:
        """Bytes of one framed image."""
        return self.height * self.width * 3

    @property
    def fingerprint(self) -> str:
        """Return a hash that changes when the same file would give other pixels."""
        of_masks = [] if self.lesion_margin is None else [MASK_VERSION]
        return fingerprint(json.dumps([DECODER_VERSION, asdict(self), *of_masks], sort_keys=True))

    def apply(
        self, pixels: UInt8[np.ndarray, "h w 3"], mask: UInt8[np.ndarray, "mh mw"] | None = None
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Frame one decoded picture."""
        height, width = pixels.shape[:2]
        whole: Box = (0.0, 0.0, float(width), float(height))
        box = whole
        if mask is not None and self.lesion_margin is not None and mask.any():
            box = self._around(_bounding_box(mask, width, height), width, height)
        if self.fit == "crop":
            box = _centred(box, self.width / self.height)
        if (height, width) == (self.height, self.width) and box == whole:
            return pixels
        left, top = min(round(box[0]), width - 1), min(round(box[1]), height - 1)
        right, bottom = max(round(box[2]), left + 1), max(round(box[3]), top + 1)  # a speck is one pixel at least
        return resize(pixels[top:bottom, left:right], self.height, self.width)

    def mask_of(self, path: Path | None) -> UInt8[np.ndarray, "h w"] | None:
        """Decode the lesion mask, if this framing uses one."""
        if path is None or self.lesion_margin is None:
            return None
        try:
            return decode_mask(path)
        except BrokenImageError as error:
            raise BrokenImageError(f"its lesion mask: {error}") from error

    def _around(self, lesion: Box, width: int, height: int) -> Box:
        left, top, right, bottom = lesion
        margin = (self.lesion_margin or 0.0) * max(right - left, bottom - top)
        box_width, box_height = right - left + 2 * margin, bottom - top + 2 * margin
        aspect = self.width / self.height
        box_width, box_height = max(box_width, box_height * aspect), max(box_height, box_width / aspect)
        box_left, box_right = _slide_inside((left + right) / 2, box_width, width)
        box_top, box_bottom = _slide_inside((top + bottom) / 2, box_height, height)
        return box_left, box_top, box_right, box_bottom


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTransform:
    """The preprocessing at validation, test and prediction time; stored with the model.

    A framed image that does not have ``size`` yet is resized once more.
    """

    framing: Framing = field(default_factory=Framing)
    size: int = 224
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __post_init__(self) -> None:
        check_count(self.size, "size", least=8)
        if len(self.mean) != 3 or len(self.std) != 3:
            raise ValueError(f"mean and std need one value for each of R, G, B; got {self.mean} and {self.std}")
        for value in self.mean:
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"mean must hold finite numbers, not {value!r}")
        for value in self.std:
            check_positive(value, "std")

    @property
    def fingerprint(self) -> str:
        """Return a hash that ties a model, its embeddings and its bank to this preprocessing."""
        return fingerprint(json.dumps(self.to_dict(), sort_keys=True))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; :meth:`from_dict` reads them back."""
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std), "decoder": DECODER_VERSION}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EvalTransform:
        """Return the transform that :meth:`to_dict` described; an unknown or missing key is an error."""
        expected = {f.name for f in fields(cls)} | {"decoder"}
        if set(values) != expected or set(values["framing"]) != {f.name for f in fields(Framing)}:
            odd = sorted(set(values) ^ expected) or sorted(values["framing"])
            raise ValueError(f"not the description of an evaluation transform: unexpected or missing {', '.join(odd)}")
        if values["decoder"] != DECODER_VERSION:
            raise ValueError(
                f"made with image decoder version {values['decoder']}, and this tdumpra has version {DECODER_VERSION}: "
                "the same file would give other pixels"
            )
        return cls(
            framing=Framing(**values["framing"]),
            size=values["size"],
            mean=tuple(values["mean"]),
            std=tuple(values["std"]),
        )

    def __call__(self, images: UInt8[Tensor, "n h w 3"]) -> Float32[Tensor, "n 3 size size"]:
        """Turn framed images, on any device, into the network's input."""
        import torch  # the networks' side of it: frames are made without

        x = images.permute(0, 3, 1, 2).to(torch.float32, copy=True)
        if x.shape[2:] != (self.size, self.size):
            x = torch.nn.functional.interpolate(x, (self.size, self.size), mode="bicubic", antialias=True).clamp(0, 255)
        mean, std = (_colour(tuple(values), x.device) for values in (self.mean, self.std))
        return x.div_(255).sub_(mean).div_(std)  # x is a copy: nobody else sees it


@lru_cache(maxsize=64)
def _colour(values: tuple[float, ...], device: torch.device) -> Float32[Tensor, "3 1 1"]:
    """Return numbers for each colour on the device, where copying them for each batch would make it wait."""
    import torch

    with torch.inference_mode(False):  # else a pass with gradients could not use what a prediction left here
        return torch.tensor(values, device=device).view(3, 1, 1)


def _bounding_box(mask: UInt8[np.ndarray, "mh mw"], width: int, height: int) -> Box:
    """Return the box of the nonzero pixels in the picture's own pixels: masks are often stored smaller."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    across, down = width / mask.shape[1], height / mask.shape[0]
    return columns[0] * across, rows[0] * down, (columns[-1] + 1) * across, (rows[-1] + 1) * down


def _slide_inside(centre: float, length: float, limit: int) -> tuple[float, float]:
    """Return the interval of that length nearest to ``centre`` within 0…limit."""
    length = min(length, limit)
    start = min(max(centre - length / 2, 0.0), limit - length)
    return start, start + length


def _centred(box: Box, aspect: float) -> Box:
    """Return the largest central part of ``box`` with that width over height."""
    left, top, right, bottom = box
    width = min(right - left, (bottom - top) * aspect)
    height = min(bottom - top, (right - left) / aspect)
    middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
    return middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2
