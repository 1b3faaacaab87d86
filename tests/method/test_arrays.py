import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from sklearn.metrics import accuracy_score, log_loss

import tdumpra
from tdumpra.core import gate, metrics, posterior
from tdumpra.core.rowwise import normalise
from tdumpra.method.arrays import (
    classification_metrics,
    expected_calibration_error,
    fuse,
    js_divergence,
    like,
    vmf_posterior,
    widen,
)

THRESHOLDS = gate.GateThresholds(theta=0.8, beta=0.4, margin=0.1, delta=0.05, alpha=0.3)
NUMPY = [np.float16, np.float32, np.float64]
TORCH = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def softmax_rows(seed, n=50, c=4):
    logits = np.random.default_rng(seed).normal(size=(n, c)) * 2
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def embeddings(seed, n=20, d=6, c=3, k=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * 3, rng.normal(size=(c, k, d))


def bfloat16_rows(n=20):
    """Halves and quarters: their sums are exact in any floating-point type."""
    pattern = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25, 0.5, 0.0, 0.25], [0.0, 0.125, 0.75, 0.125]])
    return pattern.repeat(n, 1)[:n]


def frozen(array):
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "read-only": frozen,
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "columns first": np.asfortranarray,
    "every other row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "foreign byte order": lambda a: a.astype(a.dtype.newbyteorder()),
}


class TestKindAndType:
    @pytest.mark.parametrize("dtype", NUMPY)
    def test_numpy_in_numpy_out(self, dtype):
        z, prototypes = embeddings(0)
        p = softmax_rows(0).astype(dtype)
        results = [vmf_posterior(z.astype(dtype), prototypes), js_divergence(p, p[::-1])]
        fused = fuse(p, p[::-1], THRESHOLDS)
        for result in (*results, fused.p, fused.signals.js, fused.signals.gamma_cls):
            assert isinstance(result, np.ndarray)
            assert result.dtype == dtype
        assert str(fused.opened.dtype) == "bool"
        assert str(fused.signals.label_cls.dtype) == "int64"

    @pytest.mark.parametrize("dtype", TORCH)
    def test_torch_in_torch_out(self, dtype):
        z, prototypes = (torch.from_numpy(a) for a in embeddings(0))
        p = bfloat16_rows().to(dtype)
        fused = fuse(p, p.flip(0), THRESHOLDS)
        results = [vmf_posterior(z.to(dtype), prototypes), js_divergence(p, p.flip(0)), fused.p, fused.signals.js]
        assert all(isinstance(result, torch.Tensor) and result.dtype == dtype for result in results)
        assert fused.opened.dtype == torch.bool

    def test_the_first_argument_decides(self):
        z, prototypes = embeddings(0)
        assert isinstance(vmf_posterior(torch.from_numpy(z).float(), prototypes), torch.Tensor)
        assert vmf_posterior(z.astype(np.float32), torch.from_numpy(prototypes)).dtype == np.float32
        p = softmax_rows(0)
        assert js_divergence(p.astype(np.float32), torch.from_numpy(p)).dtype == np.float32

    def test_lists_become_float64(self):
        rows: Any = [[1.0, 0.0]]
        found = js_divergence(rows, [[0.5, 0.5]])
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float64

    def test_half_precision_is_computed_in_float32(self):
        p = softmax_rows(1).astype(np.float16)
        q = softmax_rows(2).astype(np.float16)
        wide = js_divergence(p.astype(np.float32), q.astype(np.float32))
        assert np.array_equal(js_divergence(p, q), wide.astype(np.float16))
        z, prototypes = embeddings(1)
        z = z.astype(np.float16)
        assert np.array_equal(
            vmf_posterior(z, prototypes), vmf_posterior(z.astype(np.float32), prototypes).astype(np.float16)
        )
        assert np.array_equal(
            fuse(p, q, THRESHOLDS).opened, fuse(p.astype(np.float32), q.astype(np.float32), THRESHOLDS).opened
        )

    def test_widen_and_like(self):
        assert [widen(torch.ones(1, dtype=t)).dtype for t in TORCH] == [torch.float32] * 3 + [torch.float64]
        assert like(np.zeros(1, np.float16))(torch.tensor([1])).dtype == np.int64
        assert like(torch.zeros(1).half())(torch.ones(1)).dtype == torch.float16


class TestInputsAreLeftAlone:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("dtype", NUMPY)
    def test_any_layout_gives_the_same_result(self, layout, dtype):
        p, q = softmax_rows(3).astype(dtype), softmax_rows(4).astype(dtype)
        z, prototypes = (a.astype(dtype) for a in embeddings(3))
        odd_p, odd_q, odd_z = (LAYOUTS[layout](a) for a in (p, q, z))
        copies = [a.copy() for a in (odd_p, odd_q, odd_z)]
        assert np.array_equal(js_divergence(odd_p, odd_q), js_divergence(p, q))
        assert np.array_equal(fuse(odd_p, odd_q, THRESHOLDS).p, fuse(p, q, THRESHOLDS).p)
        tolerance = {2: 1e-3, 4: 1e-6, 8: 1e-12}[np.dtype(dtype).itemsize]
        np.testing.assert_allclose(
            vmf_posterior(odd_z, frozen(prototypes)).astype(np.float64),
            vmf_posterior(z, prototypes).astype(np.float64),
            atol=tolerance,
        )
        for before, after in zip(copies, (odd_p, odd_q, odd_z), strict=True):
            assert np.array_equal(before, after)

    def test_the_result_shares_nothing_with_the_input(self):
        p = softmax_rows(0)
        fused = fuse(p, p, THRESHOLDS).p
        assert not np.shares_memory(fused, p)
        tensor = torch.from_numpy(p)
        fuse(tensor, tensor, THRESHOLDS).p.zero_()
        assert float(tensor.sum()) > 0


class TestVmfPosterior:
    @pytest.mark.parametrize("seed", range(3))
    def test_equals_the_kernels_on_unit_rows(self, seed):
        z, prototypes = embeddings(seed)
        mask = np.array([[True, True], [True, False], [False, True]])
        found = vmf_posterior(z, prototypes, mask, kappa=7.0, tau=0.5)
        similarity = posterior.prototype_similarity(
            normalise(torch.from_numpy(z)), normalise(torch.from_numpy(prototypes))
        )
        scores = posterior.vmf_class_scores(similarity, torch.from_numpy(mask), kappa=7.0)
        np.testing.assert_allclose(found, posterior.similarity_posterior(scores, tau=0.5).numpy())

    def test_by_hand(self):
        # cosines 1 and 0, kappa = 2: e^2 / (e^2 + 1)
        found = vmf_posterior(np.array([[5.0, 0.0]]), np.array([[[3.0, 0.0]], [[0.0, 7.0]]]), kappa=2.0)
        assert found[0].tolist() == pytest.approx([math.exp(2) / (math.exp(2) + 1), 1 / (math.exp(2) + 1)])

    def test_defaults(self):
        z, prototypes = embeddings(0)
        np.testing.assert_array_equal(
            vmf_posterior(z, prototypes), vmf_posterior(z, prototypes, np.ones((3, 2)), kappa=20.0, tau=1.0)
        )

    @pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
    def test_lengths_do_not_matter(self, scale):
        z, prototypes = (a.astype(np.float32) for a in embeddings(1))
        found = vmf_posterior(z * np.float32(scale), prototypes * np.float32(scale))
        np.testing.assert_allclose(found, vmf_posterior(z, prototypes), atol=1e-6)

    @pytest.mark.parametrize("kappa", [1e-3, 1e5])
    def test_any_kappa(self, kappa):
        z, prototypes = (a.astype(np.float32) for a in embeddings(2))
        found = vmf_posterior(z, prototypes, kappa=kappa)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)

    def test_a_class_without_prototypes_and_whatever_is_in_dead_slots(self):
        z, prototypes = embeddings(0)
        prototypes[1] = np.nan
        prototypes[0, 1] = 0
        mask = np.array([[True, False], [False, False], [True, True]])
        found = vmf_posterior(z, prototypes, mask)
        assert (found[:, 1] == 0).all()
        np.testing.assert_allclose(found.sum(1), 1)

    def test_no_rows(self):
        _, prototypes = embeddings(0)
        assert vmf_posterior(np.zeros((0, 6)), prototypes).shape == (0, 3)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"z": np.zeros((2, 6))}, "z has all-zero rows"),
            ({"z": np.ones((2, 5))}, "z has width 5 and the prototypes have width 6"),
            (
                {"prototypes": np.ones((3, 6))},
                r"prototypes must have shape \(classes, prototypes, width\), not \(3, 6\)",
            ),
            ({"prototypes": np.full((3, 2, 6), np.nan)}, "prototypes has NaN or infinite values in 6 rows"),
            ({"prototypes": np.zeros((3, 2, 6))}, "prototypes has all-zero rows"),
            ({"mask": np.ones((2, 2), bool)}, r"mask must have shape \(3, 2\), not \(2, 2\)"),
            ({"mask": np.zeros((3, 2), bool)}, "mask leaves no prototype alive"),
            ({"kappa": 0.0}, r"kappa must be a finite number above 0, not 0\.0"),
            ({"kappa": math.inf}, "kappa must be a finite number above 0, not inf"),
            ({"tau": -1.0}, r"tau must be a finite number above 0, not -1\.0"),
        ],
    )
    def test_rejects(self, changes, message):
        z, prototypes = embeddings(0)
        with pytest.raises(ValueError, match=message):
            vmf_posterior(**{"z": z, "prototypes": prototypes, **changes})


class TestJsDivergence:
    def test_equals_the_square_of_scipys(self):
        p, q = softmax_rows(0), softmax_rows(1)
        np.testing.assert_allclose(js_divergence(p, q), jensenshannon(p, q, axis=1) ** 2)

    def test_by_hand(self):
        # nothing in common: ln 2
        assert js_divergence(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])).tolist() == pytest.approx([math.log(2)])

    def test_rejects(self):
        p = softmax_rows(0)
        with pytest.raises(ValueError, match="q has 3 classes where 4 are expected"):
            js_divergence(p, softmax_rows(0, c=3))
        with pytest.raises(ValueError, match="p has 50 rows and q has 49"):
            js_divergence(p, p[1:])
        with pytest.raises(ValueError, match="q has NaN"):
            js_divergence(p, p * np.nan)


class TestFuse:
    @pytest.mark.parametrize("rule", ["linear", "log-linear"])
    def test_equals_the_kernel(self, rule):
        p, q = softmax_rows(5), softmax_rows(6)
        found = fuse(p, q, THRESHOLDS, rule=rule)
        expected = gate.fuse(torch.from_numpy(p), torch.from_numpy(q), THRESHOLDS, rule=rule)
        assert np.array_equal(found.p, expected.p.numpy())
        assert np.array_equal(found.opened, expected.opened.numpy())
        for name, signal in found.signals._asdict().items():
            assert np.array_equal(signal, getattr(expected.signals, name).numpy()), name
        assert found.opened.any()

    @pytest.mark.parametrize("rule", ["linear", "log-linear"])
    @pytest.mark.parametrize("dtype", NUMPY)
    def test_shut_rows_pass_bit_for_bit(self, rule, dtype):
        p, q = softmax_rows(7, n=300).astype(dtype), softmax_rows(8, n=300).astype(dtype)
        p[0] = [0.5 + 2**-12, 0.5, 0, 0]  # within the tolerance of a sum of one, and not renormalised
        fused = fuse(p, q, THRESHOLDS, rule=rule)
        final, shut = np.asarray(fused.p), ~np.asarray(fused.opened)
        assert 0 < shut.sum() < 300
        assert final[shut].tobytes() == p[shut].tobytes()

    @pytest.mark.parametrize("dtype", TORCH)
    def test_shut_rows_pass_bit_for_bit_in_torch(self, dtype):
        p, q = bfloat16_rows().to(dtype), bfloat16_rows().flip(0).to(dtype)
        fused = fuse(p, q, THRESHOLDS)
        assert torch.equal(fused.p[~fused.opened], p[~fused.opened])

    def test_the_default_rule_is_the_papers(self):
        p, q = softmax_rows(5), softmax_rows(6)
        assert np.array_equal(fuse(p, q, THRESHOLDS).p, fuse(p, q, THRESHOLDS, rule="linear").p)

    def test_no_rows(self):
        assert fuse(np.zeros((0, 3)), np.zeros((0, 3)), THRESHOLDS).p.shape == (0, 3)

    def test_rejects(self):
        p = softmax_rows(0)
        with pytest.raises(TypeError, match="thresholds must be GateThresholds, not dict"):
            fuse(p, p, {"theta": 0.5})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="rule must be one of linear, log-linear, not 'max'"):
            fuse(p, p, THRESHOLDS, rule="max")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="p_sim must sum to one"):
            fuse(p, p * 0.9, THRESHOLDS)
        with pytest.raises(ValueError, match="p_cls has 50 rows and p_sim has 40"):
            fuse(p, p[:40], THRESHOLDS)


class TestMetrics:
    def test_equal_the_kernels_and_sklearn(self):
        p = softmax_rows(9)
        y = np.random.default_rng(9).integers(4, size=50)
        found = classification_metrics(p, y)
        assert found == metrics.classification_metrics(p, y)
        assert found["accuracy"] == accuracy_score(y, p.argmax(1))
        assert found["nll"] == pytest.approx(log_loss(y, p))

    @pytest.mark.parametrize("kind", [torch.from_numpy, lambda a: a.tolist()])
    def test_other_kinds(self, kind):
        p, y = softmax_rows(9), np.arange(50) % 4
        assert classification_metrics(kind(p), kind(y)) == classification_metrics(p, y)

    def test_half_precision_rows_count_in_float64(self):
        p, y = softmax_rows(9).astype(np.float16), np.arange(50) % 4
        assert classification_metrics(p, y) == classification_metrics(p.astype(np.float64), y)

    def test_calibration_error(self):
        p, y = softmax_rows(9), np.arange(50) % 4
        assert expected_calibration_error(p, y) == classification_metrics(p, y)["ece"]
        # one bin: the gap between mean confidence and accuracy
        gap = abs(p.max(1).mean() - (p.argmax(1) == y).mean())
        assert expected_calibration_error(p, y, n_bins=1) == pytest.approx(gap)

    def test_rejects(self):
        p = softmax_rows(0)
        with pytest.raises(ValueError, match="p has no rows"):
            classification_metrics(np.zeros((0, 2)), [])
        with pytest.raises(ValueError, match="y must be in the range 0 to 3; row 0 holds 4"):
            classification_metrics(p, np.full(50, 4))
        with pytest.raises(ValueError, match="y has 49 entries for 50 rows"):
            classification_metrics(p, np.zeros(49, np.int64))
        with pytest.raises(ValueError, match="n_bins must be at least 1, not 0"):
            expected_calibration_error(p, np.zeros(50, np.int64), n_bins=0)


def test_the_public_names_are_these():
    for name in ("vmf_posterior", "js_divergence", "fuse", "classification_metrics", "expected_calibration_error"):
        assert getattr(tdumpra, name) is globals()[name]
