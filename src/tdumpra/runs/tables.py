"""The tables that embedding writes, one per split: the hinge between images and everything that comes after."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tdumpra.artifacts import fingerprint, read_artifact, write_artifact
from tdumpra.errors import ArtifactError, TdumpraError
from tdumpra.foreign import reading
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import ScoredOutputs, TestOutputs, TrainOutputs, ValidationOutputs
from tdumpra.method.schema import check_rows
from tdumpra.runs.config import Config, EmbedConfig, read_config
from tdumpra.runs.folder import RunFolder, fold_place
from tdumpra.values import check_list, check_table, check_text

KIND, SCHEMA = "outputs table", 1
_KEPT = ("features", "features_teacher", "colours")  # that the model's record is made of
Rows = TypeVar("Rows", bound=ScoredOutputs)


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
    # for the model's record; tables of before lack them
    features: Float[Tensor, "n f"] | None = None  # pooled, half precision
    features_teacher: Float[Tensor, "n f"] | None = None
    colours: Float[Tensor, "n 6"] | None = None
    content: tuple[str, ...] | None = None  # names of the framed pixels
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
        for name in _KEPT:
            if (column := getattr(self, name)) is not None:
                tensors[name] = column
        meta = {
            "ids": self.ids,
            "groups": self.groups,
            "class_names": self.class_names,
            "metadata": dict(self.metadata),
            "identity": dict(self.identity),
            "made": dict(self.made),
            "content": self.content,
        }
        write_artifact(path, kind=KIND, schema=SCHEMA, tensors=tensors, meta=meta)

    @classmethod
    def read(cls, path: Path) -> OutputsTable:
        """Read what :meth:`write` wrote."""
        tensors, meta = read_artifact(path, kind=KIND, schema=SCHEMA)
        with reading(path, f"tdumpra {KIND}", ArtifactError):
            n_rows, n_classes = check_rows(tensors, len(meta["ids"]))
            columns = {name: _names(column, name, n_rows) for name, column in meta["metadata"].items()}
            return cls(
                ids=_names(meta["ids"], "ids", n_rows),
                groups=_names(meta["groups"], "groups", n_rows),
                class_names=_names(meta["class_names"], "class_names", n_classes),
                metadata=columns,
                identity={name: check_text(value, name) for name, value in meta["identity"].items()},
                made=check_table(meta.get("made", {}), "made"),  # tables of before know nothing of it
                content=_names(meta["content"], "content", n_rows) if meta.get("content") else None,
                **tensors,
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


def _names(values: Any, name: str, length: int) -> tuple[str, ...]:
    return tuple(check_text(each, name) for each in check_list(values, name, length))


def how_made(embed: EmbedConfig, *, finished: bool) -> dict[str, Any]:
    """Return the settings that change a table's rows, as :attr:`OutputsTable.made` keeps them."""
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


def run_with_tables(place: str, seed: int, name: str = "bank.space", fold: int | None = None) -> RunFolder:
    """The folder of a run, of several seeds or folds that of this one; ``name`` is the setting that names it.

    A run without folds serves each of them, if it was trained on none of their images.
    """
    for number in dict.fromkeys((fold, None)):
        for root in (Path(place), Path(place) / f"seed-{seed}"):
            if (folder := RunFolder(fold_place(root, number))).outputs("train").exists():
                return folder
    parts = sorted(path.name for kind in ("seed", "fold") for path in Path(place).glob(f"{kind}-*"))
    hint = f"there are {', '.join(parts)}" if parts else "train and embed its configuration first"
    kinds = "'teacher', 'student' or " if name == "bank.space" else ""
    wanted = f"seed {seed}" if fold is None else f"seed {seed}, fold {fold}"
    raise ArtifactError(f"{name} = {place!r} is not {kinds}the folder of a run with tables of {wanted}: {hint}")


def run_in_use(place: str, seed: int, name: str, fold: int | None = None) -> RunFolder:
    """The folder of the network that a run put into use: the second one, where it has ``train.refit``."""
    folder = run_with_tables(place, seed, name, fold)
    return folder.refit if folder.config.exists() and read_config(folder.config).train.refit else folder


def tables_fingerprint(folder: RunFolder) -> str:
    """Changes when the tables of another run do."""
    paths = [folder.outputs(part) for part in folder.parts]
    return fingerprint(*(path.read_bytes() for path in paths if path.exists()))


def read_tables(folder: RunFolder) -> dict[str, OutputsTable]:
    """The tables of a run; says which stage to run if one is missing."""
    for part in folder.parts:
        if not folder.outputs(part).exists():
            raise ArtifactError(f"{folder.outputs(part)} does not exist: run  tdumpra embed  first")
    return {part: OutputsTable.read(folder.outputs(part)) for part in folder.parts}


def table_outputs(config: Config, tables: dict[str, OutputsTable], seed: int = 0) -> SplitOutputs:
    """The run's tables as typed outputs, with the bank in the space that the configuration names."""
    if config.network.frozen:
        raise TdumpraError("a frozen encoder has no classifier: name its folder as the bank.space of another run")
    joined, space = in_space(config, tables, seed)
    return split_outputs(joined, space=space, classifier=config.tune.classifier)


def in_space(
    config: Config, tables: dict[str, OutputsTable], seed: int, *, refit: bool = False
) -> tuple[dict[str, OutputsTable], str]:
    """Return tables with the embeddings that the bank is made of, and the name of their space.

    With ``refit``, the tables are of a second training, and so are those of the run that ``bank.space`` names.
    """
    if config.bank.space in ("teacher", "student"):
        return tables, config.bank.space
    folder = run_with_tables(config.bank.space, seed, fold=config.data.fold)
    other = read_config(folder.config)
    if config.train.refit and not other.train.refit and not other.network.as_it_is:
        raise ArtifactError(
            f"train.refit is on here and off in {folder.root}, the run that bank.space names: its encoder would be one "
            "of train images alone; set it alike in both"
        )
    if other.network.frozen or (refit and other.network.as_it_is):  # any part's will do: it was trained on none of them
        others = read_tables(folder)
        return {part: table.with_embedding(*others.values()) for part, table in tables.items()}, "teacher"
    folder = folder.refit if refit else folder
    others = read_tables(folder)
    _refuse_other_split(tables, others, folder)
    return {part: table.with_embedding(others[part]) for part, table in tables.items()}, "teacher"


def _refuse_other_split(own: dict[str, OutputsTable], others: dict[str, OutputsTable], folder: RunFolder) -> None:
    """An encoder that was trained on this run's test images would hand back what it memorised."""
    seen = set(others["train"].ids)
    crossing = {part: len(seen & set(table.ids)) for part, table in own.items() if part != "train"}
    if any(crossing.values()):
        part, count = max(crossing.items(), key=lambda pair: pair[1])
        raise ArtifactError(
            f"the encoder in {folder.root} was trained on {count:,} of this run's {part} images: give both runs "
            "the same data.split_seed, data.val_by_seed and data.outer_folds"
        )


def folder_outputs(config: Config, folder: RunFolder, seed: int) -> SplitOutputs:
    """A run's own tables as what everything after embedding stands on."""
    tables = read_tables(folder)
    refuse_other_settings(config, tables["train"].made, folder)
    return table_outputs(config, tables, seed)


def refuse_other_settings(config: Config, made: Mapping[str, Any], folder: RunFolder) -> None:
    """Figures under settings that the tables were not made with would be another configuration's."""
    if not made:
        return  # a table of before, which does not say
    wanted = how_made(config.embed, finished=made["finished"])
    for name, value in wanted.items():
        if made.get(name) != value:
            raise ArtifactError(
                f"{folder.root / 'outputs'} was made with embed.{name} = {made.get(name)!r}, and it is {value!r} now: "
                "run  tdumpra embed  first"
            )
    if not made["finished"]:
        warnings.warn(f"{folder.root} was embedded before its training had come to its end", stacklevel=2)


def split_outputs(
    tables: Mapping[str, OutputsTable], *, space: str = "teacher", classifier: str = "student"
) -> SplitOutputs:
    """The three tables as what they may be used for: bank, tuning, scoring.

    ``space`` names the embedding that the bank lives in. With ``classifier="teacher"`` both posteriors are the
    teacher's, and one pass through one network gives everything.
    """
    refuse_mixed_tables(tables)
    train, test = tables["train"], tables["test"]
    return SplitOutputs(
        train=train_rows(train, space),
        validation=scored_rows(ValidationOutputs, tables["val"], space, classifier, "_val"),
        test=scored_rows(TestOutputs, test, space, classifier, "_test"),
        n_classes=len(train.class_names),
        fingerprint=fingerprint(
            *(f"{key}={value}" for key, value in sorted(train.identity.items())),
            space,
            classifier,
            json.dumps({name: list(column) for name, column in sorted(test.metadata.items())}),
        ),
        class_names=train.class_names,
    )


def refuse_mixed_tables(tables: Mapping[str, OutputsTable]) -> None:
    """Refuse tables of several encoders or splits."""
    for part, table in tables.items():
        if table.identity != tables["train"].identity:
            raise ArtifactError(
                f"the {part} table was made by another encoder or split than the train table: embed again"
            )


def train_rows(table: OutputsTable, space: str) -> TrainOutputs:
    """A table as rows for a bank."""
    groups, ids = np.array(table.groups), np.array(table.ids)
    return TrainOutputs.check(table.embedding(space), table.labels, groups, ids=ids, n_classes=len(table.class_names))


def scored_rows(kind: type[Rows], table: OutputsTable, space: str, classifier: str, suffix: str) -> Rows:
    """A table as rows for tuning or for scoring; ``suffix`` completes the names of columns in messages."""
    rows = kind.check(
        table.posterior(classifier),
        table.embedding(space),
        table.labels,
        np.array(table.groups),
        ids=np.array(table.ids),
        p_teacher=None if table.logits_teacher is None else table.posterior("teacher"),
        metadata={name: np.array(column) for name, column in table.metadata.items()},
        n_classes=len(table.class_names),
        suffix=suffix,
    )
    second = None if table.logits_second is None else table.logits_second.double().softmax(1)
    return replace(rows, p_second=second)
