"""The names that users' scripts depend on, and what importing them costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import tdumpra

SIGNATURES = {
    "DualPathClassifier": ("n_prototypes=5", "objective='balanced_accuracy'", "preset='default'", "n_classes=None"),
    "EmaTeacher": ("student", "momentum=0.999", "warmup=True"),
    "GateThresholds": ("theta", "beta", "margin", "delta", "alpha"),
    "PrototypeBank": (),
    "StackedDualPathClassifier": ("classifier", "folds=5"),
    "audit_leakage": ("split", "groups", "labels=None"),
    "classification_metrics": ("p", "y"),
    "expected_calibration_error": ("p", "y"),
    "fuse": ("p_cls", "p_sim", "thresholds", "rule='linear'"),
    "gate_report": ("p_cls", "p_sim", "p_final", "y", "groups=None"),
    "js_divergence": ("p", "q"),
    "spherical_kmeans": ("x", "n_clusters", "n_init=4", "max_iter=100", "seed=0"),
    "supervised_contrastive_loss": ("z", "labels", "temperature=0.07", "reduction='mean'"),
    "vmf_posterior": ("z", "prototypes", "mask=None", "kappa=20.0", "tau=1.0"),
}
METHODS = {
    "DualPathClassifier.fit": ("self", "z_train", "y_train", "groups=None"),
    "DualPathClassifier.tune": ("self", "p_val", "z_val", "y_val", "groups=None"),
    "DualPathClassifier.predict_proba": ("self", "p", "z"),
    "DualPathClassifier.predict": ("self", "p", "z"),
    "DualPathClassifier.explain": ("self", "p_row", "z_row"),
    "DualPathClassifier.report": ("self", "p_test", "z_test", "y_test", "groups=None"),
    "DualPathClassifier.save": ("self", "path"),
    "DualPathClassifier.load": ("path",),
    "StackedDualPathClassifier.fit": ("self", "X", "y", "groups=None"),
    "StackedDualPathClassifier.predict_proba": ("self", "X"),
    "StackedDualPathClassifier.predict": ("self", "X"),
    "EmaTeacher.update": ("self", "student"),
    "PrototypeBank.fit": ("z", "labels", "n_prototypes=5", "groups=None", "n_classes=None", "seed=0"),
    "PrototypeBank.posterior": ("self", "z", "kappa=20.0", "tau=1.0"),
    "PrototypeBank.save": ("self", "path"),
    "PrototypeBank.load": ("path",),
}
HEAVY = ("timm", "lightning_fabric", "torchvision")


def stated(function: object) -> list[str]:
    """Parameters with their defaults, as a caller sees them."""
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]


@pytest.mark.parametrize(("name", "promised"), [*SIGNATURES.items(), *METHODS.items()])
def test_names_and_arguments_of_the_contract(name, promised):
    function = tdumpra
    for part in name.split("."):
        function = getattr(function, part)
    if name != "PrototypeBank":  # made by ``fit``
        assert stated(function)[: len(promised)] == list(promised)


def test_everything_public_is_listed():
    assert set(SIGNATURES) <= set(tdumpra.__all__)
    assert set(SIGNATURES) <= set(dir(tdumpra))
    assert all(getattr(tdumpra, name) is not None for name in tdumpra.__all__)


def test_types_that_public_signatures_need_are_public():
    assert {"EvaluateConfig", "Evidence", "Prediction", "Preset"} <= set(tdumpra.__all__)
    assert tdumpra.Prediction._fields[:3] == ("path", "label", "probabilities")


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'tdumpra' has no attribute 'DualPathClasifier'"):
        tdumpra.DualPathClasifier  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import tdumpra; tdumpra.__version__", (*HEAVY, "torch", "sklearn", "scipy", "pandas")),
        ("from tdumpra import DualPathClassifier, PrototypeBank, fuse, gate_report", (*HEAVY, "faiss", "matplotlib")),
    ],
)
def test_nothing_is_imported_before_it_is_needed(statement, absent):
    code = f"{statement}\nimport sys\nprint([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
