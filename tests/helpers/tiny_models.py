"""A decision and a model for a tiny run, with a gate that opens often."""

from __future__ import annotations

from typing import Any

from tiny_runs import outputs_of

from tdumpra.core.calibration import class_prior
from tdumpra.core.gate import GateThresholds
from tdumpra.data.dataset import Dataset
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.decision import Decision
from tdumpra.networks.model_file import Model
from tdumpra.runs.config import Config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.model import assemble_model
from tdumpra.runs.tables import read_tables, table_outputs

# the gate opens wherever the two paths disagree and the classifier is not quite sure
OPEN = GateThresholds(theta=0.75, beta=0.0, margin=0.0, delta=0.0, alpha=0.3)


def decide(config: Config, folder: RunFolder, thresholds: GateThresholds = OPEN, **options: Any) -> Decision:
    train = table_outputs(config, read_tables(folder)).train
    bank = PrototypeBank.fit(train.z, train.y, 2, train.groups, 3, ids=train.ids)
    return Decision(bank=bank, thresholds=thresholds, prior=class_prior(train.y, 3), **options)


def make_model(config: Config, data: Dataset, folder: RunFolder, decision: Decision | None = None) -> Model:
    """Put a model together from a run's networks, by default with a decision that opens often."""
    return assemble_model(outputs_of(config, folder), data, decision or decide(config, folder))
