"""Steps of an experiment: the stages of a run over a grid of small changes of one configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tdumpra.method.output_files import SplitOutputs
from tdumpra.runs.outputs import Outputs
from tdumpra.runs.steps import Step, cell
from tdumpra.runs.table_stages import fitted_variant, gate_made_from
from tdumpra.tuning.fit import Fitted
from tdumpra.tuning.presets import Preset


def variant_step(
    out: Path,
    name: str,
    what: Mapping[str, Any],
    outputs: Outputs,
    compute: Callable[[SplitOutputs, Fitted], Mapping[str, Any]],
    *,
    preset: Preset | None = None,
) -> Step[dict[str, Any]]:
    """Make a step that tunes a variant and computes something from it; variants with equal gates tune once.

    Args:
        out: the folder of the experiment.
        name: for a person, and to find the result again.
        what: says what ``compute`` does; the step's result depends on it, on the outputs and on the gate.
        outputs: of the variant; they are trained first where that has to be.
        compute: from the variant's outputs and its gate to plain values.
        preset: what the gate is searched in, in place of the configuration's.
    """
    if outputs.config.train.refit:
        raise ValueError(
            "train.refit trains the network of a run again, for use, and an experiment compares networks before that: "
            "add  --set train.refit=false"
        )
    training = outputs.seconds_to_make()
    return cell(
        out,
        name,
        lambda: {**what, "seed": outputs.seed, "gate": gate_made_from(outputs, preset)},
        lambda: compute(outputs.load(), fitted_variant(outputs, out, preset)),
        None if training is None else training + 1.5,
    )
