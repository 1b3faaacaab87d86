"""The paper's Table 3: six variants, each a small change of one configuration over trainings that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from tdumpra.core import metrics
from tdumpra.core.gate import fuse_linear
from tdumpra.evaluation.evaluate import gate_report
from tdumpra.evaluation.metrics_table import HEADINGS
from tdumpra.evaluation.over_seeds import Figure, mean_and_deviation
from tdumpra.experiments import paper
from tdumpra.experiments.grid import variant_step
from tdumpra.experiments.results import ResultTable, Value
from tdumpra.experiments.together import refuse_mixed, refuse_several_backbones, refuse_strangers, rows_scored
from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs.config import Config, TrainConfig
from tdumpra.runs.outputs import Outputs, all_outputs, unknown_of_files, variant_outputs
from tdumpra.runs.steps import Step
from tdumpra.tuning.fit import Fitted
from tdumpra.tuning.goal import Goal

Fusion = Literal["none", "fixed", "gated"]


class Variant(NamedTuple):
    """A row of the table: how the network is trained, in which space the bank lives, and how the paths are fused."""

    name: str
    contrastive: bool
    space: Literal["student", "teacher"]
    fusion: Fusion


VARIANTS = (
    Variant("classifier", False, "student", "none"),
    Variant("+ prototypes, gated", False, "student", "gated"),
    Variant("classifier + contrastive loss", True, "student", "none"),
    Variant("+ contrastive loss, prototypes, fixed fusion", True, "student", "fixed"),
    Variant("+ contrastive loss, EMA, prototypes, fixed fusion", True, "teacher", "fixed"),
    Variant("+ contrastive loss, EMA, prototypes, gated", True, "teacher", "gated"),
)


def variant_config(config: Config, variant: Variant) -> Config:
    """The change that makes the variant. Variants with the same training differ after it only."""
    weight = config.train.contrastive_weight or TrainConfig().contrastive_weight
    return replace(
        config,
        train=replace(config.train, contrastive_weight=weight if variant.contrastive else 0.0),
        bank=replace(config.bank, space=variant.space),
    )


def steps(config: Config, out: Path) -> list[Step[dict[str, Any]]]:
    """Make a step for each variant and seed; variants whose outputs cannot be had have none."""
    refuse_several_backbones(config, "an ablation")
    if not config.outputs and config.network.as_it_is:
        raise ValueError(
            "an ablation trains networks with the contrastive loss and without, and this one is taken as it is"
        )
    if config.outputs:
        refuse_strangers(all_outputs(config), of_one="backbone")
    return [
        _step(_name(number, variant, outputs.seed), variant, outputs, out)
        for number, variant in enumerate(VARIANTS, start=1)
        for outputs in variant_outputs(variant_config(config, variant))
    ]


def _name(number: int, variant: Variant, seed: int) -> str:
    return f"row {number}, seed {seed}: {variant.name}"


def _step(name: str, variant: Variant, outputs: Outputs, out: Path) -> Step[dict[str, Any]]:
    return variant_step(
        out, name, {"ablate": variant._asdict()}, outputs,
        lambda splits, fitted: score(splits, fitted, variant.fusion, outputs.config),
    )  # fmt: skip


def score(splits: SplitOutputs, fitted: Fitted, fusion: Fusion, config: Config) -> dict[str, Any]:
    """A variant's metrics on test, and what it did to the classifier's predictions."""
    decision, y = fitted.tuning.decision, splits.test.y
    decided = decision.decide(splits.test.p, splits.test.z)
    p, opened, alpha = decided.p, decided.opened, None
    if fusion == "none":
        p, opened = decided.p_cls, torch.zeros_like(opened)
    elif fusion == "fixed":
        alpha = fixed_alpha(splits, fitted, config)
        p, opened = fuse_linear(decided.p_cls, decided.p_sim, alpha=alpha), torch.ones_like(opened)
    report = gate_report(decided.p_cls, decided.p_sim, p, y, splits.test.groups, opened=opened)
    changed = {name: report[name] for name in ("opened", "flipped", "fixed", "broken")}
    return {
        **metrics.classification_metrics(p.double().numpy(), y.numpy()),
        **changed,
        "alpha": alpha,
        "test_rows": rows_scored(splits),
    }


def fixed_alpha(splits: SplitOutputs, fitted: Fitted, config: Config) -> float:
    """The classifier's weight on every row, which the paper leaves open: of the preset's, the best on validation."""
    validation = splits.validation
    goal = Goal.check(config.tune.objective, config.tune.costs, n_classes=splits.n_classes)
    decided = fitted.unseen.decide(validation.p, validation.z)

    def objective(alpha: float) -> float:
        return goal.score(fuse_linear(decided.p_cls, decided.p_sim, alpha=alpha), validation.y).objective

    return max(sorted(config.tune.searched().alpha, reverse=True), key=objective)


def table(config: Config, results: Mapping[str, Mapping[str, Any]]) -> ResultTable:
    """Six rows, ours beside the paper's; ``results`` by the cells' names."""
    rows: list[dict[str, Value]] = []
    protocol = "" if config.outputs else f"Protocol {config.data.protocol}; "
    settings = f"{protocol}preset {config.tune.preset_name}, objective {config.tune.objective}"
    notes = [
        f"{settings[0].upper()}{settings[1:]}; figures of the test rows, everything else chosen on validation.",
        *unknown_of_files(config),
        "The paper's rows are of a Swin-B under another split: compare the steps between rows, not the levels.",
    ]
    if config.bank.space not in ("teacher", "student"):
        notes.append(
            f"bank.space = {config.bank.space!r} is no part of it: the banks live in the networks' own spaces."
        )
    if not config.outputs:
        refuse_mixed(results.values())
    for number, (variant, reported) in enumerate(zip(VARIANTS, paper.ABLATION, strict=True), start=1):
        seeds = [outputs.seed for outputs in variant_outputs(variant_config(config, variant))]
        of_seeds = [results[_name(number, variant, seed)] for seed in seeds]
        row: dict[str, Value] = {"number": number, "variant": variant.name, "seeds": len(seeds)}
        for metric, value in zip(paper.ABLATION_METRICS, reported, strict=True):
            row[metric] = mean_and_deviation(result[metric] for result in of_seeds) if of_seeds else "no outputs"
            row[f"paper_{metric}"] = Figure(value)
        for change in ("fixed", "broken"):
            row[change] = sum(int(result[change]) for result in of_seeds) if of_seeds else None
        rows.append(row)
        if not seeds:
            loss = "with" if variant.contrastive else "without"
            notes.append(f"Row {number}: no outputs were given of a network trained {loss} the contrastive loss.")
    if any(row["seeds"] == 1 for row in rows):
        notes.append("One seed has no standard deviation.")
    columns = {"number": "#", "variant": "Variant", "seeds": "Seeds"}
    columns |= {metric: HEADINGS[metric] for metric in paper.ABLATION_METRICS}
    columns |= {"fixed": "Fixed", "broken": "Broken"}
    columns |= {f"paper_{metric}": f"Paper: {HEADINGS[metric]}" for metric in paper.ABLATION_METRICS}
    screen = ("number", "variant", "accuracy", "paper_accuracy", "balanced_accuracy", "paper_balanced_accuracy")
    return ResultTable(
        title="Ablation (Table 3 of the paper)",
        columns=columns,
        rows=rows,
        notes=notes,
        screen=(*screen, "ece", "fixed", "broken"),
    )
