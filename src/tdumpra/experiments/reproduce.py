"""The paper's Tables 1 and 2: backbones with and without the method, over seeds, the paper's figures beside ours.

A table speaks of one data set: it is made from that data set's own images, or from saved outputs of which the user says
so. Which weights each backbone started from is part of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra.data.sources import open_source
from tdumpra.evaluation.metrics_table import HEADINGS
from tdumpra.evaluation.over_seeds import Figure, mean_and_deviation
from tdumpra.experiments import paper
from tdumpra.experiments.ablate import Fusion, calibrates, score
from tdumpra.experiments.grid import variant_step
from tdumpra.experiments.pretraining import Weights, pretrained_network, pretraining, refuse_missing_weights
from tdumpra.experiments.results import ResultTable, Value
from tdumpra.experiments.together import refuse_folds, refuse_mixed, refuse_strangers
from tdumpra.runs.config import Config, OutputFile, TrainConfig, read_config
from tdumpra.runs.folder import differences
from tdumpra.runs.outputs import Outputs, all_outputs, unknown_of_files, variant_outputs
from tdumpra.runs.steps import Step

PROTOCOLS = {
    "grouped": "lesion-disjoint split",
    "paper": "split by image, as the paper's appears to be: lesions are shared between train and test",
    "external": "official ISIC 2018 Task 3 test",
}
_OFFICIAL_TEST = "isic2018-task3"
_UNKNOWN = "the split of the saved outputs"
_NO_SETTING = ("name", "folder", "recipe", "data.source", "network.backbone", "network.weights", "evaluate", "sweep")


class Entry(NamedTuple):
    """A row: a backbone without the method (cross-entropy alone), that one calibrated, or a backbone with it."""

    backbone: str
    config: Config
    fusion: Fusion
    seeds: tuple[int, ...]

    def cell(self, seed: int) -> str:
        """Return a name for a person, by which a seed's result is found again."""
        how = {"none": "without", "calibrated": "without, calibrated"}.get(self.fusion, "with")
        return f"{self.backbone} {how}, seed {seed}"


def which_table(named: str, config: Config) -> str:
    """Return the data set whose table is meant; refuse a configuration that is of another one, or does not say.

    Args:
        named: on the command line; empty if nothing was.
        config: its source names the data set. Beside saved outputs the source is no more than that name.
    """
    kind = config.data.source.split(":")[0]
    known = " and ".join(paper.DATASETS)
    if config.outputs and kind not in paper.DATASETS:
        if not named:
            raise ValueError(
                f"saved outputs do not say which data set they are of, and the paper has tables for {known}: say it, "
                f"as in  tdumpra reproduce {paper.DATASETS[0]} CONFIG"
            )
        return named
    if kind not in paper.DATASETS:
        raise ValueError(f"the paper has tables for {known}, and the source of {config.name} is {kind}")
    if named and named != kind:
        raise ValueError(f"the table of {named} cannot be made from {kind}, the source of {config.name}")
    if not config.outputs:
        _refuse_another_test(kind, config)
    return kind


def _refuse_another_test(dataset: str, config: Config) -> None:
    """Refuse a test of which the title, which names only the protocol, would not be true."""
    data = config.data
    for name in ("group_by", "split_file", "hold_out"):
        if getattr(data, name) is not None:
            raise ValueError(
                f"a table of the paper names its split by its protocol, and data.{name} makes another one: leave it "
                "out, or use tdumpra run"
            )
    if data.protocol == "external":
        test = (data.test_source or "").split(":")[0]
        if dataset != "ham10000":
            raise ValueError(f"the protocol 'external' is for the table of ham10000, not for that of {dataset}")
        if test != _OFFICIAL_TEST:
            raise ValueError(
                f"the protocol 'external' of a table is the official ISIC 2018 Task 3 test: data.test_source must be "
                f"{_OFFICIAL_TEST}:DIR, not {data.test_source or 'left out'}"
            )
    elif data.test_source is not None:
        raise ValueError(
            f"data.test_source replaces the test of the protocol {data.protocol!r}: leave it out of a table of the "
            "paper, or set data.protocol to external"
        )


def refuse(weights: Weights, config: Config, out: Path) -> None:
    """Refuse, before anything is written, what would fail in the middle: images or weights that are not there."""
    if config.outputs:
        return
    open_images(config, metadata_only=False)
    to_train = {
        entry.backbone: entry.config.network
        for entry in entries(config, weights)
        if any(outputs.seconds_to_make() != 0 for outputs in variant_outputs(entry.config))
    }
    refuse_missing_weights(to_train)


def open_images(config: Config, *, metadata_only: bool) -> int:
    """Read the tables of the data set, and find its images unless ``metadata_only``; return how many to learn from."""
    data = config.data
    manifest = open_source(
        data.source, allow_missing=data.allow_missing, metadata_only=metadata_only, group_column=data.group_by,
        duplicates=data.duplicates,
    )  # fmt: skip
    return sum(record.split is None for record in manifest.records)  # an official test set is counted apart


def plan_notes(config: Config) -> tuple[str, ...]:
    """Read the tables, which are enough for a plan; return what is to be said of them: images without a file, say."""
    data = config.data
    train = open_source(data.source, allow_missing=data.allow_missing, metadata_only=True, duplicates=data.duplicates)
    if data.test_source is None:
        return train.notes
    return (*train.notes, *open_source(data.test_source, allow_missing=data.allow_missing, metadata_only=True).notes)


def entries(config: Config, weights: Weights) -> list[Entry]:
    """List what is to be run: the saved models, or the paper's backbones on the configuration's seeds."""
    if config.outputs:
        files: dict[str, list[OutputFile]] = {}
        for entry, outputs in zip(config.outputs, all_outputs(config), strict=True):
            files.setdefault(outputs.backbone, []).append(replace(entry, seed=outputs.seed))
        configs = [(name, replace(config, outputs=tuple(of_name))) for name, of_name in files.items()]
    else:
        configs = [
            (each.name, replace(config, network=pretrained_network(each, config.network, weights)))
            for each in paper.BACKBONES
        ]
    weight = config.train.contrastive_weight or TrainConfig().contrastive_weight
    fusions: tuple[Fusion, ...] = ("none", "calibrated", "gated") if calibrates(config) else ("none", "gated")
    found = []
    for name, of_backbone in configs:
        for fusion in fusions:
            train = replace(of_backbone.train, contrastive_weight=weight if fusion == "gated" else 0.0)
            changed = replace(of_backbone, train=train)
            found.append(Entry(name, changed, fusion, tuple(each.seed for each in variant_outputs(changed))))
    return found


def steps(dataset: str, weights: Weights, config: Config, out: Path) -> list[Step[dict[str, Any]]]:
    """Make a step for each backbone, training and seed."""
    refuse_folds(config, "a reproduction")
    if config.outputs:
        refuse_strangers(all_outputs(config), of_one="backbone")
    return [
        _step(dataset, entry, outputs, out)
        for entry in entries(config, weights)
        for outputs in variant_outputs(entry.config)
    ]


def _step(dataset: str, entry: Entry, outputs: Outputs, out: Path) -> Step[dict[str, Any]]:
    return variant_step(
        out, entry.cell(outputs.seed), {"reproduce": dataset, "fusion": entry.fusion}, outputs,
        lambda splits, fitted: score(splits, fitted, entry.fusion, entry.config),
    )  # fmt: skip


def table(
    dataset: str, weights: Weights, config: Config, results: Mapping[str, Mapping[str, Any]], images: int | None = None
) -> ResultTable:
    """The paper's backbones without and with the method, ours where they were run, and what else was run.

    ``images`` is how many the source has, where it is known; the table says so where the data set has another number.
    """
    ours = entries(config, weights)
    if not config.outputs:
        refuse_mixed(results.values())
    rows: list[dict[str, Value]] = []
    names = [each.name for each in paper.BACKBONES]
    for backbone in dict.fromkeys([*names, *(entry.backbone for entry in ours)]):
        of_backbone = {entry.fusion: entry for entry in ours if entry.backbone == backbone}
        rows += _rows(dataset, backbone, of_backbone, results)
    columns = {"method": "Method", "pretraining": "Pretraining", "seeds": "Seeds"}
    columns |= {metric: HEADINGS[metric] for metric in paper.TABLE_METRICS} | {"delta": "Delta accuracy"}
    columns |= {f"paper_{metric}": f"Paper: {HEADINGS[metric]}" for metric in paper.TABLE_METRICS}
    columns |= {"paper_delta": "Paper: Delta accuracy"}
    pairs = [name for metric in ("accuracy", "balanced_accuracy") for name in (metric, f"paper_{metric}")]
    return ResultTable(
        title=_title(dataset, config),
        columns=columns,
        rows=rows,
        notes=[*_notes(dataset, config, rows), *_incomplete(dataset, images)],
        screen=("method", "seeds", *pairs, "delta", "paper_delta"),
    )


def _rows(
    dataset: str, backbone: str, ours: Mapping[Fusion, Entry], results: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Value]]:
    """The rows of one backbone; that of calibration alone only where ours calibrates."""
    methods: dict[Fusion, str] = {"none": backbone, "calibrated": "calibrated alone", "gated": "with T-DuMpRa"}
    rows: list[dict[str, Value]] = []
    base: Figure | None = None
    for fusion, method in methods.items():
        entry = ours.get(fusion)
        if fusion == "calibrated" and entry is None:
            continue
        values = _figures(entry, results)
        reported = {} if fusion == "calibrated" else paper.reported(dataset, backbone, with_method=fusion == "gated")
        row: dict[str, Value] = {"method": method, "seeds": len(entry.seeds) if entry else 0}
        row["pretraining"] = None if entry is None else pretraining(entry.config)
        for metric in paper.TABLE_METRICS:
            row[metric] = values.get(metric) or "not run"
            row[f"paper_{metric}"] = reported.get(metric)
        row["delta"] = _delta(base, values.get("accuracy"))
        row["paper_delta"] = paper.reported_delta(dataset, backbone) if fusion == "gated" else None
        base = values.get("accuracy") if fusion == "none" else base
        rows.append(row)
    return rows


def _figures(entry: Entry | None, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    if entry is None or not entry.seeds:
        return {}
    of_seeds = [results[entry.cell(seed)] for seed in entry.seeds]
    return {metric: mean_and_deviation(result[metric] for result in of_seeds) for metric in paper.TABLE_METRICS}


def _delta(before: Figure | None, after: Figure | None) -> Value:
    """The tables' "Delta Acc": the gain in per cent of the baseline."""
    if before is None or after is None or before.mean is None or after.mean is None:
        return None
    return f"{100 * (after.mean / before.mean - 1):+.2f}%"


def _title(dataset: str, config: Config) -> str:
    number = paper.DATASETS.index(dataset) + 1
    protocol = _UNKNOWN if config.outputs else PROTOCOLS[config.data.protocol]
    what = f"Saved outputs that are said to be of {dataset}" if config.outputs else dataset
    return f"{what}, across backbones (Table {number} of the paper), protocol: {protocol}"


def _notes(dataset: str, config: Config, rows: list[dict[str, Value]]) -> list[str]:
    tuned = f"prototypes and gate (preset {config.tune.preset_name}, tuned for {config.tune.objective} on validation)"
    notes = [
        f"Without: files that were trained with cross-entropy alone. With: the other files, {tuned}. That they are "
        f"outputs of {dataset} is what their user says."
        if config.outputs
        else f"Without: cross-entropy alone, on the same two views. With: joint objective, EMA teacher, {tuned}.",
        "Without is the classifier as it is, before any calibration.",
        *unknown_of_files(config),
        *([] if config.outputs else [_against_the_recipe(config)]),
        "Delta accuracy is relative to the backbone's first row, as in the paper. The paper names an official split "
        "and no lesion grouping; its levels are not comparable with a lesion-disjoint test.",
    ]
    if any(row["seeds"] == 1 for row in rows):
        notes.append("One seed has no standard deviation.")
    return notes


def _incomplete(dataset: str, images: int | None) -> list[str]:
    published = paper.IMAGES[dataset]
    if images in (None, published):
        return []
    return [f"The source has {images:,} images, and {dataset} as published has {published:,}."]


def _against_the_recipe(config: Config) -> str:
    """Say whether everything but the backbone is as in the paper's recipe."""
    recipe = read_config(None, changes=["recipe=paper"])
    changed = [key for key in differences(recipe, config) if not key.startswith(_NO_SETTING)]
    if not changed:
        return 'The setting is that of recipe = "paper".'
    return f'Not the setting of recipe = "paper": {", ".join(changed)} differ{"s" if len(changed) == 1 else ""}.'
