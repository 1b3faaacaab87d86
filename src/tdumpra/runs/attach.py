"""The array way in from a file: the stages of a run over a user's own saved outputs, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdumpra.errors import ArtifactError
from tdumpra.runs.config import Config, read_config
from tdumpra.runs.folder import RunFolder, differences
from tdumpra.runs.kept_rows import evaluation_in_brief, first_entry, record_of
from tdumpra.runs.outputs import Outputs, all_outputs
from tdumpra.runs.steps import Step, digest, read_document
from tdumpra.runs.table_stages import evaluation_made_from, gate_made_from, tune_step
from tdumpra.toml import from_plain


def attach_config(outputs: Path, out: Path, bank: Mapping[str, Any], tune: Mapping[str, Any]) -> Config:
    """Make the configuration of a run that stands on one file of saved outputs."""
    given = {name: value for name, value in bank.items() if value is not None}
    plain = {"name": outputs.stem, "folder": str(out), "outputs": [{"file": str(outputs)}], "bank": given}
    return from_plain({**plain, "tune": dict(tune)}, Config)


def refuse_other_results(config: Config) -> None:
    """Refuse a folder that holds results of other settings, or of other outputs under the same name."""
    (outputs,) = all_outputs(config)
    folder = RunFolder(outputs.place)
    if not folder.evaluation.exists():
        return
    before = read_config(folder.config) if folder.config.exists() else config
    differing = [key for key in differences(before, config) if key not in ("folder", "outputs")]  # paths to the same
    try:
        made_from = read_document(folder.evaluation, "evaluation").get("made_from")
    except ArtifactError:
        return  # a damaged one is made again
    if not differing and made_from != evaluation_made_from(outputs):
        differing = ["outputs"]
    if differing:
        raise ArtifactError(
            f"{folder.root} holds results of other settings ({', '.join(differing)}): take another --out, or --force"
        )


def _made_from(outputs: Outputs) -> str:
    """Name everything that the model depends on."""
    return digest({"gate": gate_made_from(outputs), "record": outputs.config.bank.record})


def is_current(outputs: Outputs, *, evaluated: bool = False) -> bool:
    """Return whether the model was made from these outputs and settings; ``evaluated`` asks for its figures too."""
    from tdumpra.estimator_file import read_made_from  # loads scikit-learn, for which most commands have no use

    try:
        made_from, figures = read_made_from(RunFolder(outputs.place).model)
    except ArtifactError:
        return False
    return made_from == _made_from(outputs) and (not evaluated or figures == evaluation_made_from(outputs))


def array_model_step(outputs: Outputs) -> Step[Path]:
    """Write ``model.safetensors`` for outputs from a file: a ``DualPathClassifier``, without networks."""
    path = RunFolder(outputs.place).model

    def kept() -> Path | None:
        return path if is_current(outputs, evaluated=True) else None

    def make() -> Path:
        from tdumpra.estimator import DualPathClassifier

        bank, tune = outputs.config.bank, outputs.config.tune
        classifier = DualPathClassifier.from_fitted(
            tune_step(outputs).result(),
            outputs.load().class_names,
            n_prototypes=bank.n_prototypes,
            objective=tune.objective,
            preset=tune.preset,
            n_classes=bank.n_classes,
            adjust_prior=tune.adjust_prior,
            seed=bank.seed,
            costs=tune.costs or None,
            selection="certified" if tune.certify else "crossfit" if tune.folds else "validation",
            folds=tune.folds or 5,
            max_asked=tune.max_asked,
            tolerance=tune.tolerance,
        )
        classifier.record_ = record_of(outputs)
        classifier.lineage_ = first_entry(outputs, "attach", {"outputs": digest(outputs.own_identity())})
        classifier.evaluation_ = evaluation_in_brief(outputs)
        classifier.save(path, made_from=_made_from(outputs))
        return path

    return Step(name=f"{outputs.name}: model", kept=kept, make=make)
