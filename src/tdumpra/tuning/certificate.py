"""The record of a proof: what was tested, on how many lesions, what it guarantees, and how much it could have shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from tdumpra.errors import ArtifactError
from tdumpra.toml import from_plain
from tdumpra.tuning.result import Setting

Correction = Literal["fixed-sequence", "holm"]
CHANCE = 0.8  # of a proof, at which its power is stated


@dataclass(frozen=True, slots=True)
class ClassHarm:
    """What a gate did to the images of one class, and how much of the class's sensitivity it may cost at most."""

    name: str
    images: int
    fixed: int
    broken: int
    upper: float  # one-sided upper confidence bound of the loss of sensitivity


@dataclass(frozen=True, slots=True)
class Tested:
    """One gate of the list and what it did to the rows of the second half."""

    setting: Setting  # its figures are those of the first half
    fixed: int
    broken: int
    p_value: float  # of the net gain
    proven: bool
    harm: tuple[ClassHarm, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What the second half can prove about the most promising gate, as far as the first half tells."""

    lesions: int  # of the second half
    changed: int  # about so many of them will be fixed or broken
    gain: float | None  # net images gained per 100 that are proven with a chance of ``CHANCE``; None: no gain is
    best_chance: float  # of a proof if every changed lesion is fixed
    least_harm: tuple[float, ...]  # the bound on each named class's loss if nothing of it is lost

    def sentence(self, classes: Sequence[str] = ()) -> str:
        """Say what can be proven."""
        data = f"with {self.lesions:,} lesions, about {self.changed:,} of them fixed or broken,"
        if self.gain is None:
            said = f"{data} even a gate that breaks nothing is proven with a chance of {self.best_chance:.0%} only"
        else:
            said = f"{data} a net gain of {self.gain:.1f} images per 100 can be proven with a chance of {CHANCE:.0%}"
        least = ", ".join(f"{bound:.1%} for {name}" for name, bound in zip(classes, self.least_harm, strict=True))
        return f"{said}; the loss of sensitivity can be bounded at {least} at best" if least else said


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The gates that were tested, on how many cases, at which level, and whether any was proven."""

    level: float
    correction: Correction
    tested: tuple[Tested, ...]
    design_rows: int
    proof_rows: int
    proof_groups: int
    most_images: int  # that a lesion counts for: the most of any lesion of the first half
    power: Power | None = None  # stated before the labels of the second half are looked at; None: nothing to test
    classes: tuple[str, ...] = ()  # those whose loss of sensitivity is bounded, too
    class_harm: float = 1.0  # the largest loss that is tolerated for them

    @property
    def share(self) -> float:
        """Return the level of each part: gain and named classes share the whole equally (Bonferroni)."""
        return self.level / (1 + len(self.classes))

    @property
    def granted(self) -> bool:
        """Return whether some gate was proven to fix more than it breaks, and to spare the named classes."""
        return self.chosen is not None

    @property
    def chosen(self) -> Tested | None:
        """Return the gate that may open: of the proven ones, the best on the first half."""
        proven = [each for each in self.tested if each.proven]
        return max(proven, key=lambda each: each.setting.objective, default=None)

    def guarantee(self) -> str:
        """Say what a certificate promises, and under which assumptions."""
        spared = f", or takes {self.class_harm:.1%} or more of the sensitivity for {' or '.join(self.classes)},"
        counts = "one image" if self.most_images == 1 else f"at most {self.most_images} images"
        return (
            f"a gate that is not expected to fix more predictions than it breaks{spared if self.classes else ''} gets "
            f"a certificate with a chance of at most {self.level:.3g}, however fixes and breaks cluster, provided that "
            "lesions are independent and that those to come are drawn as those of validation were; a lesion counts "
            f"for {counts}"
        )

    def sentence(self) -> str:
        """Say what could be proven, and what was."""
        if not self.tested:
            return "no gate was better than the classifier on the first half of the validation lesions: it stays shut"
        return f"{self.power.sentence(self.classes)}; {self._verdict()}" if self.power else self._verdict()

    def _verdict(self) -> str:
        data = f"{self.proof_rows:,} rows of {self.proof_groups:,} lesions that took no part in choosing"
        if (proven := self.chosen) is not None:
            return (
                f"certified at level {self.level:g}: on {data}, the gate fixed {proven.fixed} predictions and broke "
                f"{proven.broken} (p = {proven.p_value:.3g}{self._harm(proven)})"
            )
        best = min(self.tested, key=lambda each: each.p_value)
        return (
            f"not certified, so the gate stays shut: on {data}, the best of {len(self.tested)} candidates fixed "
            f"{best.fixed} predictions and broke {best.broken} (p = {best.p_value:.3g}{self._harm(best)}, "
            f"{self.correction}, level {self.level:g})"
        )

    def _harm(self, tested: Tested) -> str:
        if not tested.harm:
            return ""
        bounds = ", ".join(f"{each.upper:.1%} for {each.name}" for each in tested.harm)
        return f"; loss of sensitivity at most {bounds}, where {self.class_harm:.1%} is tolerated"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        said = {"granted": self.granted, "sentence": self.sentence(), "guarantee": self.guarantee()}
        foreseen = self.power and {**asdict(self.power), "sentence": self.power.sentence(self.classes)}
        return {**asdict(self), **said, "power": foreseen}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Certificate:
        """Read what :meth:`to_json` returned."""
        if "most_images" not in content:
            raise ArtifactError(
                "this certificate was given by a test that could fail to keep its level where breaks and fixes cluster "
                "differently: tune again"
            )
        plain = {field.name: content[field.name] for field in fields(cls)}
        if plain["power"]:
            plain["power"] = {field.name: plain["power"][field.name] for field in fields(Power)}
        return from_plain(plain, cls)
