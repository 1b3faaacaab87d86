"""The stages after embedding: bank, gate and evaluation of saved outputs, without pixels, in seconds.

Each artefact has one writer here, and a name for everything that it was made from. A stage reads what the stage before
it wrote; what is up to date is never computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra.artifacts import Artifact, make_folder, read_artifact, read_json, write_artifact
from tdumpra.errors import ArtifactError
from tdumpra.evaluation.over_seeds import SeedResult, over_seeds, with_holm
from tdumpra.method.bank import KIND as BANK_KIND
from tdumpra.method.bank import SCHEMA as BANK_SCHEMA
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.bank_health import BankHealth, bank_health
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs.documents import Part, evaluated, gate_document, metadata_fingerprint
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.outputs import Outputs, TrainedOutputs
from tdumpra.runs.steps import Step, digest, read_kept, write_kept
from tdumpra.runs.tables import OutputsTable, tables_fingerprint
from tdumpra.tuning.fit import Fitted, cluster, fit
from tdumpra.tuning.presets import Preset

GATE_KIND, GATE_SCHEMA = "gate", 1


class Banked(NamedTuple):
    """A bank, its health, and whether it had to be made."""

    bank: PrototypeBank
    health: BankHealth
    made: bool


def banked(outputs: Outputs) -> Banked:
    """Cluster the training embeddings, unless that was done, and look the bank over."""
    splits = outputs.load()
    bank = _kept_bank(outputs)
    made = bank is None
    if bank is None:
        bank = _make_bank(outputs, splits)
    return Banked(bank, health_of(bank, outputs, splits), made)


def health_of(bank: PrototypeBank, outputs: Outputs, splits: SplitOutputs) -> BankHealth:
    """Look a bank over; tables also say where each training row came from."""
    sources: Sequence[str] | None = None
    if isinstance(outputs, TrainedOutputs):
        metadata = OutputsTable.read(outputs.folder.outputs("train")).metadata
        sources = metadata.get("source") or metadata.get("dataset")
    names = splits.class_names or tuple(str(c) for c in range(bank.n_classes))
    return bank_health(bank, names, splits.train.z, splits.train.y, sources)


def _bank_made_from(outputs: Outputs) -> str:
    config = outputs.config
    settings = {name: value for name, value in asdict(config.bank).items() if name != "thumbnails"}
    merge_above = config.tune.searched().merge_above
    return digest({**outputs.own_identity(), "bank": settings, "merge_above": merge_above})


def _kept_bank(outputs: Outputs) -> PrototypeBank | None:
    artifact = _kept_artifact(RunFolder(outputs.place).bank, BANK_KIND, BANK_SCHEMA, _bank_made_from(outputs))
    return None if artifact is None else PrototypeBank.from_artifact(artifact)


def _make_bank(outputs: Outputs, splits: SplitOutputs) -> PrototypeBank:
    config, path = outputs.config, RunFolder(outputs.place).bank
    bank = cluster(
        splits.train, config.bank, config.tune.searched(), n_classes=splits.n_classes,
        class_names=splits.class_names,
    )  # fmt: skip
    _keep_artifact(path, BANK_KIND, BANK_SCHEMA, bank.to_artifact(), _bank_made_from(outputs))
    return bank


def _kept_artifact(path: Path, kind: str, schema: int, made_from: str) -> Artifact | None:
    """Read an artefact that was made from these inputs; a damaged one is made again."""
    if not path.exists():
        return None
    try:
        artifact = read_artifact(path, kind=kind, schema=schema)
    except ArtifactError:
        return None
    return artifact if artifact.meta.get("made_from") == made_from else None


def _keep_artifact(path: Path, kind: str, schema: int, artifact: Artifact, made_from: str) -> None:
    make_folder(path.parent)
    meta = {**artifact.meta, "made_from": made_from}
    write_artifact(path, kind=kind, schema=schema, tensors=artifact.tensors, meta=meta)


def gate_made_from(outputs: Outputs, preset: Preset | None = None) -> str:
    """Name everything that the tuned gate depends on."""
    config = outputs.config
    bank = {name: value for name, value in asdict(config.bank).items() if name != "thumbnails"}
    tune = {**asdict(config.tune), "preset": asdict(preset or config.tune.searched())}  # what its name stands for
    return digest({**outputs.identity(), "bank": bank, "tune": tune})


def tune_step(outputs: Outputs) -> Step[Fitted]:
    """Choose temperatures and thresholds on validation outputs; writes ``gate.safetensors`` and ``gate.json``."""
    folder = RunFolder(outputs.place)

    def kept() -> Fitted | None:
        made_from = gate_made_from(outputs)
        if read_kept(folder.gate_document, GATE_KIND, made_from) is None:
            return None
        artifact = _kept_artifact(folder.gate, GATE_KIND, GATE_SCHEMA, made_from)
        return None if artifact is None else Fitted.from_artifact(artifact)

    def make() -> Fitted:
        splits = outputs.load()
        bank = _kept_bank(outputs) or _make_bank(outputs, splits)
        others = [other.load() for other in outputs.others]
        fitted = fit(splits, outputs.config.bank, outputs.config.tune, others=others, judge=True, made=bank)
        made_from = gate_made_from(outputs)
        _keep_artifact(folder.gate, GATE_KIND, GATE_SCHEMA, fitted.to_artifact(), made_from)
        document = gate_document(splits, others, fitted, outputs.config)
        write_kept(folder.gate_document, GATE_KIND, made_from, document)
        return fitted

    return Step(name=outputs.name, kept=kept, make=make, seconds=2.0)


def gate_of(outputs: Outputs) -> dict[str, Any]:
    """Read the contents of ``gate.json``."""
    return read_json(RunFolder(outputs.place).gate_document, kind=GATE_KIND, schema=GATE_SCHEMA)


def fitted_variant(outputs: Outputs, out: Path, preset: Preset | None = None) -> Fitted:
    """Tune an experiment's variant: read the run's own gate if it is that, else one kept below ``out``."""
    outputs.load()  # trains what is to be trained, so that the inputs are known
    made_from = gate_made_from(outputs, preset)
    path = out / "gates" / f"{made_from}.safetensors"
    for place in (RunFolder(outputs.place).gate, path):
        if (artifact := _kept_artifact(place, GATE_KIND, GATE_SCHEMA, made_from)) is not None:
            return Fitted.from_artifact(artifact)
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
        asked["baseline"] = tables_fingerprint(config.evaluate.baseline, outputs.seed, "evaluate.baseline")
    return digest({"gate": gate_made_from(outputs), "name": config.name, "seed": outputs.seed, **asked})


def evaluate_step(outputs: Outputs) -> Step[SeedResult]:
    """Score every comparator on test outputs; writes ``compared.json`` and ``evaluation.json``."""
    folder = RunFolder(outputs.place)

    def kept() -> SeedResult | None:
        made_from = evaluation_made_from(outputs)
        document = read_kept(folder.evaluation, "evaluation", made_from)
        compared = read_kept(folder.compared, "compared", made_from)
        if document is None or compared is None or tune_step(outputs).kept() is None:
            return None
        return SeedResult(document, compared["gained"], compared["compared"])

    def make() -> SeedResult:
        fitted = tune_step(outputs).result()
        part = Part(outputs.load(), [other.load() for other in outputs.others], fitted)
        found = evaluated([part], outputs.config, outputs.seed)
        made_from = evaluation_made_from(outputs)
        compared = write_kept(
            folder.compared, "compared", made_from, {"gained": found.gained, "compared": found.compared}
        )
        inputs = {"outputs": digest(outputs.own_identity()), "gate": gate_made_from(outputs)}
        content = {"name": outputs.config.name, "inputs": inputs, **over_seeds({outputs.seed: found})}
        document = write_kept(folder.evaluation, "evaluation", made_from, content)
        return SeedResult(document, compared["gained"], compared["compared"])

    return Step(name=outputs.name, kept=kept, make=make, seconds=6.0)


def write_overall(
    outputs: Sequence[Outputs], results: Mapping[str, SeedResult], models: Mapping[str, dict[str, Any]], out: Path
) -> dict[str, Any]:
    """Return the evaluation of a whole run; where it has several outputs, write it to ``out/evaluation.json``."""
    first = next(iter(models.values()))
    document = {**first, "name": outputs[0].config.name} | ({"models": dict(models)} if len(models) > 1 else {})
    if len(outputs) == 1:
        return document  # its own evaluation.json says the same
    made_from = digest({"seeds": [results[each.name].document["made_from"] for each in outputs]})
    path = out / "evaluation.json"
    return read_kept(path, "evaluation", made_from) or write_kept(path, "evaluation", made_from, document)


def over_models(outputs: Sequence[Outputs], results: Mapping[str, SeedResult]) -> dict[str, dict[str, Any]]:
    """Return the evaluation of each model, its seeds taken together."""
    models: dict[str, dict[int, SeedResult]] = {}
    for each in outputs:
        models.setdefault(each.model, {})[each.seed] = results[each.name]
    return with_holm(
        {
            model: dict(next(iter(seeds.values())).document) if len(seeds) == 1 else over_seeds(seeds)
            for model, seeds in models.items()
        }
    )
