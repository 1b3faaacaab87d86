import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdumpra import audit_leakage
from tdumpra.data.leakage import refuse_crossing_groups

rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=25)


def naive(split, groups, chosen):
    """Test images, among the chosen rows, whose group stands in train or val."""
    others = {g for s, g in zip(split, groups, strict=True) if s != 2}
    mine = [g for s, g, c in zip(split, groups, chosen, strict=True) if s == 2 and c]
    leaked = [g for g in mine if g in others]
    share = len(leaked) / len(mine) if mine else 0.0
    return {"images": len(leaked), "of": len(mine), "share": share, "groups": len(set(leaked))}


@given(rows)
def test_equals_the_naive_count(table):
    split, groups, labels = (list(column) for column in zip(*table, strict=True))
    audit = audit_leakage(split, groups, labels)
    overall = naive(split, groups, [True] * len(split))
    assert {name: audit[name] for name in overall} == overall
    assert audit["by_class"] == {c: naive(split, groups, [label == c for label in labels]) for c in sorted(set(labels))}
    train = {g for s, g in zip(split, groups, strict=True) if s == 0}
    val = [g for s, g in zip(split, groups, strict=True) if s == 1]
    hit = sum(g in train for g in val)
    assert audit["validation"] == {"images": hit, "of": len(val), "share": hit / len(val) if val else 0.0}
    crossing = {g for g in groups if len({s for s, h in zip(split, groups, strict=True) if g == h}) > 1}
    assert audit["crossing_groups"] == len(crossing)
    assert (audit["example"] is None) == (not crossing)
    if crossing:
        assert audit["example"] in {str(g) for g in crossing}
        with pytest.raises(ValueError, match=f"^{len(crossing)} groups"):
            refuse_crossing_groups(split, groups)
    else:
        refuse_crossing_groups(split, groups)


def test_by_hand():
    # Test has a (also in train), a, b (also in val) and c: 3 of 4 images leak, through 2 groups.
    split = ["train", "val", "test", "test", "test", "test"]
    audit = audit_leakage(split, ["a", "b", "a", "a", "b", "c"], [0, 1, 0, 0, 1, 1])
    assert (audit["images"], audit["of"], audit["share"], audit["groups"]) == (3, 4, 0.75, 2)
    assert audit["by_class"][1] == {"images": 1, "of": 2, "share": 0.5, "groups": 1}
    assert audit["validation"] == {"images": 0, "of": 1, "share": 0.0}
    assert audit["crossing_groups"] == 2


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_any_kind_of_array(kind):
    audit = audit_leakage(kind([0, 1, 2, 2]), kind([7, 7, 7, 8]))
    assert (audit["images"], audit["validation"]["images"], audit["example"]) == (1, 1, "7")
    assert audit["by_class"] == {}


def test_a_clean_split_and_an_empty_test():
    clean = audit_leakage(["train", "val", "test"], ["a", "b", "c"])
    assert (clean["images"], clean["crossing_groups"], clean["example"]) == (0, 0, None)
    empty = audit_leakage(["train"], ["a"], [0])
    assert (empty["of"], empty["share"]) == (0, 0.0)


def test_the_refusal_says_where():
    with pytest.raises(ValueError, match="'l7' is in train and test"):
        refuse_crossing_groups(["train", "val", "test"], ["l7", "l8", "l7"])
    with pytest.raises(ValueError, match="'a' is in train and val and test"):
        refuse_crossing_groups([0, 1, 2], ["a", "a", "a"])


@pytest.mark.parametrize(
    ("split", "groups", "labels", "error", "message"),
    [
        (["train"], None, None, TypeError, "groups must name each image's group; None names none"),
        (["train"], ["a", "b"], None, ValueError, "groups needs one entry per row: 1"),
        (["train"], [""], None, ValueError, "groups has empty entries"),
        (["training"], ["a"], None, ValueError, "split holds 'training'"),
        (["train"], ["a"], ["mel"], TypeError, "labels must be integers"),
        (["train"], ["a"], [0, 1], ValueError, "labels has 2 entries for 1 rows"),
    ],
)
def test_rejects(split, groups, labels, error, message):
    with pytest.raises(error, match=message):
        audit_leakage(split, groups, labels)
