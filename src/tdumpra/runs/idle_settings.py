"""Settings that were given and do nothing in a run like this one: a user should hear of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

from tdumpra.runs.config import Config
from tdumpra.runs.outputs import saved_runs

_OF_TRAINING = ("data", "augment", "network", "train", "embed")
_HEEDED = {"data.source", "train.contrastive_weight"}  # which table of the paper's, and which of the files, is meant


def idle_settings(config: Config) -> Iterator[str]:
    """A sentence for each kind of them."""
    if config.outputs and (idle := [name for name in _given(config) if name not in _HEEDED]):
        yield f"outputs are saved ones: {', '.join(idle)} {'do' if len(idle) > 1 else 'does'} nothing here"
    if config.tune.pool_seeds and max(Counter(run.model for run in saved_runs(config)).values()) == 1:
        yield "tune.pool_seeds has one seed to pool: its gate is chosen on that seed's validation rows alone"


def _given(config: Config) -> Iterator[str]:
    """Settings of data and training that are not as they would be if left out."""
    plain = Config()
    if config.seeds != plain.seeds:
        yield "seeds"
    for section in _OF_TRAINING:
        said, default = getattr(config, section), getattr(plain, section)
        for field in fields(said):
            if getattr(said, field.name) != getattr(default, field.name):
                yield f"{section}.{field.name}"
