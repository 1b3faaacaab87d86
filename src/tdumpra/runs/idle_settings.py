"""Find settings that were given and do nothing, or not what their user may expect, in a run like this one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

from tdumpra.runs.config import Config, DataConfig, read_config
from tdumpra.runs.outputs import all_outputs

_OF_TRAINING = ("data", "augment", "network", "train", "embed")
_USED = {"data.source", "train.contrastive_weight"}  # which of the paper's tables, and which of the files, is meant


def idle_settings(config: Config) -> Iterator[str]:
    """Yield a sentence for each kind of them."""
    framing, size = config.data.framing, config.network.image_size
    if config.outputs and (idle := [name for name in _given(config) if name not in _USED]):
        yield f"outputs are saved ones: {', '.join(idle)} {'do' if len(idle) > 1 else 'does'} nothing here"
    if not config.outputs and max(framing.height, framing.width) < size:
        yield (
            f"data.framing keeps images of {framing.height}×{framing.width}, and the network is given images of {size} "
            "(network.image_size): they are enlarged, which costs time and adds nothing; make the two alike"
        )
    chosen = next((name for name in ("hold_out", "outer_folds") if getattr(config.data, name) is not None), None)
    if not config.outputs and chosen and config.data.test_share != DataConfig().test_share:
        yield f"data.test_share does nothing here: data.{chosen} says which images are the test"
    if config.tune.pool_seeds and max(_seeds_pooled(config).values()) == 1:
        yield "tune.pool_seeds has one seed to pool: its gate is chosen on that seed's validation rows alone"


def _seeds_pooled(config: Config) -> Counter[tuple[str, int | None]]:
    """Count the seeds of each model, or of each fold of it, for which one gate is chosen."""
    return Counter((outputs.model, outputs.fold) for outputs in all_outputs(config))


def _given(config: Config) -> Iterator[str]:
    """Yield the settings of data and training that differ from their defaults, or from the recipe's."""
    plain = read_config(None, changes=[] if config.recipe is None else [f"recipe={config.recipe}"])
    if config.seeds != plain.seeds:
        yield "seeds"
    for section in _OF_TRAINING:
        said, default = getattr(config, section), getattr(plain, section)
        for field in fields(said):
            if getattr(said, field.name) != getattr(default, field.name):
                yield f"{section}.{field.name}"
