from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tdumpra.data.sources.finish import merge_groups


def test_pairs_connect_groups_through_others():
    # a-b and b-c make one group of three lesions; the pair with an unknown image says nothing
    groups = {"a": "L3", "b": "L2", "c": "L1", "d": "L4"}
    merged, joined = merge_groups(groups, [("a", "b"), ("b", "c"), ("d", "unknown"), ("a", "c")])
    assert merged == {"a": "L1", "b": "L1", "c": "L1", "d": "L4"}
    assert joined == 2  # the last pair was already one group


items = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(items, items)), st.randoms())
def test_merging_is_connectivity_whatever_the_order_of_pairs(pairs, random):
    groups = {name: name for name in "abcdefgh"}
    merged, _ = merge_groups(groups, pairs)
    reach = {name: {name} for name in groups}
    for _ in groups:  # naive closure
        for a, b in pairs:
            union = reach[a] | reach[b]
            for member in union:
                reach[member] = reach[member] | union
    assert merged == {name: min(members) for name, members in reach.items()}
    shuffled = random.sample(pairs, len(pairs))
    assert merge_groups(groups, shuffled)[0] == merged
