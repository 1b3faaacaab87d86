from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from tdumpra import foreign
from tdumpra.errors import InputFileError
from tdumpra.method import outputs
from tdumpra.method.output_files import read_outputs


def arrays(n: int = 30, n_classes: int = 3, width: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "p": softmax(rng.normal(size=(n, n_classes)), axis=1),
        "z": rng.normal(size=(n, width)),
        "y": np.arange(n) % n_classes,
        "split": np.arange(n) * 3 // n,
        "group": np.array([f"{i // 2:03d}" for i in range(n)]),
        "id": np.array([f"image-{i}" for i in range(n)]),
    }


def table(content: dict[str, np.ndarray]) -> pd.DataFrame:
    columns = {
        f"{name}_{i}" if array.ndim == 2 else name: column
        for name, array in content.items()
        for i, column in enumerate(array.T if array.ndim == 2 else [array])
    }
    return pd.DataFrame(columns)


def write(path, content: dict[str, np.ndarray]):
    if path.suffix == ".npz":
        np.savez(path, allow_pickle=True, **content)
    elif path.suffix == ".csv":
        table(content).to_csv(path, index=False)
    else:
        table(content).to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_each_format_gives_the_same_splits(tmp_path, suffix):
    content = arrays()
    read = read_outputs(write(tmp_path / f"outputs{suffix}", content))
    assert (len(read.train), len(read.validation), len(read.test)) == (10, 10, 10)
    np.testing.assert_allclose(read.test.p.numpy(), content["p"][20:], rtol=1e-14)
    np.testing.assert_allclose(read.train.z.numpy(), content["z"][:10], rtol=1e-14)
    assert read.validation.y.tolist() == content["y"][10:20].tolist()
    assert read.test.groups is not None
    assert read.test.groups.tolist() == content["group"][20:].tolist()  # 010 stays 010
    assert read.test.ids is not None
    assert read.test.ids[0] == "image-20"


def test_words_and_codes_name_the_same_splits(tmp_path):
    content = arrays()
    words = {**content, "split": np.array(["train", "val", "test"])[content["split"]]}
    by_code, by_word = (read_outputs(write(tmp_path / f"{i}.npz", c)) for i, c in enumerate((content, words)))
    assert by_code.test.y.tolist() == by_word.test.y.tolist()


def test_logits_become_probabilities(tmp_path):
    content = arrays()
    logits = np.log(content.pop("p")) + 5
    read = read_outputs(write(tmp_path / "o.npz", {**content, "logits": logits}))
    np.testing.assert_allclose(read.test.p.numpy(), softmax(logits, axis=1)[20:], rtol=1e-12)


def test_probabilities_and_their_own_logits_agree(tmp_path):
    content = arrays()
    content["logits"] = np.log(content["p"]) - 2
    content["p"] = content["p"].astype(np.float16)
    read = read_outputs(write(tmp_path / "o.npz", content))
    np.testing.assert_allclose(read.test.p.numpy(), softmax(content["logits"], axis=1)[20:], atol=1e-3)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("p\n1\n", "lacks z_0"),
        ("p_0,p_1,z_0,y,split\n", "names columns and has no rows"),
        ("p_0;p_1;z_0;y;split\n0,25;0,75;1;0;0\n", "p must be an array of numbers, and it holds '0,25': write"),
    ],
)
def test_tables_without_numbers(tmp_path, text, sentence):
    path = tmp_path / "o.csv"
    path.write_text(text)
    with pytest.raises(InputFileError, match=sentence):
        read_outputs(path)


def test_rows_are_renormalised_once_in_float64(tmp_path):
    content = arrays()
    content["p"] = content["p"].astype(np.float16)
    read = read_outputs(write(tmp_path / "o.npz", content))
    assert read.test.p.dtype.itemsize == 8
    np.testing.assert_allclose(read.test.p.sum(1).numpy(), 1, atol=1e-15)


def test_the_bank_uses_the_teachers_space_where_there_is_one(tmp_path):
    content = arrays()
    content["zt"] = np.random.default_rng(1).normal(size=(30, 7))
    content["pt"] = content["p"][:, ::-1]
    read = read_outputs(write(tmp_path / "o.npz", content))
    assert read.train.z.shape[1] == 7
    assert read.test.p_teacher is not None
    np.testing.assert_allclose(read.test.p_teacher.numpy(), content["p"][20:, ::-1], rtol=1e-12)


def test_the_second_networks_classifier_is_read(tmp_path):
    content = arrays()
    content["p_second"] = content["p"][:, ::-1]
    read = read_outputs(write(tmp_path / "o.npz", content))
    for rows, part in ((read.validation, slice(10, 20)), (read.test, slice(20, 30))):
        assert rows.p_second is not None
        np.testing.assert_allclose(rows.p_second.numpy(), content["p"][part, ::-1], rtol=1e-12)
    assert "p_second" not in read.test.metadata
    assert read_outputs(write(tmp_path / "without.npz", arrays())).test.p_second is None


@pytest.mark.parametrize("p_second", [np.full((30, 2), 0.5), np.full((30, 3), 2.0), np.full((29, 3), 1 / 3)])
def test_a_second_classifier_that_does_not_fit(tmp_path, p_second):
    with pytest.raises(InputFileError, match="p_second"):
        read_outputs(write(tmp_path / "o.npz", {**arrays(), "p_second": p_second}))


def test_semicolons_and_a_byte_order_mark_are_understood(tmp_path):
    path = tmp_path / "o.csv"
    table(arrays()).to_csv(path, index=False, sep=";", encoding="utf-8-sig")
    assert len(read_outputs(path).test) == 10


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_groups_under_another_name_are_pointed_out(tmp_path, suffix):
    content = arrays()
    content["patient_id"] = content.pop("group")
    with pytest.warns(UserWarning, match=f"o{suffix}: it holds 'patient_id' and no 'group': rename it if it names"):
        read = read_outputs(write(tmp_path / f"o{suffix}", content))
    assert read.test.groups is None
    assert "patient_id" in read.test.metadata


def change(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    merged = {**arrays(), **changes}
    return {name: array for name, array in merged.items() if array is not None}


def spoiled(name: str, row: int, value: float) -> dict[str, np.ndarray]:
    content = arrays()
    content[name] = content[name].copy()
    content[name][row] = value
    return content


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            change(p=None),
            r"lacks p \(or logits\); needed are p \(or logits\), z, y, split, and it holds z, y, split, group",
        ),
        ({"labels": np.arange(30), **change(y=None)}, r"lacks y; .*it holds labels, p, z, split, group, id"),
        (change(z=None, y=None), "lacks z, y"),
        (change(split=None), "lacks split"),
        (spoiled("p", 3, np.nan), "p has NaN or infinite values in 1 row"),
        (spoiled("p", 3, 2.0), "p holds 2 in row 3, and a probability lies between 0 and 1"),
        (spoiled("p", 3, 0.1), "p must sum to one in each row"),
        (change(p=np.random.default_rng(0).normal(size=(30, 3)) * 4), "these look like logits"),
        (spoiled("z", 25, 0.0), "all-zero rows"),
        (spoiled("z", 25, np.inf), "NaN or infinite"),
        (spoiled("y", 4, 3), "y.* must be in the range 0 to 2; row 4 holds 3"),
        (
            change(y=np.array(["nv"] * 30)),
            r"y holds names, such as 'nv', and nothing says which column of p is which class: call the columns of a "
            r"table p_nv, …, or put an array classes into the \.npz, or number y from 0",
        ),
        (
            change(y=np.array(["nv"] * 30), classes=np.array(["a", "b", "c"])),
            "y holds 'nv', which is none of the classes of p: a, b, c",
        ),
        (
            change(classes=np.array(["a", "b"])),
            r"classes must name each of the 3 classes of p once, and holds a, b$",
        ),
        (change(classes=np.array(["a", "b", "b"])), "classes must name each of the 3 classes of p once"),
        (change(y=np.arange(30) / 2), "y .*must be integers that number the classes from 0; it holds float64"),
        (change(split=np.zeros(30, int)), "split leaves val and test empty"),
        (change(split=np.array(["dev"] * 30)), "use train, val, test or 0, 1, 2"),
        (
            change(group=np.array(["same"] * 30)),
            "1 groups cross the splits, for example 'same' is in train and",
        ),
        (change(y=np.arange(29)), "y has 29 rows where p has 30"),
        (change(p=np.ones((30, 1))), "at least two classes"),
        (change(p=None, logits=np.full((30, 3), np.nan)), "logits must be a matrix of finite"),
        (change(logits=np.log(arrays()["p"][::-1])), "p and logits contradict each other in .* of 30 rows: in row"),
        (
            change(p=np.tile([0.4, 0.35, 0.25], (30, 1)), logits=np.log(np.tile([0.35, 0.4, 0.25], (30, 1)))),
            r"contradict each other in 30 of 30 rows: in row 0 p gives class 0 0\.400, and softmax\(logits\) 0\.350",
        ),
        (change(logits=np.zeros((30, 2))), r"p has shape \(30, 3\) and logits have shape \(30, 2\): keep one"),
        (change(p=arrays()["p"].astype(str)), "p must be an array of numbers, and it holds '0"),
        (change(y=np.where(np.arange(30) == 4, np.nan, 0.0)), r"y .*; it has NaN or nothing in 1 row \(4\)"),
    ],
)
def test_bad_content_is_answered_with_file_and_sentence(tmp_path, content, sentence):
    path = write(tmp_path / "bad.npz", content)
    with pytest.raises(InputFileError, match=sentence) as error:
        read_outputs(path)
    assert "bad.npz" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_is_told_which_columns_it_lacks(tmp_path, suffix):
    def refusal(frame: pd.DataFrame) -> str:
        path = tmp_path / f"table{suffix}"
        frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
        with pytest.raises(InputFileError) as error:
            read_outputs(path)
        return str(error.value)

    whole = table(arrays())
    assert refusal(whole[["p_0", "p_1", "p_2", "y"]]).endswith(
        "lacks z_0, …, split; needed are p_0, … (or logits_0, …), z_0, …, y, split, and it holds p_0, p_1, p_2, y"
    )
    many = pd.DataFrame({f"feature{i}": [1.0] for i in range(20)})
    assert refusal(many).endswith("it holds " + ", ".join(f"feature{i}" for i in range(8)) + ", and 12 more")
    assert "has z_3 and no z_1: number the columns from 0 on" in refusal(whole.drop(columns="z_1"))
    one_based = whole.rename(columns={"p_2": "p_3", "p_1": "p_2", "p_0": "p_1"})
    assert "has p_3 and no p_0" in refusal(one_based)


NAMES = np.array(["nv", "mel", "bkl"])  # not in the order of the alphabet


def test_class_names_of_an_archive_are_kept(tmp_path):
    content = arrays()
    named = {**content, "y": NAMES[content["y"]], "classes": NAMES}
    read, numbered = (read_outputs(write(tmp_path / f"{i}.npz", c)) for i, c in enumerate((named, content)))
    assert read.class_names == ("nv", "mel", "bkl")
    assert numbered.class_names == ()
    assert read.test.y.tolist() == numbered.test.y.tolist()
    assert "classes" not in read.test.metadata
    both = read_outputs(write(tmp_path / "both.npz", {**content, "classes": NAMES.astype("S")}))
    assert (both.class_names, both.test.y.tolist()) == (("nv", "mel", "bkl"), numbered.test.y.tolist())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("kind", ["p", "logits"])
def test_class_names_of_a_table_come_from_its_columns(tmp_path, suffix, kind):
    content = arrays()
    numbered = read_outputs(write(tmp_path / f"numbered{suffix}", content))
    content[kind] = np.log(content.pop("p")) if kind == "logits" else content["p"]
    frame = table({**content, "y": NAMES[content["y"]], "pt": np.full((30, 3), 1 / 3)})
    frame = frame.rename(columns={f"{of}_{i}": f"{of}_{name}" for of in (kind, "pt") for i, name in enumerate(NAMES)})
    path = tmp_path / f"named{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    read = read_outputs(path)
    assert read.class_names == ("nv", "mel", "bkl")
    assert read.test.y.tolist() == numbered.test.y.tolist()
    np.testing.assert_allclose(read.test.p.numpy(), numbered.test.p.numpy(), rtol=1e-12)
    assert read.test.p_teacher is not None
    assert dict(read.test.metadata) == {}


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_a_missing_or_empty_or_truncated_file(tmp_path, suffix):
    with pytest.raises(InputFileError, match="does not exist"):
        read_outputs(tmp_path / f"none{suffix}")
    empty = tmp_path / f"empty{suffix}"
    empty.write_bytes(b"")
    with pytest.raises(InputFileError, match="is empty" if suffix == ".csv" else f"not a readable {suffix}"):
        read_outputs(empty)
    whole = write(tmp_path / f"whole{suffix}", arrays())
    half = tmp_path / f"half{suffix}"
    half.write_bytes(whole.read_bytes()[: len(whole.read_bytes()) // 2])
    with pytest.raises(InputFileError):
        read_outputs(half)


def test_pickled_objects_are_never_loaded(tmp_path):
    """The array is named, with the cure; it may be one that nothing else would have asked for."""
    for name, column in (("y", [{"a": 1}] * 30), ("group", ["lesion"] * 30), ("sex", ["f"] * 30)):
        content = {**arrays(), name: np.array(column, dtype=object)}
        with pytest.raises(InputFileError, match=rf"the array '{name}' holds Python objects.*{name}\.astype\(\"U\"\)"):
            read_outputs(write(tmp_path / "o.npz", content))


def test_other_formats_are_named(tmp_path):
    with pytest.raises(InputFileError, match=r"read from \.npz, \.csv or \.parquet, not \.pkl"):
        read_outputs(tmp_path / "o.pkl")


def test_logits_beside_calibrated_or_masked_probabilities(tmp_path):
    """The probabilities are what is used; logits beside them may be those of before."""
    logits = 3 * np.random.default_rng(1).normal(size=(30, 3))
    with pytest.warns(UserWarning, match=r"p is not the softmax of logits \(calibrated, or averaged\?\): p is used"):
        read_outputs(write(tmp_path / "a.npz", change(p=softmax(logits / 1.5, axis=1), logits=logits)))
    for kept in (logits + 40, np.where(np.arange(3) == 2, -np.inf, logits)):
        content = change(p=softmax(kept, axis=1), logits=kept.astype(np.float16), y=np.arange(30) % 2)
        read_outputs(write(tmp_path / "b.npz", content))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_embeddings_are_dealt_into_splits_whatever_the_order_of_rows(tmp_path, save, order, monkeypatch):
    monkeypatch.setattr(foreign, "_READ_AT_ONCE", 100)  # three rows
    content = arrays(60)
    content["split"] = content["split"][np.random.default_rng(0).permutation(60)]
    content["group"] = content["id"]
    content["z"] = np.asarray(content["z"], order=order)
    save(tmp_path / "outputs.npz", **content)
    read = read_outputs(tmp_path / "outputs.npz")
    for code, rows in enumerate((read.train, read.validation, read.test)):
        assert np.array_equal(rows.z.numpy(), content["z"][content["split"] == code])


def test_embeddings_lie_in_memory_once(tmp_path):
    content = arrays(40_000, width=128)  # 40 MB of embeddings, and 4 MB beside them
    content["split"] = np.arange(40_000) % 3
    del content["group"], content["id"]
    np.savez(tmp_path / "outputs.npz", allow_pickle=False, **content)
    size = content["z"].nbytes
    del content
    tracemalloc.start()
    try:
        read_outputs(tmp_path / "outputs.npz")
        assert tracemalloc.get_traced_memory()[1] < 1.75 * size  # a copy would make it two
    finally:
        tracemalloc.stop()


def test_a_flipped_bit_in_the_embeddings_is_refused(tmp_path):
    path = write(tmp_path / "outputs.npz", arrays())
    data = bytearray(path.read_bytes())
    data[data.index(b"z.npy") + 300] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputFileError, match="damaged"):
        read_outputs(path)


def test_large_validation_is_searched_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "SEARCHED_ROWS", 7)
    whole = read_outputs(write(tmp_path / "outputs.npz", arrays()))
    part = whole.searched()
    assert part.drawn_from == 10
    assert len(part.validation) == 6  # groups are pairs, and none is torn apart
    assert set(np.asarray(part.validation.ids)) < set(np.asarray(whole.validation.ids))
    assert (part.train, part.test) == (whole.train, whole.test)
    monkeypatch.setattr(outputs, "SEARCHED_ROWS", 10)
    assert whole.searched() is whole
