"""A saliency map as a picture: the image in grey, with the parts that the match rests on in orange."""

from __future__ import annotations

import numpy as np

from tdumpra.method.evidence import Match
from tdumpra.networks.saliency import Saliency
from tdumpra.report.evidence_page import Heatmap

_ORANGE = np.array([255.0, 150.0, 0.0])  # apart from grey for every kind of colour vision, and in print
_STRONGEST = 0.72  # opacity where the most is lost, so that the lesion still shows
_NEGLIGIBLE = 0.005  # of cosine


def heatmap(saliency: Saliency, match: Match) -> Heatmap:
    """Lay the map over what the network saw, with a sentence that says what it means."""
    lost = saliency.drop.clip(0)
    most = float(lost.max())
    grey = saliency.pixels.astype(float) @ [0.299, 0.587, 0.114]
    if most < _NEGLIGIBLE:
        sentence = (
            f"Hiding any one part changes the cosine to the nearest prototype ({match.name}) by less than "
            f"{_NEGLIGIBLE}: the match rests on the picture as a whole."
        )
        return Heatmap(np.repeat(grey[..., None], 3, 2).round().astype(np.uint8), sentence)
    opacity = _STRONGEST * (lost / most)[..., None]
    picture = (1 - opacity) * grey[..., None] + opacity * _ORANGE
    sentence = (
        f"Orange: parts that the closeness to the nearest prototype ({match.name}) rests on. Hidden one at a time, "
        f"they lower the cosine by up to {most:.3f} from {saliency.cosine:.3f}. It shows where the network looked, "
        "not whether it is right, nor where disease is."
    )
    return Heatmap(picture.round().clip(0, 255).astype(np.uint8), sentence)
