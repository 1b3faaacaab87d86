from __future__ import annotations

import numpy as np

from tdumpra.report.cases import Outcomes, choose, page_names


def made(**counts: int) -> Outcomes:
    names = np.array([name for name, count in counts.items() for _ in range(count)])
    return Outcomes(names, np.linspace(0.9, 0.1, len(names)))


def test_all_are_shown_where_there_is_room():
    chosen = choose(made(fixed=3, broken=2, moved=1, kept=2, shut=1), 96)
    assert {name: len(rows) for name, rows in chosen.items()} == {
        "fixed": 3, "broken": 2, "moved": 1, "kept": 2, "shut": 1
    }  # fmt: skip


def test_fixed_and_broken_share_the_room_evenly():
    chosen = choose(made(fixed=100, broken=100, moved=5, shut=5), 20)
    assert {name: len(rows) for name, rows in chosen.items()} == {
        "fixed": 9, "broken": 9, "moved": 1, "kept": 0, "shut": 1
    }  # fmt: skip


def test_every_outcome_that_there_is_has_a_few_places():
    chosen = choose(made(fixed=58, broken=47, moved=28, kept=3, shut=109), 96)
    assert {name: len(rows) for name, rows in chosen.items()} == {
        "fixed": 38, "broken": 39, "moved": 8, "kept": 3, "shut": 8
    }  # fmt: skip


def test_few_broken_ones_are_never_crowded_out():
    chosen = choose(made(fixed=100, broken=2), 20)
    assert (len(chosen["fixed"]), len(chosen["broken"])) == (18, 2)
    assert (len(choose(made(fixed=2, broken=100), 20)["broken"])) == 18


def test_shut_ones_fill_a_quarter_unless_there_is_nothing_else():
    assert len(choose(made(fixed=1, shut=100), 20)["shut"]) == 5
    assert len(choose(made(shut=100), 20)["shut"]) == 20


def test_the_least_sure_come_first():
    found = made(fixed=5)
    assert choose(found, 3)["fixed"] == [4, 3, 2]


def test_none_at_all():
    assert not any(choose(made(fixed=5, shut=5), 0).values())


def test_names_that_are_given_twice_have_a_page_each():
    files = page_names({3: "a", 5: "b", 8: "a", 9: "A", 11: "a/b", 12: "a/b"})
    assert files[5] == "b.html"
    assert files[3].startswith("a-row-3~")
    assert len({name.lower() for name in files.values()}) == 6
