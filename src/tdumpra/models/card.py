"""The card of a model of either kind."""

from __future__ import annotations

from tdumpra.errors import ArtifactError
from tdumpra.evaluation.card import card
from tdumpra.evaluation.card_subject import Subject, counts
from tdumpra.foreign import reading
from tdumpra.models.opened import OpenedModel
from tdumpra.networks.card import model_card
from tdumpra.networks.model_file import Model


def card_of(model: OpenedModel, name: str) -> str:
    """Return the card as Markdown. Figures in a file that make no sense are told in a sentence."""
    content = model.content
    with reading(model.path, "tdumpra model", ArtifactError):
        if isinstance(content, Model):
            return model_card(content, name)
        return card(
            Subject(
                name=name,
                class_names=model.class_names,
                decision=model.decision,
                networks={},
                preprocessing=None,
                initial=None,
                results=content.evaluation_,
                parts=counts(content.record_, model.class_names),
                lineage=[entry._asdict() for entry in model.lineage],
                thumbnails=0,
            )
        )
