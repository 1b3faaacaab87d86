"""The stages after embedding: bank, gate and evaluation of saved outputs, without pixels, in seconds.

Each artefact has one writer here, and a name for everything that it was made from. A stage reads what the stage before
it wrote; what is up to date is never computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tdumpra.artifacts import Artifact, read_artifact, write_artifact
from tdumpra.errors import ArtifactError
from tdumpra.evaluation.over_seeds import SeedResult, over_seeds, with_holm
from tdumpra.foreign import reading
from tdumpra.method.bank import KIND as BANK_KIND
from tdumpra.method.bank import SCHEMA as BANK_SCHEMA
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.bank_health import BankHealth, bank_health
from tdumpra.method.decision import Decision
from tdumpra.method.output_files import SplitOutputs
from tdumpra.method.outputs import TrainOutputs
from tdumpra.runs.documents import Part, evaluated, gate_document, metadata_fingerprint
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.outputs import Outputs, TrainedOutputs, folds_of_seeds, place_of
from tdumpra.runs.refit import Refitted, Rows, carried_over, refit_identity, refit_rows
from tdumpra.runs.steps import Step, digest, read_document, read_kept, write_kept
from tdumpra.runs.tables import OutputsTable, run_in_use, tables_fingerprint
from tdumpra.runs.trainings import seconds_to_train
from tdumpra.tuning.fit import Fitted, cluster, fit
from tdumpra.tuning.presets import Preset
from tdumpra.writing import make_folder

GATE_KIND, GATE_SCHEMA = "gate", 1
MODEL_ONLY = ("thumbnails", "record")  # settings of [bank] that only the model file depends on
T = TypeVar("T")


class Banked(NamedTuple):
    """A bank, its health, and whether it had to be made."""

    bank: PrototypeBank
    health: BankHealth
    made: bool


def banked(outputs: Outputs, *, second: bool = False) -> Banked:
    """Cluster the training embeddings, unless that was done, and look the bank over; or those of the second network."""
    splits = outputs.load()
    train, table = splits.train, None
    if isinstance(outputs, TrainedOutputs):
        table = (outputs.folder.refit if second else outputs.folder).outputs("train")
        train = refit_rows(outputs, splits).train if second else train
    bank = _kept_bank(outputs, second=second)
    made = bank is None
    if bank is None:
        bank = _make_bank(outputs, splits, train, second=second)
    return Banked(bank, health_of(bank, train, splits.class_names, table), made)


def health_of(bank: PrototypeBank, train: TrainOutputs, names: Sequence[str], table: Path | None) -> BankHealth:
    """Look a bank over; a table also says where each training row came from."""
    metadata = {} if table is None else OutputsTable.read(table).metadata
    sources = metadata.get("source") or metadata.get("dataset")
    return bank_health(bank, names or tuple(str(c) for c in range(bank.n_classes)), train.z, train.y, sources)


def _bank_made_from(outputs: Outputs, *, second: bool) -> str:
    config = outputs.config
    settings = {name: value for name, value in asdict(config.bank).items() if name not in MODEL_ONLY}
    merge_above = config.tune.searched().merge_above
    rows = refit_identity(outputs) if second else outputs.own_identity()
    return digest({**rows, "bank": settings, "merge_above": merge_above})


def _bank_path(outputs: Outputs, *, second: bool) -> Path:
    folder = RunFolder(outputs.place)
    return folder.refit.bank if second else folder.bank


def _kept_bank(outputs: Outputs, *, second: bool = False) -> PrototypeBank | None:
    made_from = _bank_made_from(outputs, second=second)
    path = _bank_path(outputs, second=second)
    return _kept(path, BANK_KIND, BANK_SCHEMA, made_from, PrototypeBank.from_artifact)


def _make_bank(outputs: Outputs, splits: SplitOutputs, train: TrainOutputs, *, second: bool = False) -> PrototypeBank:
    config = outputs.config
    bank = cluster(
        train, config.bank, config.tune.searched(), n_classes=splits.n_classes, class_names=splits.class_names
    )
    made_from = _bank_made_from(outputs, second=second)
    _keep_artifact(_bank_path(outputs, second=second), BANK_KIND, BANK_SCHEMA, bank.to_artifact(), made_from)
    return bank


def _kept(path: Path, kind: str, schema: int, made_from: str, build: Callable[[Artifact], T]) -> T | None:
    """Build what an artefact holds that was made from these inputs; one that makes no sense is made again."""
    if not path.exists():
        return None
    try:
        artifact = read_artifact(path, kind=kind, schema=schema)
        if artifact.meta.get("made_from") != made_from:
            return None
        with reading(path, f"tdumpra {kind}", ArtifactError):
            return build(artifact)
    except ArtifactError:
        return None


def _keep_artifact(path: Path, kind: str, schema: int, artifact: Artifact, made_from: str) -> None:
    make_folder(path.parent)
    meta = {**artifact.meta, "made_from": made_from}
    write_artifact(path, kind=kind, schema=schema, tensors=artifact.tensors, meta=meta)


def gate_made_from(outputs: Outputs, preset: Preset | None = None) -> str:
    """Name everything that the tuned gate depends on."""
    config = outputs.config
    bank = {name: value for name, value in asdict(config.bank).items() if name not in MODEL_ONLY}
    tune = {**asdict(config.tune), "preset": asdict(preset or config.tune.searched())}  # what its name stands for
    return digest({**outputs.identity(), "bank": bank, "tune": tune})


def tune_step(outputs: Outputs) -> Step[Fitted]:
    """Choose temperatures and thresholds on validation outputs; writes ``gate.safetensors`` and ``gate.json``."""
    folder = RunFolder(outputs.place)

    def kept() -> Fitted | None:
        made_from = gate_made_from(outputs)
        if read_kept(folder.gate_document, GATE_KIND, made_from) is None or _kept_bank(outputs) is None:
            return None
        return _kept(folder.gate, GATE_KIND, GATE_SCHEMA, made_from, Fitted.from_artifact)

    def make() -> Fitted:
        splits = outputs.load()
        bank = _kept_bank(outputs) or _make_bank(outputs, splits, splits.train)
        others = [other.load() for other in outputs.others]
        fitted = fit(splits, outputs.config.bank, outputs.config.tune, others=others, judge=True, made=bank)
        made_from = gate_made_from(outputs)
        _keep_artifact(folder.gate, GATE_KIND, GATE_SCHEMA, fitted.to_artifact(), made_from)
        document = gate_document(splits, others, fitted, outputs.config)
        write_kept(folder.gate_document, GATE_KIND, made_from, document)
        return fitted

    return Step(name=outputs.name, kept=kept, make=make, seconds=2.0)


def refit_step(outputs: TrainedOutputs) -> Step[Rows]:
    """Read the second network's outputs; ``tdumpra train`` and ``tdumpra embed`` make them."""

    def kept() -> Rows | None:
        return refit_rows(outputs, outputs.load()) if outputs.folder.refit.has_tables else None

    return Step(
        name=f"{outputs.name}: second network, on train and validation",
        kept=kept,
        make=lambda: refit_rows(outputs, outputs.load()),
        seconds=seconds_to_train(outputs.config, outputs.folder.refit, outputs.seed),
    )


def refitted(outputs: Outputs, decision: Decision) -> Refitted | None:
    """Carry a decision over to the second network, where ``train.refit`` asks for one; cluster its bank if need be."""
    if not isinstance(outputs, TrainedOutputs) or not outputs.config.train.refit:
        return None
    splits = outputs.load()
    rows = refit_rows(outputs, splits)
    bank = _kept_bank(outputs, second=True) or _make_bank(outputs, splits, rows.train, second=True)
    return carried_over(decision, bank, rows)


def gate_of(outputs: Outputs) -> dict[str, Any]:
    """Read the contents of ``gate.json``."""
    return read_document(RunFolder(outputs.place).gate_document, GATE_KIND)


def fitted_variant(outputs: Outputs, out: Path, preset: Preset | None = None) -> Fitted:
    """Tune an experiment's variant: read the run's own gate if it is that, else one kept below ``out``."""
    outputs.load()  # trains what is to be trained, so that the inputs are known
    made_from = gate_made_from(outputs, preset)
    path = out / "gates" / f"{made_from}.safetensors"
    for place in (RunFolder(outputs.place).gate, path):
        if (kept := _kept(place, GATE_KIND, GATE_SCHEMA, made_from, Fitted.from_artifact)) is not None:
            return kept
    config, others = outputs.config, [other.load() for other in outputs.others]
    fitted = fit(
        outputs.load(), config.bank, config.tune, preset=preset, others=others, judge=False,
        made=_kept_bank(outputs),
    )  # fmt: skip
    _keep_artifact(path, GATE_KIND, GATE_SCHEMA, fitted.to_artifact(), made_from)
    return fitted


def evaluation_made_from(outputs: Outputs) -> str:
    """Name everything that the evaluation depends on."""
    config = outputs.config
    asked: dict[str, Any] = {
        "evaluate": asdict(replace(config.evaluate, metadata=None)),
        **metadata_fingerprint(config),
    }
    if config.evaluate.baseline is not None:
        named = run_in_use(config.evaluate.baseline, outputs.seed, "evaluate.baseline", outputs.fold)
        asked["baseline"] = tables_fingerprint(named)
    if outputs.fold is not None:
        asked["fold"] = outputs.fold
    asked |= refit_identity(outputs)
    return digest({"gate": gate_made_from(outputs), "name": config.name, "seed": outputs.seed, **asked})


def _part(outputs: Outputs) -> Part:
    """Gather what is scored of one seed and fold."""
    fitted, others = tune_step(outputs).result(), [other.load() for other in outputs.others]
    return Part(outputs.load(), others, fitted, outputs.fold, refitted(outputs, fitted.tuning.decision))


def evaluate_step(*folds: Outputs) -> Step[SeedResult]:
    """Score every comparator on test outputs; writes ``compared.json`` and ``evaluation.json``.

    The test rows of several outer folds of one seed are scored together, each by the gate of its own fold.
    """
    first = folds[0]
    folder = RunFolder(place_of(folds))

    def kept() -> SeedResult | None:
        made_from = _folds_made_from(folds)
        document = read_kept(folder.evaluation, "evaluation", made_from)
        compared = read_kept(folder.compared, "compared", made_from)
        if document is None or compared is None or any(tune_step(each).kept() is None for each in folds):
            return None
        return SeedResult(document, compared["gained"], compared["compared"])

    def make() -> SeedResult:
        found = evaluated([_part(each) for each in folds], first.config, first.seed)
        made_from = _folds_made_from(folds)
        compared = write_kept(
            folder.compared, "compared", made_from, {"gained": found.gained, "compared": found.compared}
        )
        inputs: dict[str, Any] = {"outputs": digest(first.own_identity()), "gate": gate_made_from(first)}
        inputs |= refit_identity(first)
        if len(folds) > 1:
            inputs = {"folds": [evaluation_made_from(each) for each in folds]}
        told = {} if first.fold is None else {"folds": [each.fold for each in folds]}
        content = {"name": first.config.name, "inputs": inputs, **told, **over_seeds({first.seed: found})}
        document = write_kept(folder.evaluation, "evaluation", made_from, content)
        return SeedResult(document, compared["gained"], compared["compared"])

    name = first.name if len(folds) == 1 else first.seed_name
    return Step(name=name, kept=kept, make=make, seconds=6.0)


def _folds_made_from(folds: Sequence[Outputs]) -> str:
    names = [evaluation_made_from(each) for each in folds]
    return names[0] if len(names) == 1 else digest({"folds": names})


def write_overall(
    outputs: Sequence[Outputs], results: Mapping[str, SeedResult], models: Mapping[str, dict[str, Any]], out: Path
) -> dict[str, Any]:
    """Return the evaluation of a whole run; where it has several outputs, write it to ``out/evaluation.json``."""
    first = next(iter(models.values()))
    document = {**first, "name": outputs[0].config.name} | ({"models": dict(models)} if len(models) > 1 else {})
    seeds = [_of_seed(folds, results) for folds in folds_of_seeds(outputs)]
    if len(seeds) == 1:
        return document  # its own evaluation.json says the same
    made_from = digest({"seeds": [each.document["made_from"] for each in seeds]})
    path = out / "evaluation.json"
    return read_kept(path, "evaluation", made_from) or write_kept(path, "evaluation", made_from, document)


def _of_seed(folds: Sequence[Outputs], results: Mapping[str, SeedResult]) -> SeedResult:
    return results[folds[0].name if len(folds) == 1 else folds[0].seed_name]


def over_models(outputs: Sequence[Outputs], results: Mapping[str, SeedResult]) -> dict[str, dict[str, Any]]:
    """Return the evaluation of each model, its seeds taken together."""
    models: dict[str, dict[int, SeedResult]] = {}
    for folds in folds_of_seeds(outputs):
        models.setdefault(folds[0].model, {})[folds[0].seed] = _of_seed(folds, results)
    return with_holm(
        {
            model: dict(next(iter(seeds.values())).document) if len(seeds) == 1 else over_seeds(seeds)
            for model, seeds in models.items()
        }
    )
