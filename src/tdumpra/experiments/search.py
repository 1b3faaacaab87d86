"""Search settings: trainings with settings that Optuna draws, judged on validation rows alone.

A trial trains the configuration with drawn settings, clusters and tunes, and is worth what the tuned gate earns on
validation rows that had no say in its choice. Test rows are never looked at. With outer folds, each fold is searched on
its own, so that no fold's test rows take part in the choice of its settings.

Any number of processes may work on one search: they share a journal file or a database. A process that was killed
leaves its trial behind; whoever starts next draws the same settings again, and their training goes on from its last
checkpoint.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tdumpra.artifacts import fingerprint
from tdumpra.errors import MissingExtraError, TdumpraError
from tdumpra.experiments.results import ResultTable
from tdumpra.locks import exclusive
from tdumpra.runs.config import Config, SearchConfig, SearchRange, config_text
from tdumpra.runs.folder import fold_place, run_root
from tdumpra.runs.outputs import TrainedOutputs, variant_outputs
from tdumpra.toml import from_plain
from tdumpra.tuning.fit import fit
from tdumpra.tuning.goal import LOSSES, objective_name, shown_value
from tdumpra.writing import make_folder, write_bytes

if TYPE_CHECKING:
    import optuna

_BEFORE_PRUNING = 5  # trials that must be finished before one is ended early
_WORKER, _REASON, _MADE_FROM = "worker", "reason", "made_from"


class SearchError(TdumpraError):
    """A search cannot go on."""


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return a configuration with some settings changed, by their keys; refuses values that they cannot have."""
    content = asdict(config)
    for key, value in settings.items():
        *sections, name = key.split(".")
        table: Any = content
        for section in sections:
            table = table[section] if isinstance(table, dict) and section in table else {}
        if not isinstance(table, dict) or name not in table:
            raise SearchError(f"search.ranges names {key}, which is no setting")
        table[name] = value
    return from_plain(content, Config)


def refuse_unsearchable(config: Config) -> None:
    """Refuse before the first training what no trial could do."""
    if not config.search.ranges:
        raise SearchError(
            "there is nothing to search: name settings in [[search.ranges]], each with low and high, or choices"
        )
    if config.outputs:
        raise SearchError("a search trains networks, and outputs are saved ones: leave one out")
    if config.tune.certify:
        raise SearchError("tune.certify proves one gate, and a search compares many: leave it to the run of the best")
    for each in config.search.ranges:
        for end in each.ends:
            with_settings(config, {each.key: _fitting(config, each.key, end)})


@dataclass(frozen=True, slots=True)
class Study:
    """The search of one configuration, or of one outer fold of it."""

    config: Config
    storage: str | None  # a database's address; a journal file in the folder if left out

    @property
    def folder(self) -> Path:
        """Return where its files lie."""
        return fold_place(run_root(self.config) / "search", self.config.data.fold)

    @property
    def name(self) -> str:
        """Return its name in the storage."""
        fold = self.config.data.fold
        return self.config.name if fold is None else f"{self.config.name}, fold {fold}"

    @property
    def best(self) -> Path:
        """Return the file of the best configuration."""
        return self.folder / "best.toml"

    def work(self, on_trial: Any = lambda done, total: None) -> optuna.Study:
        """Draw and train until as many trials are finished as were asked for, by all processes together."""
        optuna = _optuna()
        study = self._open()
        total = self.config.search.trials
        with self._alive() as worker:
            self._take_over(study)
            while (trial := self._ask(study, worker, total)) is not None:
                try:
                    value = self._value(trial)
                except optuna.TrialPruned:
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                except TdumpraError as error:  # this draw cannot be trained: others can
                    trial.set_user_attr(_REASON, str(error))
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
                else:
                    study.tell(trial, value)
                on_trial(len(_finished(study)), total)
        return study

    def write(self, study: optuna.Study) -> ResultTable:
        """Write the best configuration, and the history as a table."""
        history = history_of(study, self.config)
        if best := _best(study):
            chosen = with_settings(self.config, self._settings(best.params))
            chosen = replace(chosen, name=f"{self.config.name}-best", folder=None, search=SearchConfig())
            write_bytes(self.best, config_text(chosen, self.folder).encode())
        return history

    def _open(self) -> optuna.Study:
        library = _optuna()
        library.logging.set_verbosity(library.logging.ERROR)
        make_folder(self.folder)
        storage: Any = self.storage
        if storage is None:
            journal = library.storages.journal.JournalFileBackend(str(self.folder / "journal.log"))
            storage = library.storages.JournalStorage(journal)
        search = self.config.search
        pruner = library.pruners.MedianPruner(n_startup_trials=_BEFORE_PRUNING) if search.prune else None
        study: optuna.Study = library.create_study(
            storage=storage, study_name=self.name, direction="maximize", load_if_exists=True,
            pruner=pruner or library.pruners.NopPruner(),
        )  # fmt: skip
        made_from = fingerprint(repr(replace(self.config, search=replace(search, trials=1), folder=None)))
        if study.user_attrs.setdefault(_MADE_FROM, made_from) != made_from:
            raise SearchError(
                f"the search {self.name!r} was begun with other settings: give the configuration another name, or "
                f"remove {self.folder}"
            )
        study.set_user_attr(_MADE_FROM, made_from)
        return study

    @contextmanager
    def _alive(self) -> Iterator[str]:
        """Hold a lock as long as this process lives, by which others know that its trial goes on."""
        worker = uuid.uuid4().hex
        path = self.folder / f".worker-{worker}"
        with exclusive(path, inherited=False):
            yield worker
        path.unlink(missing_ok=True)

    def _take_over(self, study: optuna.Study) -> None:
        """Give up the trials of processes that died, and draw their settings again."""
        optuna = _optuna()
        for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            path = self.folder / f".worker-{trial.user_attrs.get(_WORKER, '')}"
            if _WORKER in trial.user_attrs and not _is_held(path):
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                study.enqueue_trial(trial.params)
                path.unlink(missing_ok=True)

    def _ask(self, study: optuna.Study, worker: str, total: int) -> optuna.Trial | None:
        """Draw settings, unless enough trials are finished or under way."""
        states = _optuna().trial.TrialState
        with exclusive(self.folder / ".asking", inherited=False):
            under_way = study.get_trials(deepcopy=False, states=(states.RUNNING,))
            if len(_finished(study)) + len(under_way) >= total:
                return None
            drawn = len(study.get_trials(deepcopy=False))  # processes that start together must not draw the same
            seed = int(fingerprint(str(self.config.search.seed), str(drawn))[:8], 16)  # no other search's, either
            study.sampler = _optuna().samplers.TPESampler(seed=seed)
            trial = study.ask()
            trial.set_user_attr(_WORKER, worker)
            for each in self.config.search.ranges:
                _suggest(trial, self.config, each)
            return trial

    def _settings(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        return {key: _fitting(self.config, key, value) for key, value in drawn.items()}

    def _value(self, trial: optuna.Trial) -> float:
        """Train with the drawn settings; return the mean over seeds of what is earned on validation rows."""
        config = with_settings(self.config, self._settings(trial.params))
        objective = config.tune.objective
        values = []
        for number, outputs in enumerate(variant_outputs(config)):
            assert isinstance(outputs, TrainedOutputs)

            def watch(epoch: int, scores: Mapping[str, float]) -> None:
                loss = objective in LOSSES
                trial.report(-scores["nll"] if loss else scores[objective], epoch)
                if trial.should_prune():
                    raise _optuna().TrialPruned

            watched = replace(outputs, on_validated=watch if number == 0 else None)
            others = [other.load() for other in watched.others]
            fitted = fit(watched.load(), config.bank, config.tune, others=others, judge=True)
            assert fitted.expected is not None
            values.append(fitted.expected.objective)
        return fmean(values)


def studies(config: Config, storage: str | None) -> list[Study]:
    """Return the searches of a configuration: one, or one for each outer fold."""
    refuse_unsearchable(config)
    return [Study(each, storage) for each in config.of_folds()]


def history_of(study: optuna.Study, config: Config) -> ResultTable:
    """Return every trial in its order, with its settings, and the best so far."""
    objective, best = config.tune.objective, None
    rows: list[dict[str, Any]] = []
    for trial in study.get_trials(deepcopy=False):
        value = trial.value if trial.state.name == "COMPLETE" else None
        if value is not None:
            best = value if best is None else max(best, value)
        rows.append(
            {
                "trial": trial.number, "state": trial.state.name.lower(), **trial.params,
                "value": None if value is None else shown_value(objective, value),
                "best": None if best is None else shown_value(objective, best),
                "reason": trial.user_attrs.get(_REASON, ""),
            }
        )  # fmt: skip
    name = objective_name(objective)
    keys = {each.key: each.key for each in config.search.ranges}
    columns = {"trial": "Trial", "state": "State", **keys, "value": name, "best": "best so far", "reason": "Reason"}
    notes = ("Judged on validation rows that had no say in the choice of the gate; no test row was looked at.",)
    return ResultTable(title=f"Search: {study.study_name}", columns=columns, rows=rows, notes=notes)


def _suggest(trial: optuna.Trial, config: Config, each: SearchRange) -> None:
    if each.choices:
        trial.suggest_categorical(each.key, list(each.choices))
    elif isinstance(_current(config, each.key), int) and isinstance(each.low, int) and isinstance(each.high, int):
        trial.suggest_int(each.key, each.low, each.high, log=each.log)
    else:
        assert each.low is not None
        assert each.high is not None
        trial.suggest_float(each.key, each.low, each.high, log=each.log)


def _current(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def _fitting(config: Config, key: str, value: Any) -> Any:
    """Return a whole number as a float where the setting is one, as TOML does."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and isinstance(_current(config, key), float) else value


def _finished(study: optuna.Study) -> Sequence[Any]:
    states = _optuna().trial.TrialState
    return study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED))


def _best(study: optuna.Study) -> Any:
    complete = study.get_trials(deepcopy=False, states=(_optuna().trial.TrialState.COMPLETE,))
    return max(complete, key=lambda trial: float(trial.value or 0.0), default=None)


def _is_held(path: Path) -> bool:
    held = False

    class _HeldError(Exception):
        pass

    def refuse() -> None:
        raise _HeldError

    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(path, on_wait=refuse, inherited=False))
        except _HeldError:
            held = True
    return held


def _optuna() -> Any:
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        raise MissingExtraError("optuna", "search", "tdumpra search") from error
    return optuna
