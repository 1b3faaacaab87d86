"""``tdumpra demo``: from nothing to a report on synthetic lesions, through the very stages of ``tdumpra run``.

The settings were chosen on the data sets of seeds 100, 101 and 102, before the default preset had bounds, and then left
alone. On the fresh seeds 0 to 5 (six data sets, splits and trainings; 6,480 test images, 1,911 of them ambiguous) the
gate of the default preset fixed 162 and broke 69 of the ambiguous images, and 354 and 209 of all:

===================================  ========  =========  ========
mean of seeds 0 to 5                 accuracy  ambiguous  balanced
===================================  ========  =========  ========
student                                0.706     0.388      0.448
logit_adjusted (by likelihood)         0.712     0.404      0.478
logit_adjusted (for balance)           0.712     0.439      0.536
similarity                             0.695     0.488      0.611
gate                                   0.728     0.437      0.552
best possible                          0.884     0.614      0.835
===================================  ========  =========  ========

Before the bounds the gate fixed 182 and broke 74 of the ambiguous images, and 400 and 246 of all (accuracy 0.730).

Read it with two cautions. A prior exponent tuned for balanced accuracy does as well on the ambiguous images alone;
what the gate has over it is accuracy elsewhere. And the classifier is trained briefly, as a demo must be.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table

from tdumpra.checks import check_count
from tdumpra.cli.demo_story import BEST_POSSIBLE, demo_results, prior_for_balance
from tdumpra.cli.experiments import write
from tdumpra.cli.run import run_stages
from tdumpra.data.batches.augment import AugmentConfig
from tdumpra.data.images.framing import Framing
from tdumpra.data.synthetic import synthetic_manifest
from tdumpra.errors import StopRequestedError, TdumpraError
from tdumpra.report import outcome
from tdumpra.report.runs import write_report
from tdumpra.runs.config import (
    Config,
    DataConfig,
    EvaluateConfig,
    NetworkConfig,
    TrainConfig,
    TuneConfig,
    config_text,
    read_config,
)
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.outputs import all_outputs
from tdumpra.runs.table_stages import tune_step
from tdumpra.screen import print_json, say, show_notes
from tdumpra.writing import write_bytes

SETTINGS = "demo.toml"
PICTURES = "pictures"
_PICTURES = 12
_IMAGES, _EPOCHS = 3600, 12
_FEWEST_IMAGES = 200  # with fewer, a class may be missing from a part of the split
_SIZE = 64
_AMBIGUOUS = 0.3  # share of the lesions that stand between two classes


def demo_config(folder: Path, *, seed: int, images: int | None = None, epochs: int | None = None) -> Config:
    """The demo's problem and settings; ``seed`` names the images, the split and the training."""
    images, epochs = _IMAGES if images is None else images, _EPOCHS if epochs is None else epochs
    check_count(images, "images", least=_FEWEST_IMAGES)
    return Config(
        name="demo",
        folder=str(folder),
        seeds=(seed,),
        data=DataConfig(
            source=f"synthetic:n={images},seed={seed},size={_SIZE},ambiguous={_AMBIGUOUS}",
            split_seed=seed,
            test_share=0.3,
            val_share=0.3,
            cache=str(folder / "cache"),
            framing=Framing(height=_SIZE, width=_SIZE),
            pipeline="device",
            workers=0,
        ),
        # the generator's lesions differ in colour on purpose, so colours stay as they are
        augment=AugmentConfig(crop_area=(0.8, 1.0), vertical_flip=0.5, jitter=0.0, grayscale=0.0),
        network=NetworkConfig(
            backbone="tdumpra.texture_network:texture_network",
            weights="none",
            embedding=64,
            image_size=_SIZE,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
        ),
        train=TrainConfig(
            epochs=epochs, learning_rate=3e-3, contrastive_weight=1.0, ema_momentum=0.99, accelerator="cpu"
        ),
        # the likelihood is smoother than accuracy: on some hundred validation images it chooses more steadily
        tune=TuneConfig(objective="nll"),
        evaluate=EvaluateConfig(subgroups=("ambiguous",)),
    )


def claim_folder(folder: Path, config: Config) -> Path:
    """The settings file of the demo in ``folder``, written there unless the folder holds something else."""
    path = folder / SETTINGS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith(".part"))
    except OSError as error:
        raise TdumpraError(f"cannot use the folder {folder}: {error.strerror or error}") from error
    if path.exists():
        _refuse_other_demo(folder, read_config(path), config)
    elif present:
        raise TdumpraError(
            f"{folder} holds something else than a demo ({present[0]!r}): take another folder with --out"
        )
    write_bytes(path, config_text(config, folder).encode())
    return path


def _refuse_other_demo(folder: Path, before: Config, now: Config) -> None:
    def without_places(config: Config) -> Config:
        return replace(config, folder=None, data=replace(config.data, cache=""))

    if without_places(before) != without_places(now):
        raise TdumpraError(
            f"{folder} holds a demo of other settings ({_settings_in_words(before)}, not {_settings_in_words(now)}): "
            "take another folder with --out"
        )


def _settings_in_words(config: Config) -> str:
    return f"{config.data.source}, seed {config.seeds[0]}, {config.train.epochs} epochs"


@contextmanager
def stop_in_a_sentence(folder: Path) -> Iterator[None]:
    """Ctrl-C outside training, which has an answer of its own."""
    try:
        yield
    except KeyboardInterrupt:
        raise StopRequestedError(f"stopped; the same command goes on with what {folder} holds") from None


def demo_command(folder: Path, *, seed: int, images: int | None, epochs: int | None, as_json: bool) -> None:
    """Make pictures, train, embed, cluster, tune, evaluate, report; then say what came of it."""
    config = demo_config(folder, seed=seed, images=images, epochs=epochs)
    console = Console(quiet=as_json)
    with stop_in_a_sentence(folder):
        claim_folder(folder, config)
        before = _stamp(RunFolder(folder).evaluation)
        if before is None:
            say(_opening(config), console)
        evaluation = run_stages(config, quiet=as_json)[seed]
        write(outcome.evaluate, config, folder, quiet=True)
        _write_pictures(folder / PICTURES, seed)
        page = folder / "report" / "index.html"
        unchanged = _stamp(RunFolder(folder).evaluation) == before and page.exists()
        results = {
            "seed": seed,
            "folder": str(folder),
            "report": str(page) if unchanged or _report(folder, console) else None,
            "unchanged": unchanged,
            **_results(config, evaluation),
        }
    if as_json:
        print_json(results)
        return
    _show(results, console)


def _write_pictures(folder: Path, seed: int) -> None:
    """Write pictures of lesions that no training saw, named by their class, to try ``predict`` and ``serve`` with."""
    folder.mkdir(exist_ok=True)
    fresh = synthetic_manifest(n=_PICTURES, seed=seed + 1, size=_SIZE, ambiguous=_AMBIGUOUS)
    for number, record in enumerate(fresh.records, 1):
        buffer = io.BytesIO()
        Image.fromarray(fresh.reader(record)).save(buffer, "PNG")
        path = folder / f"{number:02d}-{fresh.class_names[record.label]}.png"
        if not path.exists():
            write_bytes(path, buffer.getvalue())


def _report(folder: Path, console: Console) -> bool:
    say("writing the report", console)
    try:
        write_report(folder)
    except TdumpraError as error:  # it takes nothing from the results
        show_notes([f"no report: {error}"], console)
        return False
    return True


def _results(config: Config, evaluation: dict[str, Any]) -> dict[str, Any]:
    (outputs,) = all_outputs(config)
    splits = outputs.load()
    decided = tune_step(outputs).result().tuning.decision.decide(splits.test.p, splits.test.z)
    return demo_results(evaluation, splits.test, decided, prior_for_balance(splits))


def _stamp(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def _opening(config: Config) -> str:
    return (
        f"From nothing to a report, on {config.data.source}: pictures of invented skin lesions, {_AMBIGUOUS:.0%} of "
        "which stand between two classes. It takes a minute or two; Ctrl-C stops it, and the same command goes on."
    )


def _show(results: dict[str, Any], console: Console) -> None:
    if results["unchanged"]:
        say(f"Everything was in {results['folder']} already: nothing had to be run again.", console)
    rows, part = results["rows"], results["ambiguous"]
    title = f"{rows['test']:,} test images (training: {rows['train']:,}, tuning: {rows['val']:,})"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for heading in ("accuracy", f"on {part['n']} ambiguous", "balanced accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, figures in results["table"].items():
        style = {"gate": "bold", BEST_POSSIBLE: "dim"}.get(name)
        table.add_row(name, *(f"{value:.3f}" for value in figures.values()), style=style, end_section=name == "gate")
    console.print(table)
    for sentence in results["story"]:
        say(sentence, console)
    console.print()
    if results["report"] is not None:
        say(f"Report: {results['report']}", console)
    say(f"New images: {results['folder']}/{PICTURES}, of lesions that it has not seen", console)
    say(f"With an image: tdumpra predict {results['folder']} IMAGE", console)
    say(f"In a browser: tdumpra serve {results['folder']}", console)
    say("With your own arrays: tdumpra attach YOUR.npz --out runs/mine", console)
