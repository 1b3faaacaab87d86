"""The history of a model: each step is chained to the one before it."""

from __future__ import annotations

from typing import Any

import pytest

from tdumpra import __version__
from tdumpra.errors import ArtifactError
from tdumpra.method.lineage import Entry, append, check, from_json, to_json

PARENT = "ab" * 32


def history() -> tuple[Entry, ...]:
    made = append((), command="run", settings={"train": {"epochs": 3}}, inputs={"data": "0f"})
    adapted = append(made, command="adapt", settings={}, inputs={"source": "1f"}, parent=PARENT)
    return append(adapted, command="bank remove", settings={"group": "a"}, inputs={}, parent=PARENT)


def test_a_history_holds_and_comes_back_from_json():
    steps = history()
    check(steps)
    check(())
    assert from_json(to_json(steps)) == steps
    assert [step.command for step in steps] == ["run", "adapt", "bank remove"]
    assert steps[0].version == __version__
    assert steps[0].parent is None


@pytest.mark.parametrize(
    "change",
    [
        lambda steps: (steps[0]._replace(settings={"train": {"epochs": 4}}), *steps[1:]),
        lambda steps: (*steps[:2], steps[2]._replace(inputs={"source": "2f"})),
        lambda steps: (steps[0], steps[2]),
        lambda steps: (steps[0], steps[2], steps[1]),
        lambda steps: steps[1:],
        lambda steps: append(steps, command="adapt", settings={}, inputs={}),  # without a parent
    ],
)
def test_a_step_that_was_changed_dropped_or_moved_is_found(change):
    with pytest.raises(ArtifactError, match=r"step \d of \d"):
        check(change(history()))


def test_settings_lose_the_folders_of_this_machine():
    settings = {"data": {"source": "ham10000:/home/alice/ham", "files": ["a/b.csv", "c"]}, "epochs": 3}
    (step,) = append((), command="run", settings=settings, inputs={})
    assert step.settings == {"data": {"source": "ham10000:ham", "files": ["b.csv", "c"]}, "epochs": 3}


def test_names_of_classes_are_no_places():
    settings = {"new_classes": ["naevus/lentigo"], "stays": ["naevus/lentigo has no row left"], "source": "a/b.npz"}
    (step,) = append((), command="bank add", settings=settings, inputs={})
    assert step.settings == {**settings, "source": "b.npz"}


@pytest.mark.parametrize(("depth", "refused"), [(32, False), (33, True), (5000, True)])
def test_settings_that_are_nested_without_end_are_refused(depth, refused):
    nested: Any = 1
    for _ in range(depth):
        nested = {"a": nested}
    entry = {**to_json(history())[0], "settings": nested}
    if refused:
        with pytest.raises(ValueError, match="nested too deeply"):
            from_json([entry])
    else:
        assert from_json([entry])[0].settings == nested


def test_the_time_may_be_stated(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert history()[0].time == "1970-01-01T00:00:00+00:00"
    assert history() == history()


@pytest.mark.parametrize("said", [{}, [1], [{"command": "run"}], "run", [{**to_json(history())[0], "chain": "x"}]])
def test_what_is_no_history_is_refused(said):
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_json(said)
