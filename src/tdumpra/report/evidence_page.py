"""The evidence behind one decision as a page: what a reviewer needs, in words that need no training."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from numpy.typing import ArrayLike
from PIL import Image

from tdumpra.artifacts import jsonable
from tdumpra.method.evidence import Clause, Evidence, Match, apart
from tdumpra.report import kit, reading

Picture = ArrayLike | Image.Image  # an array, a torch tensor on the CPU, or Pillow's

SHOWN_EXEMPLARS = 4  # of each prototype
SHOWN_CLASSES = 12  # in the table of probabilities; the rest are one line

_IMAGE_SIZE, _EXEMPLAR_SIZE = 512, 160  # pixels of the longer side
NO_PICTURE = "pictures of the training images were not handed over with the evidence"
NO_IMAGE = "This case came as probabilities and an embedding: there is no picture of it."


class Heatmap(NamedTuple):
    """A saliency map laid over what the network saw, and a sentence on what it shows."""

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
    """One self-contained HTML page.

    Args:
        evidence: why the case was decided as it was.
        case_id: its name for people.
        image: its picture.
        no_image: what stands in the picture's place where there is none.
        truth: the reference label, where it is known; the page then says whether the gate fixed or broke the case.
        pictures: training images by id, as many as there are.
        missing_reason: why some of them are missing; shown with their ids if any are.
        saliency: which parts of the picture the nearest prototype responds to.
        notes: further sentences for the reader, shown under the verdict.
        back_link: address and words of a link to where the reader came from.
    """
    shown = pictures or {}
    groups = _Prototypes.of(evidence, shown)
    return kit.render(
        "evidence.html",
        evidence=evidence,
        case_id=case_id,
        final=evidence.class_names[evidence.label],
        said_classifier=evidence.class_names[evidence.label_classifier],
        said_similarity=evidence.class_names[evidence.label_similarity],
        moved=evidence.label != evidence.label_classifier,
        headline=reading.headline(evidence),
        sentence=evidence.sentence[:1].upper() + evidence.sentence[1:] + ".",
        truth=truth,
        outcome=reading.outcome(evidence, truth),
        image=None if image is None else kit.data_uri(image, size=_IMAGE_SIZE),
        no_image=no_image,
        heatmap=saliency and {"src": kit.data_uri(saliency.picture, size=_IMAGE_SIZE), "sentence": saliency.sentence},
        notes=notes,
        classes=_class_rows(evidence),
        hidden_classes=_hidden_classes(evidence),
        clauses=[_clause_row(clause) for clause in evidence.clauses],
        prototypes=groups,
        missing=_missing(evidence, shown),
        missing_reason=missing_reason,
        own_group=reading.own_group(evidence),
        familiarity=reading.familiarity(evidence),
        guarantee=reading.guarantee(evidence),
        spread=reading.spread(evidence),
        download=_download(evidence, case_id, truth),
        download_name=kit.page_name(case_id).removesuffix(".html") + ".json",
        back_link=back_link,
    )


def _class_rows(evidence: Evidence) -> list[dict[str, Any]]:
    """The classes that anyone thinks likely, in the final order; each with its three probabilities."""
    columns = (evidence.p_classifier, evidence.p_similarity, evidence.p)
    tops = (evidence.label_classifier, evidence.label_similarity, evidence.label)
    return [
        {
            "name": evidence.class_names[c],
            "cells": [{"p": p[c], "top": c == top} for p, top in zip(columns, tops, strict=True)],
        }
        for c in _shown_classes(evidence)
    ]


def _shown_classes(evidence: Evidence) -> list[int]:
    columns = (evidence.p_classifier, evidence.p_similarity, evidence.p)
    likely = sorted(range(len(evidence.p)), key=lambda c: -max(p[c] for p in columns))[:SHOWN_CLASSES]
    return sorted(likely, key=lambda c: (-evidence.p[c], -evidence.p_similarity[c], c))


def _hidden_classes(evidence: Evidence) -> str | None:
    hidden = set(range(len(evidence.p))) - set(_shown_classes(evidence))
    if not hidden:
        return None
    largest = max(max(evidence.p_classifier[c], evidence.p_similarity[c], evidence.p[c]) for c in hidden)
    return f"{len(hidden)} further classes have at most {largest:.1%} each; the data behind this page hold them all."


def _clause_row(clause: Clause) -> dict[str, Any]:
    words = reading.CLAUSES[clause.name]
    value, limit = apart(clause.value, clause.threshold)
    return {
        "name": clause.name,
        "question": words.question,
        "meaning": words.meaning,
        "statement": clause.statement,
        "holds": clause.holds,
        "asked": clause.asked,
        "value": value if words.needs else ("yes" if clause.holds else "no"),
        "needed": "any" if not clause.asked else f"{words.needs} {limit}" if words.needs else "yes",
    }


@dataclass(frozen=True)
class _Prototypes:
    """The nearest prototypes, those of the final class apart from the others."""

    supporting: list[dict[str, Any]]
    opposing: list[dict[str, Any]]
    counted: int

    @classmethod
    def of(cls, evidence: Evidence, pictures: Mapping[str, Picture]) -> _Prototypes:
        counted = len(evidence.matches)
        rows = [
            _prototype(rank if rank <= counted else None, match, match == evidence.opposing, pictures)
            for rank, match in enumerate(evidence.shown, 1)
        ]
        supporting = [row for row in rows if row["match"].label == evidence.label]
        opposing = [row for row in rows if row["match"].label != evidence.label]
        return cls(supporting, opposing, counted)


def _prototype(rank: int | None, match: Match, strongest: bool, pictures: Mapping[str, Picture]) -> dict[str, Any]:
    exemplars = [
        {
            "id": exemplar.id,
            "cosine": exemplar.cosine,
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


def _missing(evidence: Evidence, pictures: Mapping[str, Picture]) -> list[str]:
    shown = {exemplar.id: None for match in evidence.shown for exemplar in match.exemplars[:SHOWN_EXEMPLARS]}
    return [name for name in shown if name not in pictures]


def _download(evidence: Evidence, case_id: str, truth: str | None) -> str:
    content = {"id": case_id, "reference_label": truth, **jsonable(asdict(evidence))}
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return f"data:application/json;base64,{base64.b64encode(text.encode()).decode()}"
