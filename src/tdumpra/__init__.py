"""Dual-path classification: your classifier, a bank of class prototypes, and a conservative gate between them.

Names are loaded when they are first used, so that ``import tdumpra`` is quick and the array functions never import
what only training needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tdumpra.core.ema import EmaTeacher as EmaTeacher
    from tdumpra.core.gate import GateThresholds as GateThresholds
    from tdumpra.core.kmeans import spherical_kmeans as spherical_kmeans
    from tdumpra.core.losses import supervised_contrastive_loss as supervised_contrastive_loss
    from tdumpra.data.leakage import audit_leakage as audit_leakage
    from tdumpra.estimator import DualPathClassifier as DualPathClassifier
    from tdumpra.evaluation.evaluate import gate_report as gate_report
    from tdumpra.evaluation.settings import EvaluateConfig as EvaluateConfig
    from tdumpra.method.arrays import classification_metrics as classification_metrics
    from tdumpra.method.arrays import expected_calibration_error as expected_calibration_error
    from tdumpra.method.arrays import fuse as fuse
    from tdumpra.method.arrays import js_divergence as js_divergence
    from tdumpra.method.arrays import vmf_posterior as vmf_posterior
    from tdumpra.method.bank import PrototypeBank as PrototypeBank
    from tdumpra.method.evidence import Evidence as Evidence
    from tdumpra.networks.predict import Predictor as Predictor
    from tdumpra.runtime.prediction import Prediction as Prediction
    from tdumpra.stacked import StackedDualPathClassifier as StackedDualPathClassifier
    from tdumpra.tuning.presets import Preset as Preset

_HOME = {
    "DualPathClassifier": "tdumpra.estimator",
    "EmaTeacher": "tdumpra.core.ema",
    "EvaluateConfig": "tdumpra.evaluation.settings",
    "Evidence": "tdumpra.method.evidence",
    "GateThresholds": "tdumpra.core.gate",
    "Prediction": "tdumpra.runtime.prediction",
    "Preset": "tdumpra.tuning.presets",
    "Predictor": "tdumpra.networks.predict",
    "PrototypeBank": "tdumpra.method.bank",
    "StackedDualPathClassifier": "tdumpra.stacked",
    "audit_leakage": "tdumpra.data.leakage",
    "classification_metrics": "tdumpra.method.arrays",
    "expected_calibration_error": "tdumpra.method.arrays",
    "fuse": "tdumpra.method.arrays",
    "gate_report": "tdumpra.evaluation.evaluate",
    "js_divergence": "tdumpra.method.arrays",
    "spherical_kmeans": "tdumpra.core.kmeans",
    "supervised_contrastive_loss": "tdumpra.core.losses",
    "vmf_posterior": "tdumpra.method.arrays",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tdumpra' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
