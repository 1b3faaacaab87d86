"""The evidence behind one decision as a page: what a reviewer needs, in words that need no training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from tdumpra.artifacts import jsonable
from tdumpra.method.evidence import Clause, Evidence, Match, apart
from tdumpra.networks.saliency import Saliency
from tdumpra.report import kit, reading

Picture = ArrayLike | Image.Image  # an array, a torch tensor on the CPU, or Pillow's

SHOWN_EXEMPLARS = 4  # of each prototype
SHOWN_CLASSES = 12  # in the table of probabilities; the rest are one line

_IMAGE_SIZE, _EXEMPLAR_SIZE = 512, 160  # pixels of the longer side
NO_PICTURE = "pictures of the training images were not handed over with the evidence"
_ORANGE = np.array([255.0, 150.0, 0.0])  # apart from grey for every kind of colour vision, and in print
_STRONGEST = 0.72  # opacity where the most is lost, so that the lesion still shows
_NEGLIGIBLE = 0.005  # of cosine
NO_IMAGE = "This case came as probabilities and an embedding: there is no picture of it."


class Heatmap(NamedTuple):
    """A saliency map over what the network saw, and a sentence on what it shows."""

    picture: Picture
    sentence: str


def evidence_page(
    evidence: Evidence,
    *,
    case_id: str,
    image: Picture | None = None,
    no_image: str = NO_IMAGE,
    truth: str | None = None,
    pictures: Mapping[str, Picture] | None = None,
    missing_reason: str = NO_PICTURE,
    saliency: Heatmap | None = None,
    notes: Sequence[str] = (),
    back_link: tuple[str, str] | None = None,
) -> str:
    """Return one self-contained HTML page.

    With ``truth``, the reference label, the page says whether the gate fixed or broke the case. ``pictures`` holds
    training images by id; those that are missing are named with ``missing_reason``. ``notes`` are shown under the
    verdict; ``back_link`` is the address and the words of a link to where the reader came from.
    """
    values = evidence_values(evidence, case_id=case_id, truth=truth, pictures=pictures or {})
    return kit.render(
        "evidence.html",
        image=None if image is None else kit.data_uri(image, size=_IMAGE_SIZE),
        no_image=no_image,
        heatmap=saliency and {"src": kit.data_uri(saliency.picture, size=_IMAGE_SIZE), "sentence": saliency.sentence},
        notes=notes,
        missing_reason=missing_reason,
        back_link=back_link,
        **values,
    )


def evidence_values(
    evidence: Evidence, *, case_id: str, truth: str | None, pictures: Mapping[str, Picture]
) -> dict[str, Any]:
    """Return what ``evidence.html`` shows of the evidence itself."""
    nearest = len(evidence.matches)
    prototypes = [
        _prototype(rank if rank <= nearest else None, match, match == evidence.opposing, pictures)
        for rank, match in enumerate(evidence.shown, 1)
    ]
    shown, hidden = _classes(evidence)
    ids = dict.fromkeys(each["id"] for row in prototypes for each in row["exemplars"])
    content = {"id": case_id, "reference_label": truth, **jsonable(asdict(evidence))}
    return {
        "evidence": evidence,
        "case_id": case_id,
        "final": evidence.class_names[evidence.label],
        "said_classifier": evidence.class_names[evidence.label_classifier],
        "headline": reading.headline(evidence),
        "truth": truth,
        "outcome": reading.outcome(evidence, truth),
        "classes": shown,
        "hidden_classes": hidden,
        "clauses": [_clause_row(clause) for clause in evidence.clauses if clause.asked],
        "unasked": reading.unasked(evidence),
        "prototypes": prototypes,
        "hardly_apart": reading.hardly_apart(evidence),
        "shares_out_of_order": reading.shares_out_of_order(evidence),
        "missing": [name for name in ids if name not in pictures],
        "own_group": reading.own_group(evidence),
        "familiarity": reading.familiarity(evidence),
        "guarantee": reading.guarantee(evidence),
        "spread": reading.spread(evidence),
        "download": kit.download(json.dumps(content, indent=2, ensure_ascii=False), "application/json"),
        "download_name": kit.page_name(case_id).removesuffix(".html") + ".json",
    }


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


def _classes(evidence: Evidence) -> tuple[list[dict[str, Any]], str | None]:
    """Return the classes that any opinion finds likely, in the final order, and a sentence on the others."""
    columns = (evidence.p_classifier, evidence.p_similarity, evidence.p)
    tops = (evidence.label_classifier, evidence.label_similarity, evidence.label)
    largest = [max(p[c] for p in columns) for c in range(len(evidence.p))]
    likely = sorted(range(len(evidence.p)), key=lambda c: -largest[c])
    rows = [
        {
            "name": evidence.class_names[c],
            "cells": [{"p": p[c], "top": c == top} for p, top in zip(columns, tops, strict=True)],
        }
        for c in sorted(likely[:SHOWN_CLASSES], key=lambda c: (-evidence.p[c], -evidence.p_similarity[c], c))
    ]
    hidden = likely[SHOWN_CLASSES:]
    if not hidden:
        return rows, None
    return rows, (
        f"{len(hidden)} further classes have at most {largest[hidden[0]]:.1%} each; the data behind this page hold "
        "them all."
    )


def _clause_row(clause: Clause) -> dict[str, Any]:
    words = reading.CLAUSES[clause.name]
    value, limit = apart(clause.value, clause.threshold)
    return {
        **asdict(clause),
        "question": words.question,
        "meaning": words.meaning,
        "value": value if words.needs else ("yes" if clause.holds else "no"),
        "needed": f"{words.needs} {limit}" if words.needs else "yes",
    }


def _prototype(rank: int | None, match: Match, strongest: bool, pictures: Mapping[str, Picture]) -> dict[str, Any]:
    exemplars = [
        {
            "id": exemplar.id,
            "src": kit.data_uri(pictures[exemplar.id], size=_EXEMPLAR_SIZE) if exemplar.id in pictures else None,
        }
        for exemplar in match.exemplars[:SHOWN_EXEMPLARS]
    ]
    return {
        "rank": rank,
        "match": match,
        "strongest": strongest,
        "exemplars": exemplars,
        "pictured": any(each["src"] for each in exemplars),
        "absence": reading.absence(match) if not exemplars else None,
    }
