"""The commands that work in a run's folder: ``run``, ``train``, ``embed``, ``bank``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from rich.console import Console
from rich.table import Table

from tdumpra.cli.experiments import saved_run, show, write
from tdumpra.cli.report import finish_with_report
from tdumpra.cli.run_plan import plan_command
from tdumpra.data.dataset import Dataset, open_data
from tdumpra.method.bank_health import BankHealth
from tdumpra.networks.train import make_fabric
from tdumpra.report import outcome
from tdumpra.runs.config import Config
from tdumpra.runs.documents import metadata_fingerprint
from tdumpra.runs.folder import Member, RunFolder, members, refuse_results_of_another, run_root
from tdumpra.runs.model import model_step
from tdumpra.runs.outputs import TrainedOutputs, all_outputs, folds_of_seeds
from tdumpra.runs.pixel_stages import claimed_by_first, embed_stage, train_stage
from tdumpra.runs.refit import second_pass
from tdumpra.runs.steps import Step
from tdumpra.runs.table_stages import Banked, banked, evaluate_step, tune_step
from tdumpra.screen import plain, print_json, say, show_notes
from tdumpra.tuning.goal import Goal

Work = Callable[[Config, Dataset, RunFolder, int, Fabric, Console], None]


def train_command(config: Config, *, as_json: bool = False) -> None:
    """Train student and teacher; goes on where an earlier run stopped. With ``train.refit``, the second network too."""
    _for_each_member(config, _in_turn(_train, _train_again), quiet=as_json)
    if as_json:
        print_json({_key(each): {"checkpoint": str(each.folder.checkpoint("last"))} for each in members(config)})


def embed_command(config: Config, *, as_json: bool = False) -> None:
    """Write logits and embeddings of every image: the tables that everything afterwards stands on."""
    _for_each_member(config, _in_turn(_embed, _embed_again), quiet=as_json)
    if as_json:
        print_json({_key(each): {"outputs": str(each.folder.root / "outputs")} for each in members(config)})


def _key(member: Member) -> str:
    fold = member.config.data.fold
    return str(member.seed) if fold is None else f"{member.seed}, fold {fold}"


def bank_command(config: Config, *, as_json: bool = False) -> None:
    """Cluster the training embeddings into prototypes, and look them over."""
    console = Console(quiet=as_json)
    found = {}
    for outputs in all_outputs(config):
        outputs.own_identity()  # a file that is not there is told before a folder is made for it
        with RunFolder(outputs.place).claim(outputs.config, outputs.seed):
            bank = banked(outputs)
            _show_bank(bank, RunFolder(outputs.place), console)
            if config.train.refit:
                _show_bank(banked(outputs, second=True), RunFolder(outputs.place).refit, console)
        found[outputs.name] = {"bank": str(RunFolder(outputs.place).bank), "prototypes": int(bank.bank.mask.sum()),
                               "notes": bank.health.notes}  # fmt: skip
    if as_json:
        print_json(found)


def run_command(config: Config, *, as_json: bool = False, plan: bool = False) -> None:
    """Run every stage, skipping those whose inputs have not changed; ends with the table over seeds and the report."""
    if plan:
        plan_command(config, as_json=as_json)
        return
    if config.outputs:
        saved_run(config, as_json=as_json)
        return
    root = run_root(config)
    if not run_stages(config, quiet=as_json):
        return  # one process of several has the results
    found = write(outcome.evaluate, config, root, quiet=as_json)
    show(found, root, as_json=as_json)
    alone = members(config)[0].folder.root if config.data.fold is not None and len(config.seeds) == 1 else root
    finish_with_report(alone, quiet=as_json)


def run_stages(config: Config, *, quiet: bool = False) -> dict[int, dict[str, Any]]:
    """Train, embed, cluster, tune, evaluate and write the model; return the evaluation of each seed.

    With ``train.refit``, the second network is trained and embedded after tuning.
    """
    has_results = False

    def tune(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
        if fabric.is_global_zero:
            outputs = _outputs_in(config, folder)
            _show_bank(banked(outputs), folder, console)
            _make({folder.gate: tune_step(outputs)}, console)
        fabric.barrier()

    def finish(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
        nonlocal has_results
        if fabric.is_global_zero:
            outputs = _outputs_in(config, folder)
            if config.train.refit:
                _show_bank(banked(outputs, second=True), folder.refit, console)
            _make({folder.evaluation: evaluate_step(outputs), folder.model: model_step(outputs, data)}, console)
            has_results = True
        fabric.barrier()

    encode = _in_turn(_train, _embed)
    decide = _in_turn(tune, _train_again, _embed_again, finish)

    root = run_root(config)
    places = [each.folder.root for each in members(config)]
    for folder in {root, *places, *(place.parent for place in places if config.data.outer_folds is not None)}:
        refuse_results_of_another(config, folder)
    # one choice for all seeds can be made only when all are there; else each seed is finished before the next begins
    rounds = (encode, decide) if config.tune.pool_seeds else (_in_turn(encode, decide),)
    _for_each_member(config, *rounds, quiet=quiet)
    by_seed = folds_of_seeds(all_outputs(config)) if has_results else ()
    return {folds[0].seed: dict(evaluate_step(*folds).result().document) for folds in by_seed}


def _train(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
    if train_stage(config, data, folder, seed=seed, fabric=fabric, console=console):
        say(f"Trained: {folder.checkpoint('last')}", console)
    elif config.network.as_it_is:
        say("The network is taken as it is: nothing to train", console)
    else:
        say(f"{folder.checkpoint('last')} is trained to its end", console)


def _embed(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
    if not embed_stage(config, data, folder, seed=seed, fabric=fabric, console=console):
        say(f"{folder.root / 'outputs'} is up to date", console)


def _train_again(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
    """Train the second network of ``train.refit``."""
    if not config.train.refit:
        return
    whole, place, epochs = second_pass(config, data, folder)
    if train_stage(config, whole, place, seed=seed, fabric=fabric, console=console, epochs=epochs):
        say(f"Trained on train and validation: {place.checkpoint('last')}", console)
    else:
        say(f"{place.checkpoint('last')} is trained to its end", console)


def _embed_again(config: Config, data: Dataset, folder: RunFolder, seed: int, fabric: Fabric, console: Console) -> None:
    """Write the tables of the second network of ``train.refit``."""
    if not config.train.refit:
        return
    whole, place, epochs = second_pass(config, data, folder)
    if not embed_stage(config, whole, place, seed=seed, fabric=fabric, console=console, epochs=epochs):
        say(f"{place.root / 'outputs'} is up to date", console)


def _in_turn(*works: Work) -> Work:
    """Return work that does all of these, one after the other."""

    def work(*arguments: Any) -> None:
        for each in works:
            each(*arguments)

    return work


def _outputs_in(config: Config, folder: RunFolder) -> TrainedOutputs:
    (outputs,) = (each for each in all_outputs(config) if each.place == folder.root)
    assert isinstance(outputs, TrainedOutputs)
    return outputs


def _make(steps: Mapping[Path, Step[Any]], console: Console) -> None:
    """Make what is not up to date, each in its file."""
    for path, step in steps.items():
        fresh = step.kept() is not None
        if not fresh:
            step.make()
        say(f"{path} is up to date" if fresh else f"Written: {path}", console)


def _for_each_member(config: Config, *rounds: Work, quiet: bool = False) -> None:
    if config.outputs:
        raise ValueError("this configuration names saved outputs: there is nothing to train or to embed")
    fabric = make_fabric(config.train)
    fabric.launch()
    console = Console(quiet=quiet or not fabric.is_global_zero)
    data, told = None, dict[str, None]()
    for work, (of_fold, seed, folder) in itertools.product(rounds, members(config)):
        if data is None or config.data.val_by_seed or config.data.outer_folds is not None:
            data = open_data(of_fold.data, seed, progress=console.is_terminal)
            show_notes([note for note in data.notes if note not in told], console)
            told |= dict.fromkeys(data.notes)
            _refuse_what_cannot_be_scored(config, data)
        with claimed_by_first(folder, of_fold, seed, fabric):
            if fabric.is_global_zero:
                data.split.write(folder.split)
            work(of_fold, data, folder, seed, fabric, console)


def _refuse_what_cannot_be_scored(config: Config, data: Dataset) -> None:
    """Refuse before hours of training what tuning and evaluation would refuse after them."""
    names = data.manifest.class_names
    Goal.check(config.tune.objective, config.tune.costs, n_classes=len(names))
    config.tune.certified_classes(names, len(names))
    asked = replace(config.evaluate, class_names=config.evaluate.class_names or names)
    asked.chosen_classes(len(names))
    if asked.metadata is not None:
        metadata_fingerprint(config)  # the table must be there; its columns are subgroups too
        return
    records = (data.manifest.records[row] for row in data.rows("test"))
    asked.check_subgroups(sorted({key for record in records for key in record.meta}))


def _show_bank(banked: Banked, folder: RunFolder, console: Console) -> None:
    if not banked.made:
        say(f"{folder.bank} is up to date", console)
        return
    console.print(_health_table(banked.health))
    show_notes(banked.health.notes, console)
    say(f"Written to {folder.bank} ({int(banked.bank.mask.sum())} prototypes)", console)


def _health_table(health: BankHealth) -> Table:
    table = Table("class", "prototypes", "merged", "effective", "cohesion", "nearest other class")
    for each in health.classes:
        table.add_row(
            plain(each.name), str(each.live), str(each.merged), f"{each.effective:.1f}", f"{each.cohesion:.3f}",
            f"{each.nearest_other:.3f}",
        )  # fmt: skip
    return table
