"""Which parts of an image its closeness to a prototype rests on: hide one part after another, and look what is lost.

Occlusion asks the network as it is, so it serves convolutions, transformers and any ``nn.Module`` alike. The sliding
windows are captum's, loaded when they are first needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from tdumpra.errors import MissingExtraError
from tdumpra.method.evidence import Match
from tdumpra.networks.predict import Predictor

_WINDOWS_PER_SIDE = 8  # a window hides an eighth of each side; neighbours overlap by half
_WINDOWS_AT_ONCE = 32


class Saliency(NamedTuple):
    """What the matching network saw, and how much of its cosine each pixel's surroundings carry."""

    pixels: UInt8[np.ndarray, "s s 3"]
    drop: Float32[np.ndarray, "s s"]  # cosine that is lost where it is hidden; below zero: gained
    cosine: float


def occlusion_saliency(
    predictor: Predictor, image: str | Path, match: Match, mask: str | Path | None = None
) -> Saliency:
    """Hide parts of an image behind its own mean colour, and see how its cosine to a matched prototype falls."""
    try:
        from captum.attr import Occlusion
    except ImportError as error:
        raise MissingExtraError("captum", "saliency", "saliency") from error
    transform = predictor.matcher[1]
    prototype = predictor.model.decision.bank.prototypes[match.label, match.prototype].to(predictor.device)

    def cosine(images: Tensor) -> Tensor:
        z = predictor.embed(images)
        return torch.nn.functional.cosine_similarity(z.float(), prototype.float()[None], dim=1)

    framed = transform.read(Path(image), None if mask is None else Path(mask))
    pixels = transform(torch.from_numpy(framed)[None].to(predictor.device))
    window = max(1, transform.size // _WINDOWS_PER_SIDE)
    stride = max(1, window // 2)
    with torch.inference_mode():
        whole = float(cosine(pixels))
        drop = Occlusion(cosine).attribute(
            pixels,
            sliding_window_shapes=(3, window, window),
            strides=(3, stride, stride),
            baselines=pixels.mean((2, 3), keepdim=True).expand_as(pixels),
            perturbations_per_eval=_WINDOWS_AT_ONCE,
        )
    mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (transform.mean, transform.std))
    seen = ((pixels[0] * std + mean).clamp(0, 1) * 255).round().byte().permute(1, 2, 0)
    return Saliency(seen.cpu().numpy(), drop[0, 0].float().cpu().numpy(), whole)
