import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdumpra import checks
from tdumpra.core import rowwise

GOOD = [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]


class TestProbabilities:
    @pytest.mark.parametrize("kind", [np.array, torch.tensor, list, tuple])
    def test_accepts(self, kind):
        p = checks.check_probabilities(kind(GOOD), "p")
        assert isinstance(p, torch.Tensor)
        assert p.tolist() == GOOD

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
    def test_keeps_the_type(self, dtype):
        p = checks.check_probabilities(np.array(GOOD, dtype=dtype), "p")
        assert p.dtype == {2: torch.float16, 4: torch.float32, 8: torch.float64}[np.dtype(dtype).itemsize]

    @given(st.floats(-2e-3, 2e-3))
    def test_sums_within_the_tolerance(self, off):
        rows = np.array([[0.5, 0.5], [0.25, 0.75 + off]])
        exact = abs(Fraction(float(rows[1].sum())) - 1)
        if exact <= Fraction(1, 1000) - Fraction(1, 10**12):
            checks.check_probabilities(rows, "p")
        elif exact > Fraction(1, 1000) + Fraction(1, 10**12):
            with pytest.raises(ValueError, match=r"p must sum to one in each row \(within 0.001\); row 1 sums to"):
                checks.check_probabilities(rows, "p")

    @pytest.mark.parametrize("classes", [2, 7, 100])
    def test_saved_float16_is_accepted(self, classes):
        logits = torch.randn(500, classes, generator=torch.Generator().manual_seed(0)) * 3
        checks.check_probabilities(logits.softmax(1).half(), "p")

    def test_a_softmax_in_bfloat16_is_accepted(self):
        p = torch.tensor([[0.5, 0.3, 0.2015]], dtype=torch.bfloat16)
        assert 1.001 < float(p.float().sum()) < 1.002
        checks.check_probabilities(p, "p")
        with pytest.raises(ValueError, match=r"within 0\.001"):
            checks.check_probabilities(p.float(), "p")
        with pytest.raises(ValueError, match=r"within 0\.004"):
            checks.check_probabilities(torch.tensor([[0.5, 0.51]], dtype=torch.bfloat16), "p")

    def test_no_rows_are_rows(self):
        assert checks.check_probabilities(np.zeros((0, 3)), "p").shape == (0, 3)

    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ([0.5, 0.5], ValueError, r"p must be two-dimensional \(rows × columns\), and has shape \(2,\)"),
            ([[1.0]], ValueError, r"p has 1 column\(s\); a row needs the probabilities of at least two classes"),
            ([[1, 0]], TypeError, "p must hold floating-point numbers, not torch.int64"),
            ([["a", "b"]], TypeError, "p must be an array of numbers, not list"),
            ([[0.5, 0.5], [0.5]], TypeError, "p must be an array of numbers, not list"),
            (None, TypeError, "p must be an array of numbers, not NoneType"),
            ([[math.nan, 0.5]], ValueError, r"p has NaN or infinite values in 1 row \(0\)"),
            ([[0.5, 0.5], [math.inf, 0.0]], ValueError, r"p has NaN or infinite values in 1 row \(1\)"),
            ([[1.25, -0.25]], ValueError, r"p holds 1.25 in row 0, and a probability lies between 0 and 1; the same"),
            (
                [[-0.25, 0.5, 0.75]],
                ValueError,
                "p holds -0.25 in row 0, and a probability lies between 0 and 1; the same",
            ),
            ([[1.0, 0.0], [-0.5, 1.5]], ValueError, r"p holds -0.5 in row 1, .*1 row \(1\)"),
            ([[2.0, -3.0]], ValueError, r"p holds 2 in row 0, .*\(these look like logits: take their softmax first\)"),
            ([[0.5, 0.4], [0.5, 0.5]], ValueError, "row 0 sums to 0.9000, and 1 of 2 rows are off"),
            ([[0.0, 0.0]], ValueError, "row 0 sums to 0.0000"),
            ([[1.1, 0.0]], ValueError, r"p holds 1.1 in row 0, .* between 0 and 1 \(the row sums to 1.1000\)"),
            (np.array([["0.5", "x"]]), TypeError, "p must be an array of numbers, and it holds '0.5'$"),
            (
                np.array([[1.0, "0,25"]], dtype=object),
                TypeError,
                "p must be an array of numbers, and it holds '0,25': write a decimal point, not a comma",
            ),
        ],
    )
    def test_rejects(self, values, error, message):
        with pytest.raises(error, match=message):
            checks.check_probabilities(values, "p")

    def test_another_number_of_classes(self):
        checks.check_probabilities(GOOD, "p", n_classes=2)
        with pytest.raises(ValueError, match="p has 2 classes where 3 are expected"):
            checks.check_probabilities(GOOD, "p", n_classes=3)

    def test_a_message_names_three_rows_and_counts_them_all(self):
        with pytest.raises(ValueError, match=r"in 5 rows \(0, 1, 2, …\)"):
            checks.check_probabilities(np.full((5, 2), np.nan), "p")


class TestEmbeddings:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_accepts_any_length_and_keeps_the_type(self, dtype):
        z = torch.tensor([[300.0, 400.0], [0.25, 0.0]], dtype=dtype)
        assert checks.check_embeddings(z, "z").dtype == dtype
        norms = checks.row_norms(z)
        assert norms.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert norms.tolist() == pytest.approx([500.0, 0.25])

    @pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-30, 1e-21, 1e-15, 1e15, 1e19, 1e30, 1e38])
    def test_extreme_rows_have_a_length(self, scale):
        z = torch.full((1, 4), 1.0) * scale
        checks.check_embeddings(z, "z")
        assert float(checks.row_norms(z)) == pytest.approx(2 * float(z[0, 0]), rel=1e-6)

    @pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1e307])
    def test_extreme_rows_of_float64_have_a_length_too(self, scale):
        z = torch.full((1, 4), scale, dtype=torch.float64)
        checks.check_embeddings(z, "z")
        assert float(checks.row_norms(z)) == pytest.approx(2 * float(z[0, 0]), rel=1e-3)  # 1e-320 has few bits

    def test_a_finite_row_that_is_too_long_is_not_called_infinite(self):
        z = torch.tensor([[1.0, 0.0], [3e38, 3e38]])
        with pytest.raises(ValueError, match=r"z has rows whose length float32 cannot hold: 1 row \(1\); scale them"):
            checks.check_embeddings(z, "z")
        checks.check_embeddings(z.double(), "z")

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ([[1.0, 0.0], [0.0, 0.0]], r"z has all-zero rows, which have no direction: 1 row \(1\)"),
            ([[math.nan, 0.0]], r"z has NaN or infinite values in 1 row \(0\)"),
            ([[-math.inf, 0.0]], r"z has NaN or infinite values in 1 row \(0\)"),
            ([[], []], "z has no columns"),
            ([1.0], "z must be two-dimensional"),
        ],
    )
    def test_rejects(self, values, message):
        with pytest.raises(ValueError, match=message):
            checks.check_embeddings(values, "z")

    def test_another_width(self):
        checks.check_embeddings(np.eye(2), "z", width=2)
        with pytest.raises(ValueError, match="z has width 2, and the bank was built on embeddings of width 3"):
            checks.check_embeddings(np.eye(2), "z", width=3)


class TestLabels:
    @pytest.mark.parametrize(
        "values",
        [[0, 2, 1], np.array([0, 2, 1], np.uint8), torch.tensor([0, 2, 1], dtype=torch.int16), pd.Series([0, 2, 1])],
    )
    def test_accepts(self, values):
        labels = checks.check_labels(values, "y", n_rows=3, n_classes=3)
        assert labels.dtype == torch.int64
        assert labels.tolist() == [0, 2, 1]

    def test_truth_values_number_two_classes(self):
        assert checks.check_labels([True, False], "y", n_rows=2, n_classes=2).tolist() == [1, 0]

    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ([0, 1], ValueError, "y has 2 entries for 3 rows"),
            ([0, 1, 3], ValueError, "y must be in the range 0 to 2; row 2 holds 3"),
            ([0, -1, 0], ValueError, "y must be in the range 0 to 2; row 1 holds -1"),
            ([[0, 1, 2]], ValueError, r"y must be one-dimensional, and has shape \(1, 3\)"),
            (
                ["mel", "nv", "nv"],
                TypeError,
                r"y must be integers that number the classes from 0; it holds names, such as 'mel': number them by "
                r"one list of names for all splits, for example  \[names\.index\(label\) for label in labels\]",
            ),
            (np.array(["mel", "nv", "nv"], dtype=object), TypeError, r"it holds names, such as 'mel'"),
            ([0.0, 1.0, 2.0], TypeError, r"it holds float64, such as 0\.0: take labels\.astype\(int\)"),
            ([0.5, 1.0, 2.0], TypeError, r"it holds float64, such as 0\.5$"),
            ([float("nan"), 1.0, 2.0], TypeError, r"from 0; it has NaN or nothing in 1 row \(0\)$"),
            ([None, 1, 2], TypeError, r"y must be integers .*; it has NaN or nothing in 1 row \(0\)$"),
        ],
    )
    def test_rejects(self, values, error, message):
        with pytest.raises(error, match=message):
            checks.check_labels(values, "y", n_rows=3, n_classes=3)

    def test_without_a_number_of_classes(self):
        assert checks.check_labels([100], "y", n_rows=1).tolist() == [100]
        with pytest.raises(ValueError, match="y must be in the range 0 upwards; row 0 holds -2"):
            checks.check_labels([-2], "y", n_rows=1)

    def test_the_callers_array_is_not_shared(self):
        y = np.array([0, 1])
        checks.check_labels(y, "y", n_rows=2)[0] = 1
        assert y.tolist() == [0, 1]


class TestGroups:
    @pytest.mark.parametrize("values", [["a", "b"], np.array([3, 4]), torch.tensor([3, 4]), pd.Series(["a", "b"])])
    def test_become_names(self, values):
        groups = checks.check_groups(values, "groups", n_rows=2)
        assert groups is not None
        assert groups.tolist() == [str(v) for v in (values.tolist() if hasattr(values, "tolist") else values)]

    @pytest.mark.parametrize("kind", [np.float64, np.float32, object, torch.tensor])
    def test_a_whole_number_has_one_name(self, kind):
        numbers = kind([7.0, 200.0, 7.5]) if kind is torch.tensor else np.array([7.0, 200.0, 7.5], dtype=kind)
        groups = checks.check_groups(numbers, "groups", n_rows=3)
        assert groups is not None
        assert groups.tolist() == ["7", "200", "7.5"]

    def test_a_column_that_should_be_called_group(self):
        assert checks.misnamed_group(["p", "Patient_ID"]) == (
            "it holds 'Patient_ID' and no 'group': rename it if it names lesions or patients"
        )
        assert checks.misnamed_group(["group", "patient"]) is None
        assert checks.misnamed_group(["sex", "site"]) is None

    def test_none_is_none(self):
        assert checks.check_groups(None, "groups", n_rows=2) is None

    @pytest.mark.parametrize(
        "values", [["a", ""], ["a", None], [1.0, math.nan], pd.Series(["a", pd.NA], dtype="string"), ["a", math.nan]]
    )
    def test_empty_entries(self, values):
        if isinstance(values, list):
            values = np.array(values, dtype=object)
        with pytest.raises(ValueError, match=r"groups has empty entries in 1 row \(1\); give each lone row its own"):
            checks.check_groups(values, "groups", n_rows=2)

    def test_one_per_row(self):
        with pytest.raises(ValueError, match=r"groups needs one entry per row: 3, not shape \(2,\)"):
            checks.check_groups(["a", "b"], "groups", n_rows=3)


class TestSplit:
    @pytest.mark.parametrize(
        "values",
        [
            ["train", "test", "val", "train"],
            [0, 2, 1, 0],
            torch.tensor([0, 2, 1, 0]),
            np.array([b"train", b"test", b"val", b"train"]),
            ["0", "test", "1", "train"],
        ],
    )
    def test_words_or_codes(self, values):
        codes = checks.check_split(values, n_rows=4)
        assert codes.dtype == np.int8
        assert codes.tolist() == [0, 2, 1, 0]

    def test_no_rows(self):
        assert checks.check_split([]).tolist() == []

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (["train", "valid"], "split holds 'valid'; use train, val, test or 0, 1, 2"),
            ([0, 3], "split holds '3'"),
            ([0.0, 1.0], r"split holds '0\.0'"),
            ([[0, 1]], r"split must be one-dimensional, and has shape \(1, 2\)"),
        ],
    )
    def test_rejects(self, values, message):
        with pytest.raises(ValueError, match=message):
            checks.check_split(values)

    def test_one_per_row(self):
        with pytest.raises(ValueError, match=r"part needs one entry per row: 3, not shape \(2,\)"):
            checks.check_split([0, 1], "part", n_rows=3)


class TestNumbers:
    @pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.int64(1)])
    def test_unit_interval_accepts(self, value):
        checks.check_unit_interval(value, "alpha")

    @pytest.mark.parametrize("value", [-1e-9, 1 + 1e-9, math.nan, math.inf])
    def test_unit_interval_rejects(self, value):
        with pytest.raises(ValueError, match="alpha must lie between 0 and 1, not"):
            checks.check_unit_interval(value, "alpha")

    def test_another_upper_end(self):
        checks.check_unit_interval(0.69, "delta", upper=math.log(2))
        with pytest.raises(ValueError, match=r"delta must lie between 0 and 0\.6931, not 0\.7"):
            checks.check_unit_interval(0.7, "delta", upper=math.log(2))

    @pytest.mark.parametrize("value", [1e-300, 1, np.float32(3), 1e300])
    def test_positive_accepts(self, value):
        checks.check_positive(value, "kappa")

    @pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
    def test_positive_rejects(self, value):
        with pytest.raises(ValueError, match="kappa must be a finite number above 0, not"):
            checks.check_positive(value, "kappa")

    def test_count(self):
        checks.check_count(1, "k")
        checks.check_count(np.int32(2), "k", least=2)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="k must be at least 2, not 1"):
            checks.check_count(1, "k", least=2)

    @pytest.mark.parametrize("value", [True, "1", None, [1]])
    def test_what_is_no_number(self, value):
        for check in (checks.check_unit_interval, checks.check_positive):
            with pytest.raises(TypeError, match="x must be a number, not"):
                check(value, "x")
        with pytest.raises(TypeError, match="x must be a whole number, not"):
            checks.check_count(value, "x")

    def test_a_fraction_is_no_count(self):
        with pytest.raises(TypeError, match=r"k must be a whole number, not 2\.0"):
            checks.check_count(2.0, "k")  # type: ignore[arg-type]


class TestToTensor:
    def test_shares_memory_where_it_can(self):
        array = np.zeros((2, 2))
        assert checks.to_tensor(array, "x").numpy() is not array
        assert np.shares_memory(checks.to_tensor(array, "x").numpy(), array)

    def test_a_tensor_comes_back_without_its_graph(self):
        x = torch.ones(2, requires_grad=True)
        assert not checks.to_tensor(x, "x").requires_grad

    def test_arrays_that_torch_cannot_share(self):
        base = np.arange(12.0).reshape(3, 4)
        frozen = base.copy()
        frozen.flags.writeable = False
        packed = np.zeros(3, dtype=[("value", "f4"), ("flag", "i1")])
        packed["value"] = [1, 2, 3]
        for array in (frozen, base[::-1], base[:, ::-2], base.T, base.astype(">f8"), packed["value"]):
            tensor = checks.to_tensor(array, "x")
            assert tensor.tolist() == array.tolist()
        assert checks.to_tensor(base.astype(np.longdouble), "x").dtype == torch.float64

    @pytest.mark.parametrize(
        "values",
        ["text", {"a": 1}, object(), np.array(["2020-01-01"], "M8[D]"), np.zeros(2, dtype=[("a", "f4")]), [None, 1.0]],
    )
    def test_what_holds_no_numbers(self, values):
        with pytest.raises(TypeError, match=f"x must be an array of numbers, not {type(values).__name__}"):
            checks.to_tensor(values, "x")


def test_read_only_memory_is_neither_copied_nor_written_to(tmp_path):
    np.save(tmp_path / "z.npy", np.arange(12.0).reshape(4, 3))
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    tensor = checks.check_embeddings(mapped, "z")
    assert np.shares_memory(tensor.numpy(), mapped)
    del mapped
    assert tensor[3, 2] == 11


def test_some_rows_at_a_time_are_checked_like_all(monkeypatch):
    p = np.tile(GOOD, (4, 1))
    p[7] = [0.5, 0.7]
    monkeypatch.setattr(rowwise, "BLOCK", 5)
    with pytest.raises(ValueError, match=r"row 7 sums to 1\.2.*1 of 12 rows"):
        checks.check_probabilities(p, "p")


@pytest.mark.parametrize(
    ("n", "found"), [(0, ""), (1, "0"), (8, "0, 1, 2, 3, 4, 5, 6, 7"), (1009, "6, 7, and 1,001 more")]
)
def test_a_long_list_is_cut_short(n, found):
    assert checks.some_of([*map(str, range(n))]).endswith(found)
