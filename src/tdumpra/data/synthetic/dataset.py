"""The synthetic lesions as a data source: records that are rendered when they are read."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from tdumpra.checks import check_count
from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.synthetic.latent import appearance, draw_lesions, mixture, stream
from tdumpra.data.synthetic.lesion import paint_lesion
from tdumpra.data.synthetic.modes import CLASS_NAMES, Traits
from tdumpra.data.synthetic.photograph import draw_skin, photograph

SIZE_MIN, SIZE_MAX = 32, 512

_PHOTOGRAPHS = (0.70, 0.22, 0.08)  # shares of lesions with one, two and three photographs; HAM10000: 0.75, 0.19, 0.06
_ID = re.compile(r"syn_(\d+)_(\d)")  # lesion, photograph
_COUNTS, _INDIVIDUAL, _CAMERA = 2, 3, 4  # random streams, beside those of latent.py


@dataclass(frozen=True, slots=True)
class LesionReader:
    """Render a record. The pixels depend on these fields and the record's id alone."""

    seed: int
    size: int
    ambiguous: float

    def __call__(self, record: Record) -> UInt8[np.ndarray, "size size 3"]:
        """Return the record's picture."""
        parts = _ID.fullmatch(record.id)
        if parts is None:
            raise ValueError(f"{record.id!r} is not the id of a synthetic record")
        lesion, number = int(parts[1]), int(parts[2])
        drawn = appearance(lesion, seed=self.seed, mix=mixture(self.ambiguous))
        individual = stream(self.seed, _INDIVIDUAL, lesion)
        skin = draw_skin(individual)
        layers = paint_lesion(Traits(*drawn.traits.clip(0, 1)), individual, self.size)
        return photograph(layers, skin, stream(self.seed, _CAMERA, lesion, number), self.size)


def synthetic_manifest(*, n: int = 1400, seed: int = 0, size: int = 96, ambiguous: float = 0.2) -> Manifest:
    """Return photographs of synthetic skin lesions: seven classes, long-tailed, several modes each, some ambiguous.

    A lesion has one to three photographs, which share its group, appearance and outline, and differ in pose, light,
    hair and noise. A record's ``meta`` holds its ``mode``, whether it is ``ambiguous``, and its ``posterior``, the
    exact class probabilities given the appearance, which :func:`bayes_posterior` collects.

    Args:
        n: photographs. All seven classes occur from about 200 on.
        seed: names the data set; another seed is an independent one.
        size: side of the square picture in pixels.
        ambiguous: share of the lesions that stand between two look-alike classes, at most 0.4. The Bayes rule is
            right on about ``1 - 0.4 * ambiguous`` of the pictures.
    """
    check_count(n, "n")
    check_count(size, "size", least=SIZE_MIN)
    if size > SIZE_MAX:
        raise ValueError(f"size must be at most {SIZE_MAX}, not {size}")
    check_count(seed, "seed", least=0)
    counts = stream(int(seed), _COUNTS).choice([1, 2, 3], p=_PHOTOGRAPHS, size=n)
    numbered = [(lesion, number) for lesion, count in enumerate(counts.tolist()) for number in range(count)][:n]
    drawn = draw_lesions(numbered[-1][0] + 1, seed=seed, ambiguous=ambiguous)
    mix = mixture(float(ambiguous))
    meta = [
        {
            "mode": mix.names[component],
            "ambiguous": "yes" if mix.is_bridge[component] else "no",
            "posterior": " ".join(map(repr, row)),
        }
        for component, row in zip(drawn.components.tolist(), drawn.posterior.tolist(), strict=True)
    ]
    records = tuple(
        Record(f"syn_{lesion:06d}_{number}", None, int(drawn.labels[lesion]), f"syn_{lesion:06d}", meta=meta[lesion])
        for lesion, number in numbered
    )
    ceiling = np.mean([drawn.posterior[lesion].max() for lesion, _ in numbered])
    return Manifest(
        name=f"synthetic (seed {seed}, {size} px, {ambiguous:g} ambiguous)",
        class_names=CLASS_NAMES,
        records=records,
        reader=LesionReader(int(seed), int(size), float(ambiguous)),
        notes=(f"the best possible classifier is expected to be right on {ceiling:.1%} of these images",),
    )


def bayes_posterior(manifest: Manifest) -> NDArray[np.float64]:
    """Return the exact class probabilities of each record of a synthetic manifest, or of a part of one: (n, 7)."""
    missing = next((r.id for r in manifest.records if "posterior" not in r.meta), None)
    if missing is not None:
        raise ValueError(f"only synthetic records know their posterior, and {missing!r} has none")
    return np.array([[float(p) for p in r.meta["posterior"].split()] for r in manifest.records])
