"""Occlusion maps: hide one part of an image after another, and measure how far its match to a prototype falls.

Occlusion needs nothing but the network's output, so it works for convolutions, transformers and any ``nn.Module``. The
sliding windows are captum's, loaded when they are first needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from tdumpra.data.images.new import Pixels
from tdumpra.errors import MissingExtraError
from tdumpra.method.evidence import Match
from tdumpra.networks.predict import Predictor

_WINDOWS_PER_SIDE = 8  # a window hides an eighth of each side; neighbours overlap by half
_WINDOWS_AT_ONCE = 32


class Saliency(NamedTuple):
    """The image as the matching network saw it, and the cosine that hiding each part costs."""

    pixels: UInt8[np.ndarray, "s s 3"]
    drop: Float32[np.ndarray, "s s"]  # of the cosine where a part is hidden; below zero where hiding raises it
    cosine: float


def occlusion_saliency(predictor: Predictor, pixels: Pixels, match: Match) -> Saliency:
    """Hide parts of a framed image behind its mean colour, and measure the cosine to a matched prototype.

    ``pixels`` is what a prediction with evidence carries.
    """
    try:
        from captum.attr import Occlusion
    except ImportError as error:
        raise MissingExtraError("captum", "saliency", "saliency") from error
    transform = predictor.matcher[1]
    prototype = predictor.model.decision.bank.prototypes[match.label, match.prototype].to(predictor.device)

    def cosine(images: Tensor) -> Tensor:
        z = predictor.embed(images)
        return torch.nn.functional.cosine_similarity(z.float(), prototype.float()[None], dim=1)

    images = transform(torch.from_numpy(pixels)[None].to(predictor.device))
    window = max(1, transform.size // _WINDOWS_PER_SIDE)
    stride = max(1, window // 2)
    with torch.inference_mode():
        whole = float(cosine(images))
        drop = Occlusion(cosine).attribute(
            images,
            sliding_window_shapes=(3, window, window),
            strides=(3, stride, stride),
            baselines=images.mean((2, 3), keepdim=True).expand_as(images),
            perturbations_per_eval=_WINDOWS_AT_ONCE,
        )
    mean, std = (images.new_tensor(values).view(3, 1, 1) for values in (transform.mean, transform.std))
    seen = ((images[0] * std + mean).clamp(0, 1) * 255).round().byte().permute(1, 2, 0)
    return Saliency(seen.cpu().numpy(), drop[0, 0].float().cpu().numpy(), whole)
