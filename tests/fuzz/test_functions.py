"""Arrays of any kind for every public function that takes arrays: a result, or a sentence of our own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as extra
from tests.campaigns.record import refusal
from tests.support import SMALL, THRESHOLDS

import tdumpra
from tdumpra import DualPathClassifier, PrototypeBank, StackedDualPathClassifier
from tdumpra.method import arrays as checked

ROWS, CLASSES, WIDTH = 20, 3, 4
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(CLASSES), ROWS)
Q = RNG.dirichlet(np.ones(CLASSES), ROWS)
Z = RNG.normal(size=(ROWS, WIDTH))
Y = np.arange(ROWS) % CLASSES
GROUPS = np.array([f"lesion {i // 2}" for i in range(ROWS)])
PROTOTYPES = RNG.normal(size=(CLASSES, 2, WIDTH))
SPLIT = np.arange(ROWS) % 3

_DTYPES = ("f2", "f4", "f8", "i1", "i8", "u8", "b1", "c8", "U3", "M8[s]", "O")
_NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32) | st.integers(-(2**40), 2**40)


def _array(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    rng = np.random.default_rng(seed)
    values = rng.choice(np.array([0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, np.nan, np.inf, 3.0]), size=shape)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return values.astype(np.float64 if dtype == "M8[s]" else dtype, copy=False)


anything: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.text(max_size=3), st.booleans(), _NUMBERS, st.lists(_NUMBERS, max_size=4),
    st.lists(st.lists(_NUMBERS, max_size=3), max_size=3), st.dictionaries(st.text(max_size=2), _NUMBERS, max_size=2),
    st.builds(
        _array, st.sampled_from(_DTYPES), extra.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
        st.integers(0, 99),
    ),
    st.builds(
        lambda shape, seed: torch.as_tensor(_array("f4", shape, seed)),
        st.sampled_from([(), (0,), (ROWS,), (ROWS, CLASSES), (ROWS, WIDTH), (ROWS, 0), (0, CLASSES)]),
        st.integers(0, 99),
    ),
)  # fmt: skip


def fit(z: Any, y: Any, groups: Any, p: Any) -> Any:
    """Fit, tune and predict; one of the arrays is odd."""
    classifier = DualPathClassifier(n_prototypes=2, preset=SMALL).fit(z, y, groups)
    return classifier.tune(p, z, y).predict_proba(p, z)


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "DualPathClassifier": (fit, (Z, Y, GROUPS, P)),
    "PrototypeBank": (lambda z, y, groups: PrototypeBank.fit(z, y, 2, groups), (Z, Y, GROUPS)),
    "StackedDualPathClassifier": (
        lambda x, y, groups: StackedDualPathClassifier(DualPathClassifier(preset=SMALL)).fit(x, y, groups),
        (np.concatenate([P, Z], 1), Y, GROUPS),
    ),
    "audit_leakage": (tdumpra.audit_leakage, (SPLIT, GROUPS, Y)),
    "classification_metrics": (tdumpra.classification_metrics, (P, Y)),
    "expected_calibration_error": (tdumpra.expected_calibration_error, (P, Y, 5)),
    "fuse": (lambda p, q: tdumpra.fuse(p, q, THRESHOLDS), (P, Q)),
    "gate_report": (tdumpra.gate_report, (P, Q, Q, Y, GROUPS)),
    "js_divergence": (tdumpra.js_divergence, (P, Q)),
    "spherical_kmeans": (tdumpra.spherical_kmeans, (torch.tensor(Z), 2)),
    "supervised_contrastive_loss": (
        tdumpra.supervised_contrastive_loss, (torch.nn.functional.normalize(torch.tensor(Z), dim=1), torch.tensor(Y)),
    ),
    "vmf_posterior": (tdumpra.vmf_posterior, (Z, PROTOTYPES)),
}  # fmt: skip
WITHOUT_ARRAYS = {
    "EmaTeacher",  # follows a module of the caller's own
    "EvaluateConfig", "GateThresholds", "Preset",  # settings
    "Evidence", "Prediction",  # results
    "Predictor",  # takes files: see test_readers
    "__version__",
}  # fmt: skip
TENSORS = {"spherical_kmeans", "supervised_contrastive_loss"}  # core's own: tensors in, tensors out, no other checks


def test_every_public_name_is_fuzzed_or_takes_no_arrays():
    assert set(tdumpra.__all__) == CALLS.keys() | WITHOUT_ARRAYS


@pytest.mark.parametrize("name", CALLS)
def test_sound_arrays_are_taken(name):
    call, sound = CALLS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(*sound)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", sorted(CALLS.keys() - TENSORS))
def test_odd_arrays_are_answered_with_a_result_or_a_sentence(name):
    call, sound = CALLS[name]

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(place=st.integers(0, len(sound) - 1), odd=anything)
    def attempt(place: int, odd: Any) -> None:
        arguments = [*sound[:place], odd, *sound[place + 1 :]]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(*arguments)
        except Exception as error:
            found, detail = refusal(error)
            assert found == "refused", f"argument {place} = {odd!r}: {detail}"

    attempt()


finite = st.integers(0, 99).map(lambda seed: np.random.default_rng(seed).normal(size=(12, WIDTH)))


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_tensors_of_the_core_give_finite_numbers(name):
    @settings(max_examples=25)
    @given(z=finite, k=st.integers(1, 4), scale=st.sampled_from([1e-20, 1.0, 1e20]))
    def attempt(z: Any, k: int, scale: float) -> None:
        unit = torch.nn.functional.normalize(torch.tensor(z * scale), dim=1)
        if name == "spherical_kmeans":
            centers = tdumpra.spherical_kmeans(unit, k)[0]
            assert torch.isfinite(torch.as_tensor(centers)).all()
        else:
            assert torch.isfinite(tdumpra.supervised_contrastive_loss(unit, torch.arange(12) % k))

    attempt()


@pytest.mark.parametrize("function", [checked.posterior_and_labels])
def test_checks_of_arrays_let_nothing_odd_through(function):
    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(p=anything, y=anything)
    def attempt(p: Any, y: Any) -> None:
        try:
            rows, labels = function(p, y)
        except (ValueError, TypeError):
            return
        assert np.isfinite(rows).all()
        assert (rows >= 0).all()
        assert ((labels >= 0) & (labels < rows.shape[1])).all()

    attempt()
