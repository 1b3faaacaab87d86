"""The tables that embedding writes, one per split: the hinge between images and everything that comes after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tdumpra.artifacts import fingerprint, read_artifact, write_artifact
from tdumpra.checks import SPLITS
from tdumpra.errors import ArtifactError
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs
from tdumpra.runs.config import EmbedConfig
from tdumpra.runs.folder import RunFolder

KIND, SCHEMA = "outputs table", 1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OutputsTable:
    """A model's outputs on one split, row by row, and what they belong to."""

    ids: tuple[str, ...]
    groups: tuple[str, ...]
    labels: Int[Tensor, " n"]
    logits: Float[Tensor, "n c"]
    z_student: Float[Tensor, "n d"]
    logits_teacher: Float[Tensor, "n c"] | None = None
    z_teacher: Float[Tensor, "n d"] | None = None
    logits_second: Float[Tensor, "n c"] | None = None  # of the network that gave the embedding, if another run's
    class_names: tuple[str, ...]
    metadata: Mapping[str, tuple[str, ...]]  # columns for subgroups: sex, age, site, source, ...
    identity: Mapping[str, str]  # fingerprints of encoder, preprocessing, data and split
    made: Mapping[str, Any] = field(default_factory=dict)  # settings of the pass, and whether training had ended

    def __len__(self) -> int:
        return len(self.ids)

    def write(self, path: Path) -> None:
        """Write one sealed safetensors file."""
        tensors = {"labels": self.labels, "logits": self.logits, "z_student": self.z_student}
        if self.logits_teacher is not None and self.z_teacher is not None:
            tensors |= {"logits_teacher": self.logits_teacher, "z_teacher": self.z_teacher}
        meta = {
            "ids": self.ids,
            "groups": self.groups,
            "class_names": self.class_names,
            "metadata": dict(self.metadata),
            "identity": dict(self.identity),
            "made": dict(self.made),
        }
        write_artifact(path, kind=KIND, schema=SCHEMA, tensors=tensors, meta=meta)

    @classmethod
    def read(cls, path: Path) -> OutputsTable:
        """Read what :meth:`write` wrote."""
        artifact = read_artifact(path, kind=KIND, schema=SCHEMA)
        meta = artifact.meta
        return cls(
            ids=tuple(meta["ids"]),
            groups=tuple(meta["groups"]),
            class_names=tuple(meta["class_names"]),
            metadata={name: tuple(column) for name, column in meta["metadata"].items()},
            identity=meta["identity"],
            made=meta.get("made", {}),  # tables of before know nothing of it
            **artifact.tensors,
        )

    def posterior(self, who: str = "student") -> Tensor:
        """The probabilities of the ``student`` or of the ``teacher``."""
        logits = self.logits if who == "student" else self.logits_teacher
        if logits is None:
            raise ArtifactError("a finished classifier has no teacher whose posterior could be used")
        return logits.double().softmax(1)

    def embedding(self, space: str) -> Tensor:
        """``teacher`` (the student's where there is no teacher) or ``student``."""
        if space not in ("teacher", "student"):
            raise ValueError(f"the bank's space must be 'teacher' or 'student', not {space!r}")
        return self.z_teacher if space == "teacher" and self.z_teacher is not None else self.z_student

    def with_embedding(self, *others: OutputsTable) -> OutputsTable:
        """This classifier's rows with another encoder's embeddings, matched by id: a second opinion of its own."""
        place = {name: i for i, name in enumerate(name for other in others for name in other.ids)}
        missing = [name for name in self.ids if name not in place]
        if missing:
            raise ArtifactError(
                f"the other encoder's table lacks {len(missing)} of the images, for example {missing[0]!r}"
            )
        rows = torch.tensor([place[name] for name in self.ids])
        if others[0].class_names == self.class_names:  # else other classes of the same images, perhaps
            refuse_other_labels("bank.space", self.ids, self.labels, torch.cat([each.labels for each in others])[rows])
        identity = {**self.identity, "retrieval": others[0].identity["encoder"]}
        logits = [each.logits_teacher for each in others if each.logits_teacher is not None]
        comparable = len(logits) == len(others) and others[0].class_names == self.class_names
        return replace(
            self,
            z_teacher=torch.cat([each.embedding("teacher") for each in others])[rows],
            logits_second=torch.cat(logits)[rows] if comparable else None,
            identity=identity,
        )


def how_made(embed: EmbedConfig, *, finished: bool) -> dict[str, Any]:
    """What :attr:`OutputsTable.made` says of a table: the settings that change its rows."""
    settings = {name: value for name, value in asdict(embed).items() if name != "batch_size"}
    return {**settings, "finished": finished}


def refuse_other_labels(setting: str, ids: Sequence[Any], own: Tensor, theirs: Tensor) -> None:
    """Rows of the same id that the run behind a setting labels otherwise are of other images, or of other labels."""
    differing = (own != theirs).nonzero().flatten().tolist()
    if differing:
        raise ArtifactError(
            f"{setting} names a run that labels {len(differing):,} of {len(own):,} images otherwise, for example "
            f"{str(ids[differing[0]])!r}: the two were made from other data"
        )


def run_with_tables(place: str, seed: int, name: str = "bank.space") -> RunFolder:
    """The folder of a run, of several seeds that of this one; ``name`` is the setting that names it."""
    for root in (Path(place), Path(place) / f"seed-{seed}"):
        if RunFolder(root).outputs("train").exists():
            return RunFolder(root)
    seeds = sorted(path.name for path in Path(place).glob("seed-*"))
    hint = f"there are {', '.join(seeds)}" if seeds else "train and embed its configuration first"
    kinds = "'teacher', 'student' or " if name == "bank.space" else ""
    raise ArtifactError(f"{name} = {place!r} is not {kinds}the folder of a run with tables of seed {seed}: {hint}")


def tables_fingerprint(place: str, seed: int, name: str = "bank.space") -> str:
    """Changes when the tables of the run that the setting ``name`` names do."""
    folder = run_with_tables(place, seed, name)
    paths = [folder.outputs(part) for part in SPLITS]
    return fingerprint(*(path.read_bytes() for path in paths if path.exists()))


def split_outputs(
    tables: Mapping[str, OutputsTable], *, space: str = "teacher", classifier: str = "student"
) -> SplitOutputs:
    """The three tables as what they may be used for: bank, tuning, scoring.

    ``space`` names the embedding that the bank lives in. With ``classifier="teacher"`` both posteriors are the
    teacher's, and one pass through one network gives everything.
    """
    train, val, test = (tables[part] for part in ("train", "val", "test"))
    for part, table in tables.items():
        if table.identity != train.identity:
            raise ArtifactError(
                f"the {part} table was made by another encoder or split than the train table: embed again"
            )
    n_classes = len(train.class_names)

    def scored(table: OutputsTable) -> dict[str, Any]:
        return {
            "p": table.posterior(classifier),
            "z": table.embedding(space),
            "y": table.labels,
            "groups": np.array(table.groups),
            "ids": np.array(table.ids),
            "p_teacher": None if table.logits_teacher is None else table.posterior("teacher"),
            "metadata": {name: np.array(column) for name, column in table.metadata.items()},
            "n_classes": n_classes,
        }

    def second(table: OutputsTable) -> Tensor | None:
        return None if table.logits_second is None else table.logits_second.double().softmax(1)

    return SplitOutputs(
        train=TrainOutputs.check(
            train.embedding(space), train.labels, np.array(train.groups), ids=np.array(train.ids), n_classes=n_classes
        ),
        validation=replace(ValidationOutputs.check(**scored(val), suffix="_val"), p_second=second(val)),
        test=replace(TestOutputs.check(**scored(test), suffix="_test"), p_second=second(test)),
        n_classes=n_classes,
        fingerprint=fingerprint(
            *(f"{key}={value}" for key, value in sorted(train.identity.items())),
            space,
            classifier,
            json.dumps({name: list(column) for name, column in sorted(test.metadata.items())}),
        ),
        class_names=train.class_names,
    )
