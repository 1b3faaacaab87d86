"""MLflow: log a run's folder, and save a model that MLflow can load and serve. Needs the extra ``mlflow``.

>>> from tdumpra.integrations.mlflow import log_run, save_model  # doctest: +SKIP
>>> log_run("runs/ham")  # doctest: +SKIP
>>> save_model("runs/ham/model.safetensors", "for-mlflow")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tdumpra import __version__
from tdumpra.errors import ArtifactError, InputFileError, MissingExtraError
from tdumpra.networks.checkpoint import TrainingFiles
from tdumpra.networks.model_file import Model
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.steps import read_document
from tdumpra.toml import read_toml

_CODE = Path(__file__).with_name("mlflow_code.py")
_LONGEST = 500  # characters of a parameter that every MLflow server takes
_AT_ONCE = 100  # parameters and metrics of one request
_LEFT_OUT = {"checkpoints", "outputs", "cache", "refit"}  # weights and tables, which are large and can be made again


def log_run(
    folder: str | Path, *, run_name: str | None = None, with_model: bool = True, trusted: Collection[str] = ()
) -> str:
    """Log a run's folder to MLflow and return the id of MLflow's run: settings, figures, curves and files.

    It goes to the active run if there is one, else to a new one, wherever ``MLFLOW_TRACKING_URI`` points.

    Args:
        folder: of a run of one seed, or of ``attach``.
        run_name: of a new run; the configuration's name if left out.
        with_model: also log the model, as :func:`save_model` saves it, if it has networks.
        trusted: as in :func:`save_model`.
    """
    mlflow = _mlflow()
    place = RunFolder(Path(folder))
    if not place.evaluation.is_file():
        raise InputFileError(f"{place.root} holds no evaluation.json: name the folder of a finished run of one seed")
    evaluation = read_document(place.evaluation, "evaluation")
    settings = dict(_flat(read_toml(place.config))) if place.config.is_file() else {}
    active = mlflow.active_run()
    run = active or mlflow.start_run(run_name=run_name or evaluation.get("name"))
    try:
        _log_in_parts(mlflow.log_params, {key: str(value)[:_LONGEST] for key, value in settings.items()})
        _log_in_parts(mlflow.log_metrics, dict(_figures(evaluation)))
        for step, values in _curves(place.root):
            mlflow.log_metrics(values, step=step)
        mlflow.set_tags(
            {"tdumpra.version": __version__, "tdumpra.tuning": str(evaluation.get("tuning", ""))[:_LONGEST]}
        )
        for path in sorted(place.root.iterdir()):
            if path.is_dir() and path.name not in _LEFT_OUT and not path.name.startswith("."):
                mlflow.log_artifacts(str(path), path.name)
            elif path.is_file() and path != place.model and not path.name.startswith("."):
                mlflow.log_artifact(str(path))
        if with_model and place.model.is_file() and _has_networks(place.model):
            mlflow.pyfunc.log_model(name="model", **_saved(place.model, trusted))
    finally:
        if active is None:
            mlflow.end_run()
    return str(run.info.run_id)


def save_model(model: str | Path, folder: str | Path, *, trusted: Collection[str] = ()) -> Path:
    """Save a model in MLflow's format: a file of code and the sealed model file, nothing pickled.

    Args:
        model: ``model.safetensors`` with networks inside.
        folder: a new one. ``mlflow.pyfunc.load_model(folder)`` loads it, ``mlflow models serve -m folder`` serves it.
        trusted: factories that may build the model's networks, as in :class:`tdumpra.Predictor`.
    """
    mlflow = _mlflow()
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputFileError(f"{target} is there already: name a new folder")
    Model.read(model)  # what cannot be used later is refused now
    mlflow.pyfunc.save_model(path=str(target), **_saved(Path(model), trusted))
    return target


def _saved(model: Path, trusted: Collection[str]) -> dict[str, Any]:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    inputs = Schema([ColSpec("string", "path", required=False), ColSpec("binary", "image", required=False)])
    return {
        "python_model": str(_CODE),
        "signature": ModelSignature(inputs=inputs),
        "artifacts": {"model": str(model.resolve())},
        "model_config": {"trusted": list(trusted)},
        "pip_requirements": [f"tdumpra=={__version__}", "pandas"],  # given, or MLflow would try the model to find them
    }


def _has_networks(path: Path) -> bool:
    try:
        Model.read(path)
    except ArtifactError:
        return False
    return True


def _figures(evaluation: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the test figures: ``gate.accuracy`` and the like, with the ends of their intervals where there are any."""
    for who, metrics in evaluation["comparators"].items():
        for name, value in metrics.items():
            if value is not None:
                yield f"{who}.{name}", float(value)
            interval = evaluation.get("intervals", {}).get(who, {}).get(name)
            if interval and None not in interval:
                yield f"{who}.{name}.low", float(interval[0])
                yield f"{who}.{name}.high", float(interval[1])
    for name in ("opened", "fixed", "broken"):
        yield f"gate.{name}", float(evaluation["gate"][name])


def _curves(folder: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the numbers of each line of a training's log, with its step."""
    for said in TrainingFiles(folder).read_metrics():
        values = {
            f"train.{key}": float(value)
            for key, value in said.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and key != "step"
        }
        if values:
            yield said["step"], values


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _log_in_parts(log: Any, values: Mapping[str, Any]) -> None:
    items = list(values.items())
    for start in range(0, len(items), _AT_ONCE):
        log(dict(items[start : start + _AT_ONCE]))


def _mlflow() -> Any:
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtraError("mlflow-skinny", "mlflow", "logging to MLflow") from error
    import mlflow.pyfunc

    return mlflow
