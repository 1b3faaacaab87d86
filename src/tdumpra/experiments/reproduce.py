"""The paper's Tables 1 and 2: backbones with and without the method, over seeds, the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra.evaluation.metrics_table import HEADINGS
from tdumpra.evaluation.over_seeds import Figure, mean_and_deviation
from tdumpra.experiments import paper
from tdumpra.experiments.ablate import Fusion, score
from tdumpra.experiments.grid import variant_step
from tdumpra.experiments.results import ResultTable, Value
from tdumpra.experiments.together import refuse_mixed, refuse_strangers
from tdumpra.runs.config import Config, OutputFile, TrainConfig
from tdumpra.runs.outputs import Outputs, all_outputs, unknown_of_files, variant_outputs
from tdumpra.runs.steps import Step

SEEDS = (0, 1, 2)
PROTOCOLS = {
    "grouped": "lesion-disjoint split",
    "paper": "split by image, as the paper's appears to be: lesions are shared between train and test",
    "external": "official ISIC 2018 Task 3 test",
}
_UNKNOWN = "the split of the saved outputs"


class Entry(NamedTuple):
    """One half of a pair of rows: a backbone without the method (cross-entropy alone), or with it."""

    backbone: str
    config: Config
    with_method: bool
    seeds: tuple[int, ...]


def entries(config: Config) -> list[Entry]:
    """List what is to be run: the saved models, or the five backbones on three seeds."""
    if config.outputs:
        files: dict[str, list[OutputFile]] = {}
        for entry, outputs in zip(config.outputs, all_outputs(config), strict=True):
            files.setdefault(outputs.backbone, []).append(replace(entry, seed=outputs.seed))
        configs = [(name, replace(config, outputs=tuple(of_name))) for name, of_name in files.items()]
    else:
        seeds = config.seeds if len(config.seeds) > 1 else SEEDS
        weights = "none" if config.network.weights == "none" else "timm"  # a file's fit one backbone at best
        configs = [
            (
                each.name,
                replace(config, seeds=seeds, network=replace(config.network, backbone=each.timm, weights=weights)),
            )
            for each in paper.BACKBONES
        ]
    weight = config.train.contrastive_weight or TrainConfig().contrastive_weight
    found = []
    for name, of_backbone in configs:
        for with_method in (False, True):
            train = replace(of_backbone.train, contrastive_weight=weight if with_method else 0.0)
            changed = replace(of_backbone, train=train)
            found.append(Entry(name, changed, with_method, tuple(each.seed for each in variant_outputs(changed))))
    return found


def steps(dataset: str, config: Config, out: Path) -> list[Step[dict[str, Any]]]:
    """Make a step for each backbone, training and seed."""
    if config.outputs:
        refuse_strangers(all_outputs(config), of_one="backbone")
    return [
        _step(dataset, entry, outputs, out) for entry in entries(config) for outputs in variant_outputs(entry.config)
    ]


def _name(entry: Entry, seed: int) -> str:
    return f"{entry.backbone} {'with' if entry.with_method else 'without'}, seed {seed}"


def _step(dataset: str, entry: Entry, outputs: Outputs, out: Path) -> Step[dict[str, Any]]:
    fusion: Fusion = "gated" if entry.with_method else "none"
    return variant_step(
        out, _name(entry, outputs.seed), {"reproduce": dataset, "with_method": entry.with_method}, outputs,
        lambda splits, fitted: score(splits, fitted, fusion, entry.config),
    )  # fmt: skip


def table(dataset: str, config: Config, results: Mapping[str, Mapping[str, Any]]) -> ResultTable:
    """Pairs of rows: the paper's backbones, ours where they were run, and what else was run."""
    ours = entries(config)
    if not config.outputs:
        refuse_mixed(results.values())
    rows: list[dict[str, Value]] = []
    names = [each.name for each in paper.BACKBONES]
    for backbone in dict.fromkeys([*names, *(entry.backbone for entry in ours)]):
        base: dict[str, Figure] = {}
        for with_method in (False, True):
            entry = next((e for e in ours if (e.backbone, e.with_method) == (backbone, with_method)), None)
            values = _figures(entry, results)
            reported = paper.reported(dataset, backbone, with_method=with_method)
            row: dict[str, Value] = {"method": "with T-DuMpRa" if with_method else backbone}
            row["seeds"] = len(entry.seeds) if entry else 0
            for metric in paper.TABLE_METRICS:
                row[metric] = values.get(metric) or "not run"
                row[f"paper_{metric}"] = reported.get(metric)
            row["delta"] = _delta(base.get("ours"), values.get("accuracy")) if with_method else None
            row["paper_delta"] = _delta(base.get("paper"), reported.get("accuracy")) if with_method else None
            base = {name: figure for name, figure in
                    (("ours", values.get("accuracy")), ("paper", reported.get("accuracy"))) if figure}  # fmt: skip
            rows.append(row)
    columns = {"method": "Method", "seeds": "Seeds"}
    columns |= {metric: HEADINGS[metric] for metric in paper.TABLE_METRICS} | {"delta": "Delta accuracy"}
    columns |= {f"paper_{metric}": f"Paper: {HEADINGS[metric]}" for metric in paper.TABLE_METRICS}
    columns |= {"paper_delta": "Paper: Delta accuracy"}
    pairs = [name for metric in ("accuracy", "balanced_accuracy") for name in (metric, f"paper_{metric}")]
    return ResultTable(
        title=_title(dataset, config),
        columns=columns,
        rows=rows,
        notes=_notes(config, rows),
        screen=("method", "seeds", *pairs, "delta", "paper_delta"),
    )


def _figures(entry: Entry | None, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    if entry is None or not entry.seeds:
        return {}
    of_seeds = [results[_name(entry, seed)] for seed in entry.seeds]
    return {metric: mean_and_deviation(result[metric] for result in of_seeds) for metric in paper.TABLE_METRICS}


def _delta(before: Figure | None, after: Figure | None) -> Value:
    if before is None or after is None or before.mean is None or after.mean is None:
        return None
    return f"{paper.relative_gain(before.mean, after.mean):+.2f}%"


def _title(dataset: str, config: Config) -> str:
    number = paper.DATASETS.index(dataset) + 1
    if config.outputs:
        return f"Saved outputs beside {dataset} across backbones (Table {number} of the paper), protocol: {_UNKNOWN}"
    return f"{dataset} across backbones (Table {number} of the paper), protocol: {PROTOCOLS[config.data.protocol]}"


def _notes(config: Config, rows: list[dict[str, Value]]) -> list[str]:
    tuned = f"prototypes and gate (preset {config.tune.preset_name}, tuned for {config.tune.objective} on validation)"
    notes = [
        f"Without: files that were trained with cross-entropy alone. With: the other files, {tuned}. Which images they "
        "are outputs of is not known: compare with the paper's figures only if it is the same data set."
        if config.outputs
        else f"Without: cross-entropy alone, on the same two views. With: joint objective, EMA teacher, {tuned}.",
        *unknown_of_files(config),
        "Delta accuracy is relative to the row above, as in the paper. The paper names an official split and no lesion "
        "grouping; its levels are not comparable with a lesion-disjoint test.",
    ]
    if not config.outputs and len(config.seeds) == 1:
        taken = ", ".join(map(str, SEEDS))
        notes.append(f"Seeds {taken}: the configuration names seed {config.seeds[0]} alone, and a table wants several.")
    if any(row["seeds"] == 1 for row in rows):
        notes.append("One seed has no standard deviation.")
    return notes
