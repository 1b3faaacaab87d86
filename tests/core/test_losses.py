import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.reducers import AvgNonZeroReducer, SumReducer
from torch import Tensor

from tdumpra.core import losses
from tdumpra.core.losses import joint_loss, supervised_contrastive_loss
from tdumpra.core.rowwise import normalise


def reference_supcon(z, labels, tau, reduction="mean"):
    """Equation supcon_full, term by term, in plain floats; anchors without positives are left out."""
    rows, terms = z.double().tolist(), []

    def dot(i, j):
        return sum(a * b for a, b in zip(rows[i], rows[j], strict=True))

    for i in range(len(rows)):
        others = [a for a in range(len(rows)) if a != i]
        positives = [p for p in others if labels[p] == labels[i]]
        if positives:
            log_norm = math.log(sum(math.exp(dot(i, a) / tau) for a in others))
            terms.append(-sum(dot(i, p) / tau - log_norm for p in positives) / len(positives))
    return sum(terms) / (len(terms) if reduction == "mean" else 1)


def batch(seed, n=12, d=5, n_classes=3, dtype=torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = normalise(torch.randn(n, d, generator=generator, dtype=torch.float64)).to(dtype)
    return z, torch.randint(n_classes, (n,), generator=generator)


def loss_and_gradient(z, labels, **options):
    z = z.clone().requires_grad_()
    loss = supervised_contrastive_loss(z, labels, **options)
    loss.backward()
    assert z.grad is not None
    return loss.detach(), z.grad


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("tau", [0.07, 0.5])
def test_equals_the_equation(seed, dtype, reduction, tau):
    z, labels = batch(seed, dtype=dtype)
    labels[0] = 7  # an anchor without positives
    loss = supervised_contrastive_loss(z, labels, temperature=tau, reduction=reduction)
    assert loss.dtype == dtype
    expected = reference_supcon(z, labels.tolist(), tau, reduction)
    assert float(loss) == pytest.approx(expected, rel=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("reduction", "reducer"), [("mean", AvgNonZeroReducer()), ("sum", SumReducer())])
def test_equals_pytorch_metric_learning(seed, reduction, reducer):
    z, labels = batch(seed, n=40, d=16, n_classes=6, dtype=torch.float64)
    labels[:2] = torch.tensor([8, 9])  # two anchors without positives
    theirs = z.clone().requires_grad_()
    expected = SupConLoss(temperature=0.07, reducer=reducer)(theirs, labels)
    expected.backward()
    loss, _ = loss_and_gradient(z, labels, reduction=reduction)
    torch.testing.assert_close(loss, expected.detach())

    # It normalises the rows itself; so must we, for the gradients to agree.
    ours = z.clone().requires_grad_()
    supervised_contrastive_loss(normalise(ours), labels, reduction=reduction).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_by_hand():
    # Anchor 0 has the positive 1 (cosine 1) and the negative 2 (cosine 0); tau = 1:
    # -log(e / (e + 1)) = log(1 + 1/e) = 0.31326; anchor 1 the same; anchor 2 has no positive and is left out.
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 1])
    each = math.log(1 + math.exp(-1))
    assert float(supervised_contrastive_loss(z, labels, temperature=1.0)) == pytest.approx(each)
    assert float(supervised_contrastive_loss(z, labels, temperature=1.0, reduction="sum")) == pytest.approx(2 * each)


def test_the_defaults_are_the_papers_temperature_and_the_mean():
    z, labels = batch(0)
    assert float(supervised_contrastive_loss(z, labels)) == pytest.approx(
        reference_supcon(z, labels.tolist(), 0.07, "mean"), rel=1e-5
    )


@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 4))
def test_order_and_names_of_classes_do_not_matter(seed, n, n_classes):
    z, labels = batch(seed, n=n, n_classes=n_classes, dtype=torch.float64)
    loss = supervised_contrastive_loss(z, labels)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(supervised_contrastive_loss(z[order], 10 - 3 * labels[order]), loss)
    assert float(loss) >= -1e-12  # zero but for rounding where nothing repels


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_by_finite_differences(reduction):
    z, _ = batch(1, n=6, d=3, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    assert torch.autograd.gradcheck(
        lambda rows: supervised_contrastive_loss(rows, labels, temperature=0.3, reduction=reduction), z.requires_grad_()
    )


@pytest.mark.parametrize("entries", [1, 13, 40, 168, 169])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_blocks_change_nothing(monkeypatch, entries, reduction):
    z, labels = batch(2, n=13, dtype=torch.float64)
    whole = loss_and_gradient(z, labels, reduction=reduction)
    monkeypatch.setattr(losses, "_CHUNK_ENTRIES", entries)
    torch.testing.assert_close(loss_and_gradient(z, labels, reduction=reduction), whole, rtol=1e-12, atol=1e-12)


def test_no_block_is_larger_than_allowed(monkeypatch):
    monkeypatch.setattr(losses, "_CHUNK_ENTRIES", 100)
    blocks = losses._row_blocks(30)
    assert all((block.stop - block.start) * 30 <= 100 for block in blocks)
    assert [row for block in blocks for row in range(30)[block]] == list(range(30))
    assert len(losses._row_blocks(1000)) == 1000  # never less than a row


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    z, labels = batch(3, n=24)
    z = z.to(dtype)
    loss, gradient = loss_and_gradient(z, labels)
    expected, expected_gradient = loss_and_gradient(z.float(), labels)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert gradient.dtype == dtype
    assert torch.equal(gradient, expected_gradient.to(dtype))


def test_autocast_does_not_reach_it():
    z, labels = batch(4, n=24)
    plain = loss_and_gradient(z, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (z @ z.T).dtype == torch.bfloat16  # autocast is on
        inside = loss_and_gradient(z, labels)
    assert inside[0].dtype == torch.float32
    assert torch.equal(inside[0], plain[0])
    assert torch.equal(inside[1], plain[1])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_no_anchor_with_a_positive_is_zero_with_zero_gradient(n, reduction):
    z, _ = batch(5, n=n)
    loss, gradient = loss_and_gradient(z, torch.arange(n), reduction=reduction)
    assert float(loss) == 0
    assert torch.equal(gradient, torch.zeros_like(z))


def test_an_empty_batch_is_zero():
    loss, gradient = loss_and_gradient(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert float(loss) == 0
    assert gradient.shape == (0, 4)


def test_one_class_of_equal_rows():
    # Every anchor sees n - 1 equal others: -log(1 / (n - 1)).
    loss = supervised_contrastive_loss(torch.tensor([[1.0, 0.0]] * 5), torch.zeros(5, dtype=torch.int64))
    assert float(loss) == pytest.approx(math.log(4), rel=1e-5)


def test_a_small_temperature_stays_finite():
    z, labels = batch(6, n=16)
    loss, gradient = loss_and_gradient(z, labels, temperature=1e-4)
    assert loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.usefixtures("without_shape_checks")
class TestRejects:
    @pytest.mark.parametrize(
        ("z", "labels", "options", "message"),
        [
            (torch.ones(3), torch.zeros(3, dtype=torch.int64), {}, r"z must be floating-point rows \(n, d\).*\(3,\)"),
            (torch.ones(2, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), {}, "z must be floating-point"),
            (
                torch.eye(2),
                torch.zeros(3, dtype=torch.int64),
                {},
                r"labels must be 2 integers, not torch.int64 .*\(3,\)",
            ),
            (torch.eye(2), torch.zeros(2), {}, "labels must be 2 integers, not torch.float32"),
            (torch.eye(2), torch.tensor([0, 0]), {"temperature": 0.0}, r"temperature must be above 0, not 0\.0"),
            (torch.eye(2), torch.tensor([0, 0]), {"temperature": math.nan}, "temperature must be above 0, not nan"),
            (
                torch.eye(2),
                torch.tensor([0, 0]),
                {"reduction": "none"},
                "reduction must be 'mean' or 'sum', not 'none'",
            ),
        ],
    )
    def test_bad_input(self, z, labels, options, message):
        with pytest.raises(ValueError, match=message):
            supervised_contrastive_loss(z, labels, **options)


class TestJointLoss:
    def test_equals_its_parts(self):
        z, labels = batch(7, n=8, n_classes=3, dtype=torch.float64)
        logits = torch.randn(8, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        loss = joint_loss(logits, z, labels, weight=0.4, temperature=0.2)
        # Equation train_total, row by row.
        ce = 0.0
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
            ce += math.log(sum(math.exp(value) for value in row)) - row[label]
        scl = reference_supcon(z, labels.tolist(), 0.2)
        assert loss.total.dtype == torch.float64
        assert float(loss.cross_entropy) == pytest.approx(ce / 8, rel=1e-12)
        assert float(loss.contrastive) == pytest.approx(scl, rel=1e-12)
        assert float(loss.total) == pytest.approx(ce / 8 + 0.4 * scl, rel=1e-12)

    def test_by_hand(self):
        # Even logits cost log 2; two equal rows of one class have one other each, itself the positive: 0.
        loss = joint_loss(torch.zeros(2, 2), torch.tensor([[1.0, 0.0]] * 2), torch.tensor([0, 0]))
        assert float(loss.total) == pytest.approx(math.log(2), rel=1e-6)

    def test_defaults_are_the_papers(self):
        z, labels = batch(8)
        logits = torch.zeros(len(z), 3)
        explicit = joint_loss(logits, z, labels, weight=0.03, temperature=0.07, reduction="mean")
        assert torch.equal(joint_loss(logits, z, labels).total, explicit.total)

    def test_sum_outweighs_cross_entropy(self):
        # As written in the paper, with 128 views and lambda = 0.03.
        z, labels = batch(9, n=128, d=128, n_classes=7)
        loss = joint_loss(torch.zeros(128, 7), z, labels, reduction="sum")
        assert 0.03 * float(loss.contrastive) > 5 * float(loss.cross_entropy)

    def test_class_weights_leave_the_mean_a_plain_mean(self):
        # Two rows cost log 2 each, weighted 1 and 3: (1 + 3) / 2 log 2, not log 2.
        weights = torch.tensor([1.0, 3.0], dtype=torch.float64)
        loss = joint_loss(torch.zeros(2, 2), torch.eye(2), torch.tensor([0, 1]), class_weights=weights)
        assert float(loss.cross_entropy) == pytest.approx(2 * math.log(2), rel=1e-6)

    def test_label_smoothing(self):
        # Logits (log 3, 0): log p = (log 3/4, log 1/4); target (0.9, 0.1) for smoothing 0.2.
        logits = torch.tensor([[math.log(3), 0.0]])
        loss = joint_loss(logits, torch.ones(1, 1), torch.tensor([0]), label_smoothing=0.2)
        assert float(loss.cross_entropy) == pytest.approx(-0.9 * math.log(0.75) - 0.1 * math.log(0.25), rel=1e-6)

    def test_half_precision_logits(self):
        logits = torch.tensor([[10.0, 0.0]], dtype=torch.float16)
        loss = joint_loss(logits, torch.ones(1, 1), torch.tensor([0]))
        assert loss.total.dtype == torch.float32
        assert float(loss.total) == pytest.approx(math.log1p(math.exp(-10)), rel=1e-3)

    def test_gradients_reach_both_inputs(self):
        z, labels = batch(10, n=6, d=3, dtype=torch.float64)
        logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        assert torch.autograd.gradcheck(
            lambda a, b: joint_loss(a, b, labels).total, (logits.requires_grad_(), z.requires_grad_())
        )
