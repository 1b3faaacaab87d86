"""``tdumpra data``: what is in a data set, what leaks from its training part into its test, and its images decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tdumpra.cli.options import (
    DuplicatesOption,
    GroupOption,
    JsonOption,
    MetadataOption,
    MissingOption,
    OutOption,
    SourceArgument,
)

app = typer.Typer(help="Look at a data set before training on it.", no_args_is_help=True)


@app.command("inspect")
def _inspect(
    source: SourceArgument,
    allow_missing: MissingOption = False,
    metadata_only: MetadataOption = False,
    group_by: GroupOption = None,
    duplicates: DuplicatesOption = None,
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="Read sizes without decoding: quick, blind to cut-off files.")
    ] = False,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Count classes, splits, groups, sizes and colours, and find missing and broken files."""
    from tdumpra.cli.data_commands import inspect_command

    inspect_command(
        source, allow_missing=allow_missing, metadata_only=metadata_only, group_column=group_by, duplicates=duplicates,
        headers_only=headers_only, as_json=as_json, out=out,
    )  # fmt: skip


@app.command("audit")
def _audit(
    source: SourceArgument,
    protocol: Annotated[str, typer.Option(help="grouped, paper or external.")] = "grouped",
    hold_out: Annotated[
        str | None, typer.Option(metavar="COLUMN=VALUE", help="Test on all images of a value.", show_default=False)
    ] = None,
    outer_folds: Annotated[
        int | None, typer.Option(help="Test every group once, in so many folds.", show_default=False)
    ] = None,
    fold: Annotated[int | None, typer.Option(help="The outer fold to look at; the first.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Decides the draw of the split.")] = 0,
    test_source: Annotated[
        str | None,
        typer.Option(
            "--test-source", "--test", help="The source to test on, for the protocol external.", show_default=False
        ),
    ] = None,
    allow_missing: MissingOption = False,
    metadata_only: MetadataOption = False,
    group_by: GroupOption = None,
    duplicates: DuplicatesOption = None,
    near_duplicates: Annotated[
        bool | None, typer.Option(help="Search look-alikes of different groups: on where images are read at all.")
    ] = None,
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Split a data set under a protocol and report what leaks from training into the test."""
    if near_duplicates and metadata_only:
        raise ValueError("--near-duplicates reads images, and --metadata-only does without them: choose one")
    from tdumpra.cli.data_commands import audit_command

    audit_command(
        source, protocol=protocol, seed=seed, hold_out=hold_out, outer_folds=outer_folds, fold=fold,
        test_source=test_source, allow_missing=allow_missing, metadata_only=metadata_only, group_column=group_by,
        duplicates=duplicates, near_duplicates=near_duplicates, as_json=as_json, out=out,
    )  # fmt: skip


@app.command("prepare")
def _prepare(
    source: SourceArgument,
    out: Annotated[Path, typer.Option(help="Folder of the cache, and of quarantine.csv.")] = Path("runs/cache"),
    size: Annotated[str, typer.Option(help="SIDE, or HEIGHTxWIDTH, of the cached images.")] = "224",
    crop: Annotated[bool, typer.Option("--crop", help="Keep proportions and cut the longer side.")] = False,
    lesion_margin: Annotated[
        float | None, typer.Option(help="Cut out the lesion along its mask, with this margin.", show_default=False)
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode; all cores.", show_default=False)] = None,
    allow_missing: MissingOption = False,
    as_json: JsonOption = False,
) -> None:
    """Decode every image once into a cache, and set apart those that are broken."""
    from tdumpra.cli.data_commands import prepare_command

    prepare_command(
        source, out=out, size=size, crop=crop, lesion_margin=lesion_margin, workers=workers,
        allow_missing=allow_missing, as_json=as_json,
    )  # fmt: skip
