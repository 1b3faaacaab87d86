"""Searching settings: drawn on validation rows alone, shared by processes, and never lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from tiny_config import write_config

from tdumpra.experiments import search
from tdumpra.experiments.search import SearchError, Study, refuse_unsearchable, studies, with_settings
from tdumpra.runs.config import Config, SearchConfig, SearchRange, config_text, read_config
from tdumpra.toml import ConfigError
from tdumpra.tuning.fit import fit

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:n_prototypes=\d is more than the distinct groups"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]
HELPERS = Path(__file__).parents[1] / "helpers"
RANGES = (
    SearchRange(key="train.learning_rate", low=1e-4, high=1e-1, log=True),
    SearchRange(key="bank.n_prototypes", low=2, high=4),
)


@pytest.fixture
def config(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    path = write_config(tmp_path / "run.toml", tmp_path_factory.getbasetemp() / "cache")
    asked = SearchConfig(trials=2, ranges=RANGES, prune=False)
    return replace(read_config(path), folder=str(tmp_path / "run"), search=asked)


def searched(config: Config) -> tuple[Study, Any]:
    (study,) = studies(config, None)
    return study, study.work()


def test_a_search_writes_its_history_and_a_configuration_that_runs(config):
    study, tried = searched(config)
    table = study.write(tried)
    assert len(table.rows) == 2
    values = [float(str(row["value"])) for row in table.rows]
    assert table.rows[-1]["best"] == max(values)
    best = read_config(study.best)
    chosen = table.rows[int(np.argmax(values))]
    assert best.train.learning_rate == chosen["train.learning_rate"]
    assert best.bank.n_prototypes == chosen["bank.n_prototypes"]
    assert best.search == SearchConfig()
    assert best.data.source == config.data.source


def test_a_finished_search_draws_nothing_more_and_a_longer_one_goes_on(config):
    searched(config)
    before = [each.params for each in searched(config)[1].trials]
    assert len(before) == 2
    _, longer = searched(replace(config, search=replace(config.search, trials=3)))
    assert [each.params for each in longer.trials[:2]] == before
    assert len(longer.trials) == 3


def test_processes_that_start_together_draw_different_settings(config):
    (study,) = studies(config, None)
    both = [study._open() for _ in range(2)]  # before either of them has drawn
    drawn = [study._ask(each, f"worker {i}", 2) for i, each in enumerate(both)]
    rates = [trial.params["train.learning_rate"] for trial in drawn if trial is not None]
    assert len(set(rates)) == 2


def test_searches_with_neighbouring_seeds_draw_different_settings(config):
    rates = []
    for seed in (0, 1):
        (study,) = studies(replace(config, name=f"seed {seed}", search=replace(config.search, seed=seed)), None)
        opened = study._open()
        drawn = [study._ask(opened, "worker", 3) for _ in range(3)]
        rates += [trial.params["train.learning_rate"] for trial in drawn if trial is not None]
    assert len(set(rates)) == 6


def test_test_rows_have_no_part_in_it(config, monkeypatch):
    def without_test(splits: Any, *arguments: Any, **options: Any) -> Any:
        return fit(splits._replace(test=None), *arguments, **options)

    monkeypatch.setattr(search, "fit", without_test)
    study, tried = searched(config)
    assert study.write(tried).rows[-1]["best"] is not None


def test_each_outer_fold_is_searched_on_its_own(config):
    folds = replace(config, data=replace(config.data, outer_folds=2), search=replace(config.search, trials=1))
    found = studies(folds, None)
    assert [each.config.data.fold for each in found] == [0, 1]
    assert len({each.folder for each in found} | {each.name for each in found}) == 4


def test_a_bad_training_is_ended_early(config):
    asked = SearchConfig(trials=8, ranges=(SearchRange(key="train.learning_rate", choices=(1e-3, 1e-2)),), prune=True)
    config = replace(config, search=asked, train=replace(config.train, epochs=2))
    (study,) = studies(config, None)
    opened = study._open()
    for _ in range(search._BEFORE_PRUNING):  # trials better than any can be: an easy task may earn 1
        opened.add_trial(
            optuna.create_trial(
                params={"train.learning_rate": 1e-2}, value=2.0, intermediate_values={1: 2.0, 2: 2.0},
                distributions={"train.learning_rate": optuna.distributions.CategoricalDistribution((1e-3, 1e-2))},
            )
        )  # fmt: skip
    tried = study.work()
    states = [each.state.name for each in tried.trials[search._BEFORE_PRUNING :]]
    assert states == ["PRUNED"] * 3


def test_a_draw_that_cannot_be_trained_is_noted_and_passed_over(config):
    asked = SearchConfig(trials=2, ranges=(SearchRange(key="train.batch_size", choices=(16, 10**6)),), seed=3)
    study, tried = searched(replace(config, search=asked))
    failed = [row for row in study.write(tried).rows if row["state"] == "fail"]
    assert failed
    assert all("lower it" in str(row["reason"]) for row in failed)
    assert sum(row["state"] == "complete" for row in study.write(tried).rows) == 2


@pytest.mark.slow
def test_the_trial_of_a_killed_process_is_drawn_again(config, tmp_path):
    (study,) = studies(config, None)
    source = (
        "import sys, os, signal\n"
        "from tdumpra.experiments import search\n"
        "from tdumpra.runs.config import read_config\n"
        "def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\n"
        "search.fit = die\n"
        "(study,) = search.studies(read_config(sys.argv[1]), None)\n"
        "study.work()\n"
    )
    path = tmp_path / "search.toml"
    path.write_text(config_text(config, tmp_path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(HELPERS)])}
    done = subprocess.run([sys.executable, "-c", source, str(path)], env=environment, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    tried = study.work()
    states = [each.state.name for each in tried.trials]
    assert states == ["FAIL", "COMPLETE", "COMPLETE"]
    assert tried.trials[0].params == tried.trials[1].params


def test_another_configuration_under_the_same_name_is_refused(config):
    searched(config)
    with pytest.raises(SearchError, match="begun with other settings"):
        searched(replace(config, train=replace(config.train, epochs=3)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "nothing to search"),
        ((SearchRange(key="train.lerning_rate", low=1, high=2),), "no setting"),
        ((SearchRange(key="train.epochs", choices=("many",)),), "whole number"),
        ((SearchRange(key="bank.n_prototypes", low=0, high=3),), "n_prototypes"),
    ],
)
def test_what_no_trial_could_do_is_refused_at_once(config, given, message):
    with pytest.raises((SearchError, ConfigError), match=message):
        refuse_unsearchable(replace(config, search=SearchConfig(ranges=given)))


@pytest.mark.parametrize(
    "given",
    [
        {"key": "data.source", "choices": ("a",)},
        {"key": "train.epochs"},
        {"key": "train.epochs", "low": 3, "high": 2},
        {"key": "train.learning_rate", "low": 0, "high": 1, "log": True},
        {"key": "train.epochs", "low": 1, "high": 2, "choices": (1,)},
    ],
)
def test_ranges_that_make_no_sense_are_refused(given):
    with pytest.raises(ValueError, match=r"key|needs|log"):
        SearchRange(**given)


def test_settings_are_changed_by_their_keys(config):
    changed = with_settings(config, {"data.framing.height": 20, "tune.objective": "accuracy"})
    assert (changed.data.framing.height, changed.tune.objective) == (20, "accuracy")
    assert changed.train == config.train
