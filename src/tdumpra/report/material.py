"""What a run left behind, gathered for its report. What is not there is named with the reason, and the rest goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tdumpra.artifacts import read_json
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.store import frame_record
from tdumpra.data.manifest import Reader, Record
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.estimator import DualPathClassifier
from tdumpra.method.bank_health import BankHealth, bank_health
from tdumpra.method.decision import Decided, Decision
from tdumpra.method.output_files import SplitOutputs, read_outputs
from tdumpra.runs.attach import EVALUATION, MODEL
from tdumpra.tuning.result import Tuning

if TYPE_CHECKING:  # a configuration brings networks and pictures with it, which arrays can do without
    from tdumpra.runs.config import Config

MISSING_FROM_FILE = {
    "training": "no training curves: outputs came from a file",
    "pictures": "no pictures: outputs came from a file",
    "thumbnails": "training cases are named, not shown: outputs came from a file",
}


@dataclass(frozen=True, slots=True, eq=False)
class Pictures:
    """The images of a run's data, read one by one as they are needed."""

    records: Mapping[str, Record]
    reader: Reader
    framing: Framing

    def read(self, image: str) -> np.ndarray | None:
        """The framed pixels of an image, or nothing where it cannot be read any more."""
        if image not in self.records:
            return None
        try:
            return frame_record(self.records[image], self.reader, self.framing)
        except (TdumpraError, OSError):
            return None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Material:
    """One seed of a run, or one file of outputs."""

    name: str
    evaluation: Mapping[str, Any]
    class_names: tuple[str, ...]
    splits: SplitOutputs | None = None
    decision: Decision | None = None
    decided: Decided | None = None  # of the test rows
    health: BankHealth | None = None
    tuning: Mapping[str, Any] = field(default_factory=dict)  # objective, base and contenders, as in gate.json
    thumbnails: Mapping[str, Any] = field(default_factory=dict)  # of the bank's exemplars, by id
    pictures: Pictures | None = None
    config: Config | None = None
    settings: str = ""  # as TOML or JSON
    metrics: list[dict[str, Any]] = field(default_factory=list)
    environment: Mapping[str, Any] | None = None
    identity: Mapping[str, str] = field(default_factory=dict)  # fingerprints
    split_notes: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # section to reason


def of_attached(root: Path) -> Material:
    """What ``tdumpra attach`` wrote; the outputs themselves are read again if they are still where they were."""
    evaluation = read_json(root / EVALUATION, kind="evaluation", schema=1)
    if not (root / MODEL).exists():
        raise ArtifactError(f"{root} has no {MODEL}: run  tdumpra attach OUTPUTS --out {root}  again")
    tuning = DualPathClassifier.load(root / MODEL).tuning_
    decision = tuning.decision
    names = shown_names(evaluation)
    missing = dict(MISSING_FROM_FILE)
    splits = _attached_outputs(evaluation, missing)
    return Material(
        name=Path(evaluation.get("source", root.name)).name,
        evaluation=evaluation,
        class_names=names,
        splits=splits,
        decision=decision,
        decided=splits and decide_again(decision, splits, evaluation, root),
        health=splits and bank_health(decision.bank, names, splits.train.z, splits.train.y),
        tuning=tuning_document(tuning),
        settings=json.dumps(evaluation["settings"], indent=2, ensure_ascii=False),
        environment=read_environment(root),
        identity={"outputs": evaluation["settings"]["outputs"]},
        missing=missing,
    )


def shown_names(evaluation: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the classes; where there are but numbers, words that can be told from other numbers."""
    names = tuple(evaluation["per_class"]["student"])
    return tuple(f"class {name}" for name in names) if all(name.isdigit() for name in names) else names


def tuning_document(tuning: Tuning) -> dict[str, Any]:
    """What ``gate.json`` says of the contest between kinds of gate."""
    contenders = [{"gate": each.gate, **each.to_json()} for each in tuning.contenders]
    return {"objective": tuning.objective, "base": tuning.base.to_json(), "contenders": contenders}


def decide_again(decision: Decision, splits: SplitOutputs, evaluation: Mapping[str, Any], place: Path) -> Decided:
    """The test rows, decided again; refused if that is not what was evaluated."""
    decided = decision.decide(splits.test.p, splits.test.z)
    wrong_before, wrong = (p.argmax(1) != splits.test.y for p in (decided.p_cls, decided.p))
    now = (int(decided.opened.sum()), int((wrong_before & ~wrong).sum()), int((wrong & ~wrong_before).sum()))
    then = tuple(evaluation["gate"][key] for key in ("opened", "fixed", "broken"))
    if now != then:
        raise ArtifactError(
            f"the evaluation of {place} belongs to other outputs or another gate (opened, fixed, broken were {then} "
            f"and are now {now}): evaluate again; after a change of [bank] or [tune] the model needs  tdumpra run  too"
        )
    return decided


def _attached_outputs(evaluation: Mapping[str, Any], missing: dict[str, str]) -> SplitOutputs | None:
    path = evaluation.get("source")
    try:
        if path is None:
            raise ArtifactError("evaluation.json does not say where the outputs lie")
        splits = read_outputs(path)
    except TdumpraError as error:
        missing["cases"] = f"no single cases, curves or health of the bank: {error}"
        return None
    if splits.fingerprint != evaluation["settings"]["outputs"]:
        missing["cases"] = f"no single cases, curves or health of the bank: {path} has changed since it was attached"
        return None
    return splits


def read_environment(root: Path) -> dict[str, Any] | None:
    """``environment.json``, where it is there and whole."""
    try:
        found = json.loads((root / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
