"""The array way in from a file: bank, tuning and evaluation on a user's own saved outputs, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdumpra import __version__
from tdumpra.artifacts import make_folder, read_json, write_json
from tdumpra.environment import write_environment
from tdumpra.errors import ArtifactError, InputFileError
from tdumpra.estimator import DualPathClassifier
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.method.output_files import SplitOutputs, read_outputs

KIND, SCHEMA = "evaluation", 1
EVALUATION, MODEL = "evaluation.json", "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A fitted classifier, its evaluation, and where both were written."""

    classifier: DualPathClassifier
    evaluation: dict[str, Any]
    folder: Path


def attach(
    path: str | Path,
    out: str | Path,
    classifier: DualPathClassifier,
    *,
    force: bool = False,
) -> Attached:
    """Fit, tune and score ``classifier`` on the outputs in ``path``; write the evaluation and the model into ``out``.

    Everything is computed before anything is written. Results that other settings left in ``out`` are not written over
    unless ``force`` says so.
    """
    splits = read_outputs(path)
    if classifier.n_classes is None:
        _refuse_missing_class(splits, path)
    settings = {"outputs": splits.fingerprint, **classifier.get_params(deep=False)}
    folder = Path(out)
    if not force:
        _refuse_other_results(folder, settings)
    scored = fit_and_score(classifier, splits)
    evaluation = {"version": __version__, "source": str(Path(path).resolve()), "settings": settings, **scored}
    make_folder(folder)
    classifier.save(folder / MODEL)
    write_environment(folder)
    write_json(folder / EVALUATION, kind=KIND, schema=SCHEMA, content=evaluation)  # last: its presence says "complete"
    return Attached(classifier=classifier, evaluation=evaluation, folder=folder)


def fit_and_score(classifier: DualPathClassifier, splits: SplitOutputs) -> dict[str, Any]:
    """Bank from train, thresholds from validation, figures from test."""
    train, validation, test = splits.train, splits.validation, splits.test
    classifier.fit(train.z, train.y, train.groups, ids=train.ids, class_names=splits.class_names or None)
    classifier.tune(validation.p, validation.z, validation.y, validation.groups)
    settings = EvaluateConfig(class_names=splits.class_names)  # with intervals
    report = classifier.report(test.p, test.z, test.y, test.groups, p_teacher=test.p_teacher, settings=settings)
    rows = {"train": len(train), "val": len(validation), "test": len(test)}
    return {
        "rows": rows,
        "grouped": test.groups is not None,
        "tuning": classifier.tuning_.sentence(),
        "notes": classifier.tuning_.notes,
        **report,
    }


def _refuse_missing_class(splits: SplitOutputs, path: str | Path) -> None:
    n_classes = splits.n_classes
    advice = f"give it some, or say with  --n-classes {n_classes}  that all {n_classes} classes are meant"
    try:
        splits.train.refuse_missing_class(n_classes, splits.class_names, advice)
    except ValueError as error:
        raise InputFileError(f"{path}: {error}") from error


def _refuse_other_results(folder: Path, settings: dict[str, Any]) -> None:
    present = folder / EVALUATION
    if not present.exists():
        return
    before = read_json(present, kind=KIND, schema=SCHEMA).get("settings", {})
    differing = sorted(name for name in settings if before.get(name) != settings[name])
    if differing:
        raise ArtifactError(
            f"{folder} holds results of other settings ({', '.join(differing)} differ): take another --out, or --force"
        )
