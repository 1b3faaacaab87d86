"""The outcome for one image, whatever computed it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:  # evidence needs torch, a prediction does not
    from jaxtyping import Float32

    from tdumpra.data.images.new import Pixels
    from tdumpra.method.bank import Exemplar
    from tdumpra.method.evidence import Evidence

NOT_FINITE = "the network's output for this image is not finite: its weights may be damaged, or the precision too low"


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
    # with embeddings:
    embedding: Float32[np.ndarray, " d"] | None = None  # in the bank's space, of length one
    features: Float32[np.ndarray, " f"] | None = None  # pooled, as the classifier's head gets them


def failed(path: str | Path, reason: str) -> Prediction:
    """Return the outcome for an image that could not be predicted."""
    return Prediction(str(path), "", {}, False, None, None, reason)
