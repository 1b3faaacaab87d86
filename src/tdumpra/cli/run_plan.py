"""``tdumpra run --plan``: what a run would do. The tables of its data suffice; no image need be there yet."""

from __future__ import annotations

from collections.abc import Iterator

from tdumpra.cli.experiments import show_plan
from tdumpra.data.dataset import split_data
from tdumpra.data.manifest import Manifest
from tdumpra.data.splits import Split
from tdumpra.errors import NoImagesError
from tdumpra.networks.checkpoint import is_finished, training_identity
from tdumpra.report import outcome
from tdumpra.runs import trainings
from tdumpra.runs.config import Config, DataConfig
from tdumpra.runs.folder import Member, members, run_root
from tdumpra.runs.outputs import Outputs, TrainedOutputs, all_outputs, folds_of_seeds
from tdumpra.runs.steps import Planned, plan
from tdumpra.runs.table_stages import evaluate_step, refit_step, tune_step


def plan_command(config: Config, *, as_json: bool = False) -> None:
    """Show the stages of each seed and fold, with how many images each takes, and which of them are finished."""
    if config.outputs:
        show_plan(plan(outcome.evaluate.steps(config, run_root(config))), as_json)
        return
    planned: list[Planned] = []
    told: dict[str, None] = {}
    outputs = all_outputs(config)
    for member, of_member in zip(members(config), outputs, strict=True):
        manifest, split = _split(member.config.data, member.seed)
        told |= dict.fromkeys((*manifest.notes, *split.notes))
        planned += _stages(member, of_member, split)
    for folds in folds_of_seeds(outputs):
        if len(folds) > 1:
            done = all(_embedded(member) for member in members(config)) and evaluate_step(*folds).kept() is not None
            planned.append(Planned(f"{folds[0].seed_name}: evaluate the folds together", done, 6.0))
    show_plan(planned, as_json, list(told))


def _split(data: DataConfig, seed: int) -> tuple[Manifest, Split]:
    try:
        return split_data(data, seed)
    except NoImagesError:  # they may still be on their way; a note says so
        return split_data(data, seed, metadata_only=True)


def _stages(member: Member, outputs: Outputs, split: Split) -> Iterator[Planned]:
    config, seed, folder = member
    counts = {part: f"{len(split.rows(part)):,} images" for part in ("train", "val", "test")}
    embedded = _embedded(member)
    if not config.network.as_it_is:
        trained = is_finished(folder.checkpoint("last"), training_identity(config.train, seed))
        seconds = trainings.seconds_to_train(config, folder, seed)
        yield Planned(f"{outputs.name}: train on {counts['train']}", trained, seconds)
    yield Planned(f"{outputs.name}: embed {len(split.codes):,} images", embedded, None)
    tuned = embedded and tune_step(outputs).kept() is not None
    yield Planned(f"{outputs.name}: tune on {counts['val']}", tuned, 2.0)
    if isinstance(outputs, TrainedOutputs) and config.train.refit:
        again = refit_step(outputs)
        both = len(split.rows("train")) + len(split.rows("val"))
        done = tuned and again.kept() is not None
        yield Planned(f"{outputs.name}: train and embed a second network on {both:,} images", done, again.seconds)
    scored = tuned and evaluate_step(outputs).kept() is not None
    yield Planned(f"{outputs.name}: evaluate on {counts['test']}", scored, 6.0)


def _embedded(member: Member) -> bool:
    return trainings.is_made(member.folder, member.config, member.seed)
