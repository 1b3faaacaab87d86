"""The command line. It parses, calls, prints; what it calls does the work.

A user's mistake ends in one line on standard error and exit code 2, a stop by Ctrl-C in one line and 130.
``TDUMPRA_TRACEBACK=1`` shows where a mistake came from. Whatever takes time to import is imported when a command needs
it: ``tdumpra --help`` must not wait for torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from typer.core import TyperGroup

from tdumpra import __version__
from tdumpra.cli.experiments import register as register_experiments
from tdumpra.errors import StopRequestedError, TdumpraError
from tdumpra.screen import complain, show_notes
from tdumpra.toml import read_toml

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A classifier, a bank of class prototypes, and a conservative gate between them.",
)


class _DataGroup(TyperGroup):
    """``tdumpra data`` with the commands of :mod:`tdumpra.cli.data`, loaded when one of them is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return self._loaded().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of them."""
        return self._loaded().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """One of them with what it is given, or the nearest to a misspelt one."""
        return self._loaded().resolve_command(ctx, args)

    @staticmethod
    def _loaded() -> TyperGroup:
        from tdumpra.cli.data import app as commands

        return cast(TyperGroup, typer.main.get_command(commands))


app.add_typer(
    typer.Typer(cls=_DataGroup), name="data", help="Look at a data set before training on it.", no_args_is_help=True
)
register_experiments(app)

OutOption = Annotated[Path | None, typer.Option("--out", help="Folder for the results.", show_default=False)]
ConfigArgument = Annotated[Path, typer.Argument(help="A run's TOML file.", show_default=False)]
MasksOption = Annotated[
    Path | None,
    typer.Option("--masks", help="Folder of the lesions' masks, for a model that cuts them out.", show_default=False),
]
TrustOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-code",
        metavar="PACKAGE.MODULE:FUNCTION",
        help="Code that the model may import and call to build its networks; repeat it for several.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")]

_INTERRUPTED = 130  # what shells report of a program that Ctrl-C ended: 128 + SIGINT

_printed: set[str] = set()  # notes of this command


def main() -> None:
    """Entry point of ``tdumpra``."""
    warnings.showwarning = _print_warning
    _printed.clear()
    try:
        app()
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # typer's answer to Ctrl-C, which says nothing
            complain("stopped")
        raise
    except StopRequestedError as error:
        complain(str(error))
        sys.exit(_INTERRUPTED)
    except (TdumpraError, ValueError, TypeError) as error:
        if os.environ.get("TDUMPRA_TRACEBACK"):
            raise
        unexpected = "" if _is_ours(error) else " (unexpected; TDUMPRA_TRACEBACK=1 shows where it comes from)"
        complain(f"{error}{unexpected}")
        sys.exit(2)


def _is_ours(error: BaseException) -> bool:
    """Whether this package raised it, with a sentence for users; what a library raises was not foreseen."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is None or Path(frame.tb_frame.f_code.co_filename).is_relative_to(Path(__file__).parents[1])


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tdumpra {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@app.command("attach")
def attach_command(
    outputs: Annotated[Path, typer.Argument(help="Saved outputs: .npz, .csv or .parquet.", show_default=False)],
    out: OutOption = None,
    preset: Annotated[str, typer.Option(help="default, paper, paper-swapped or rebalancing.")] = "default",
    objective: Annotated[str, typer.Option(help="balanced_accuracy, accuracy, macro_f1 or nll.")] = "balanced_accuracy",
    n_prototypes: Annotated[int, typer.Option(help="Prototypes per class.")] = 5,
    adjust_prior: Annotated[bool, typer.Option(help="Also divide by a fitted power of the class prior.")] = False,
    n_classes: Annotated[
        int | None, typer.Option(help="Say it where a class has no training row.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the clustering.")] = 0,
    force: Annotated[bool, typer.Option(help="Write over results of other settings.")] = False,
    report: Annotated[bool, typer.Option(help="Also write the HTML report.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Add the second path to your own saved probabilities and embeddings, and see what it is worth."""
    from tdumpra.cli.evaluation_screen import show_evaluation
    from tdumpra.estimator import DualPathClassifier
    from tdumpra.runs.attach import attach

    classifier = DualPathClassifier(
        n_prototypes,
        objective,  # type: ignore[arg-type]
        preset,
        n_classes,
        adjust_prior=adjust_prior,
        seed=seed,
    )
    folder = out if out is not None else Path("runs") / outputs.stem
    attached = attach(outputs, folder, classifier, force=force)
    show_evaluation(attached.evaluation, attached.folder, as_json=as_json)
    if report:
        from tdumpra.cli.report import finish_with_report

        finish_with_report(attached.folder, quiet=as_json)


@app.command("demo")
def _demo(
    out: OutOption = None,
    seed: Annotated[int, typer.Option(help="Of the images, the split and the training.")] = 0,
    images: Annotated[
        int | None, typer.Option(help="How many to make; fewer are quicker and show less.", show_default=False)
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Of training.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """The whole path on pictures made on the spot: train, embed, bank, tune, evaluate, report."""
    from tdumpra.cli.demo import demo_command

    folder = out if out is not None else Path("runs") / ("demo" if seed == 0 else f"demo-{seed}")
    demo_command(folder, seed=seed, images=images, epochs=epochs, as_json=as_json)


@app.command("bench")
def bench_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which benchmarks; all if left out.", show_default=False)
    ] = None,
    out: OutOption = None,
) -> None:
    """Run the benchmarks of a source checkout: ratios against named peers, measured in one run."""
    script = Path("benchmarks") / "run.py"
    if not script.is_file():
        raise TdumpraError("benchmarks are part of the source checkout: run this in its root folder")
    command = [sys.executable, str(script), *(names or []), *(["--out", str(out)] if out else [])]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


@app.command("run")
def _run(config: ConfigArgument, out: OutOption = None, as_json: JsonOption = False) -> None:
    """Every stage of a run, skipping those whose inputs have not changed."""
    _refuse_unreadable(config)
    from tdumpra.cli.whole import whole_run

    whole_run(config, out, as_json=as_json)


@app.command("predict")
def _predict(
    model: Annotated[Path, typer.Argument(help="model.safetensors, or the folder of its run.", show_default=False)],
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.", show_default=False)],
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the predictions as CSV and nothing else.")] = False,
    masks: MasksOption = None,
    eager: Annotated[bool, typer.Option("--eager", help="Ask the second network about every image.")] = False,
    batch_size: Annotated[int, typer.Option(help="Images at once.")] = 64,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …", show_default=False)] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32 or bfloat16; that of tuning if left out.", show_default=False)
    ] = None,
    trust: TrustOption = None,
) -> None:
    """Predict images: label, probability, and whether the gate opened."""
    from tdumpra.cli.predict import predict_command

    mode = "eager" if eager else "lazy"
    predict_command(
        model, images, masks=masks, as_json=as_json, as_csv=as_csv, batch_size=batch_size, mode=mode, device=device,
        precision=precision, trusted=trust or (),
    )  # fmt: skip


@app.command("explain")
def _explain(
    model: Annotated[Path, typer.Argument(help="model.safetensors, or the folder of its run.", show_default=False)],
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of images.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the pages.", show_default="evidence")] = None,
    group: Annotated[
        str | None, typer.Option(help="The lesion or patient that the images show.", show_default=False)
    ] = None,
    saliency: Annotated[bool, typer.Option("--saliency", help="Also show what the match rests on.")] = False,
    sources: Annotated[
        Path | None,
        typer.Option("--images", help="Folder of the training images, if the model lacks them.", show_default=False),
    ] = None,
    masks: MasksOption = None,
    as_json: JsonOption = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …", show_default=False)] = None,
    trust: TrustOption = None,
) -> None:
    """Write a page of evidence for each image: why it was decided as it was."""
    from tdumpra.report import kit

    kit.require()  # before the seconds that networks take to load
    from tdumpra.cli.explain import explain_command

    explain_command(
        model, images, out=out, group=group, sources=sources, masks=masks, saliency=saliency, as_json=as_json,
        device=device, trusted=trust or (),
    )  # fmt: skip


@app.command("train")
def _train(config: ConfigArgument, out: OutOption = None) -> None:
    """Train student and teacher; goes on where an earlier run stopped."""
    _refuse_unreadable(config)
    from tdumpra.cli.run import train_command

    train_command(config, out)


@app.command("embed")
def _embed(config: ConfigArgument, out: OutOption = None) -> None:
    """Write logits and embeddings of every image: the tables that everything afterwards stands on."""
    _refuse_unreadable(config)
    from tdumpra.cli.run import embed_command

    embed_command(config, out)


@app.command("bank")
def _bank(config: ConfigArgument, out: OutOption = None) -> None:
    """Cluster the training embeddings into prototypes, and look them over."""
    _refuse_unreadable(config)
    from tdumpra.cli.run import bank_command

    bank_command(config, out)


@app.command("report")
def _report(
    run: Annotated[Path, typer.Argument(help="A run's folder, a seed's, or that of attach.", show_default=False)],
    out: OutOption = None,
    cases: Annotated[
        int | None, typer.Option(help="Pages of single cases, at most; 96 unless said.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the HTML report again: results, the gate's story, its cases with their evidence."""
    from tdumpra.cli.report import report_command

    report_command(run, out, cases=cases, as_json=as_json)


def _refuse_unreadable(config: Path) -> None:
    """A file that is missing or no TOML is told at once, and what it should not say before networks are loaded."""
    read_toml(config)
    from tdumpra.runs.config import read_config

    read_config(config)


def _print_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Each note once, however many stages have it to give."""
    if issubclass(category, UserWarning) and str(message) not in _printed:
        _printed.add(str(message))
        show_notes([str(message)], Console(stderr=True))
