"""What the API takes and gives, as OpenAPI describes it."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def clean_text(text: str) -> str:
    """Return a text, or raise if it holds signs that are none: they break tables and terminals."""
    if any(unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\n\t" for sign in text.replace("\r\n", "\n")):
        raise ValueError("control characters are not taken")
    return text.replace("\r\n", "\n").strip()


Comment = Annotated[str, Field(max_length=2000), AfterValidator(clean_text)]
Label = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(clean_text)]
Lesion = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(clean_text)]
Confidence = Annotated[int, Field(ge=1, le=5, strict=True)]
Gate = Literal["shut", "opened", "moved"]


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ReadingIn(_In):
    """A reader's answer."""

    label: Label
    confidence: Confidence = Field(description="1, a guess, to 5, certain")
    comment: Comment = ""


class DecisionIn(_In):
    """An adjudicator's label."""

    label: Label
    comment: Comment = ""


class Problem(BaseModel):
    """Why a request was turned away."""

    detail: str
    request_id: str


class Fingerprints(BaseModel):
    """Which model, bank and settings an answer comes from."""

    model: str
    bank: str
    settings: str


class PredictionOut(BaseModel):
    """What the active model says of an image. Nothing of it is stored."""

    label: str
    classifier: str = Field(description="the classifier's label, before the gate")
    gate: Gate
    probabilities: dict[str, float]
    evidence: dict[str, Any] | None
    fingerprints: Fingerprints
    request_id: str


class OpinionOut(BaseModel):
    """What a model said of a case when it came in."""

    active: bool = Field(description="whether this was the active model, and not the shadow")
    label: str
    classifier: str
    retrieval: str
    gate: Gate
    confidence: float
    familiarity: float
    fingerprints: Fingerprints


class ReadingOut(BaseModel):
    """An answer that was given."""

    id: str
    reader: str | None = Field(description="your own name; nobody else's is told")
    label: str
    confidence: int
    comment: str
    informed: bool = Field(description="whether the reader had seen what the model says")
    first: bool
    created_at: str


class DecisionOut(BaseModel):
    """The label of a case."""

    id: str
    label: str
    agreed: bool
    comment: str
    created_at: str


class CaseLine(BaseModel):
    """A case in a list. What the model says is ``null`` where you may not know it yet."""

    id: str
    number: int
    lesion: str | None
    created_at: str
    withdrawn: bool
    readings: int | None
    label: str | None
    gate: Gate | None
    decision: str | None


class CaseList(BaseModel):
    """Cases, newest first; ``next`` goes into ``below`` to get those after."""

    cases: list[CaseLine]
    next: int | None


class CaseOut(CaseLine):
    """A case with all that you may know of it."""

    width: int
    height: int
    opinions: list[OpinionOut] | None
    answers: list[ReadingOut]
    decided: DecisionOut | None


class Created(BaseModel):
    """A case that was taken in, or withdrawn."""

    id: str
    number: int


class ReadingKept(BaseModel):
    """A reading that was kept."""

    id: str
    case: str
    informed: bool
    first: bool


class DecisionKept(BaseModel):
    """A decision that was kept."""

    id: str
    case: str
    label: str


class ModelOut(BaseModel):
    """A model that is loaded."""

    fingerprints: Fingerprints
    name: str
    active: bool
    classes: list[str]
    intact: bool = Field(description="whether its file is still the one that was loaded")


class ModelList(BaseModel):
    """The models that are loaded, the active one first."""

    models: list[ModelOut]


class Health(BaseModel):
    """How the server does."""

    status: Literal["ok", "not ready"]
    problems: list[str]


class HeadOut(BaseModel):
    """The end of the audit trail: keep it where nobody who writes to the database can."""

    number: int
    hash: str
