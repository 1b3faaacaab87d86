"""``tdumpra data``: what is in a data set, what leaks from its training part into its test, and its images decoded."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tdumpra.artifacts import jsonable, make_folder, write_bytes, write_json
from tdumpra.checks import SPLITS
from tdumpra.data.audit import Audit
from tdumpra.data.duplicates import find_near_duplicates
from tdumpra.data.images.cache import cache_folder
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.prepare import QUARANTINE, prepare
from tdumpra.data.inspect import inspect_manifest
from tdumpra.data.sources import SOURCE_KINDS, open_source, with_external_test
from tdumpra.data.splits import make_split
from tdumpra.report.duplicates_page import duplicates_page
from tdumpra.screen import show_notes

app = typer.Typer(name="data", help="Look at a data set before training on it.", no_args_is_help=True)

_SHOWN = 10  # lines of broken files, and of sizes, on the screen; --json has all

Source = Annotated[str, typer.Argument(help=f"KIND:PLACE, KIND one of {', '.join(SOURCE_KINDS)}.")]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Count and leave out what has no file or no label.")
]
MetadataOnly = Annotated[bool, typer.Option("--metadata-only", help="Use the tables alone, whichever files are there.")]
GroupBy = Annotated[str | None, typer.Option(help="The column that says which images belong together.")]
Duplicates = Annotated[Path | None, typer.Option(help="A table from_img,to_img of images whose groups are one.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Out = Annotated[Path | None, typer.Option(help="A folder for the files that this command writes.")]


@app.command()
def inspect(
    source: Source,
    allow_missing: AllowMissing = False,
    metadata_only: MetadataOnly = False,
    group_by: GroupBy = None,
    duplicates: Duplicates = None,
    headers_only: Annotated[
        bool, typer.Option("--headers-only", help="Read sizes without decoding: quick, blind to cut-off files.")
    ] = False,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Count classes, splits, groups, sizes and colours, and find missing and broken files."""
    manifest = open_source(
        source,
        allow_missing=allow_missing,
        metadata_only=metadata_only,
        group_column=group_by,
        duplicates=duplicates,
    )
    with _progress("reading images", len(manifest) - len(manifest.missing) * metadata_only) as step:
        document = inspect_manifest(manifest, decode=not headers_only, on_step=step)
    if out is not None:
        make_folder(out)
        write_json(out / "inspection.json", kind="inspection", schema=1, content=document)
    if as_json:
        _print_json(document)
    else:
        _show_inspection(document)


@app.command()
def audit(
    source: Source,
    protocol: Annotated[str, typer.Option(help="grouped, paper or external.")] = "grouped",
    seed: Annotated[int, typer.Option(help="Decides the draw of the split.")] = 0,
    test: Annotated[str | None, typer.Option(help="The source to test on, for the protocol external.")] = None,
    allow_missing: AllowMissing = False,
    metadata_only: MetadataOnly = False,
    group_by: GroupBy = None,
    duplicates: Duplicates = None,
    near_duplicates: Annotated[
        bool | None, typer.Option(help="Search look-alikes of different groups: on where images are read at all.")
    ] = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Split a data set under a protocol and report what leaks from training into the test."""
    if near_duplicates and metadata_only:
        raise ValueError("--near-duplicates reads images, and --metadata-only does without them: choose one")
    manifest = open_source(
        source,
        allow_missing=allow_missing,
        metadata_only=metadata_only,
        group_column=group_by,
        duplicates=duplicates,
    )
    if test is not None:
        external = open_source(test, allow_missing=allow_missing, metadata_only=metadata_only)
        manifest = with_external_test(manifest, external)
    split = make_split(manifest, protocol, seed=seed)
    pairs = None
    if near_duplicates is not False and not metadata_only:
        with _progress("comparing images", len(manifest)) as step:
            pairs = find_near_duplicates(manifest, on_step=step)
    result = Audit(manifest, split, pairs)
    if out is not None:
        _write_audit(result, out)
    if as_json:
        _print_json(result.document())
    else:
        _show_audit(result.document(), out)


@app.command("prepare")
def prepare_command(
    source: Source,
    out: Annotated[Path, typer.Option(help="Folder of the cache, and of quarantine.csv.")] = Path("runs/cache"),
    size: Annotated[str, typer.Option(help="SIDE, or HEIGHTxWIDTH, of the cached images.")] = "224",
    crop: Annotated[bool, typer.Option("--crop", help="Keep proportions and cut the longer side.")] = False,
    lesion_margin: Annotated[
        float | None, typer.Option(help="Cut out the lesion along its mask, with this margin.", show_default=False)
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode; all cores.", show_default=False)] = None,
    allow_missing: AllowMissing = False,
    as_json: Json = False,
) -> None:
    """Decode every image once into a cache, and set apart those that are broken."""
    height, width = _parse_size(size)
    framing = Framing(height=height, width=width, fit="crop" if crop else "stretch", lesion_margin=lesion_margin)
    manifest = open_source(source, allow_missing=allow_missing)
    make_folder(out)
    prepared = prepare(manifest, out, framing, workers=workers, progress=not as_json)
    document = {
        "images": len(prepared.manifest),
        "broken": len(prepared.quarantine),
        "bytes": prepared.images.nbytes,
        "folder": str(cache_folder(out, framing)),
        "quarantine": str(out / QUARANTINE),
    }
    if as_json:
        _print_json(document)
        return
    console = Console()
    show_notes((*manifest.notes, *prepared.notes), console)
    console.print(
        f"{document['images']:,} images of {height}×{width}, {prepared.images.nbytes / 1e9:.2f} GB, in "
        f"{escape(str(document['folder']))}; {document['broken']} broken",
        soft_wrap=True,
    )


def _parse_size(size: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:x(\d+))?", size)
    if found is None:
        raise ValueError(f"--size is one number (224) or HEIGHTxWIDTH (192x256), not {size!r}")
    return int(found[1]), int(found[2] or found[1])


def _write_audit(audit: Audit, out: Path) -> None:
    make_folder(out)
    audit.split.write(out / "split.json")
    write_json(out / "audit.json", kind="audit", schema=1, content=audit.document())
    if audit.near_duplicates is None:
        return
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["from_img", "to_img", "similarity"])  # the form that --duplicates takes
    for pair in audit.near_duplicates.pairs:
        first, second = (audit.manifest.records[row].id for row in pair[:2])
        writer.writerow([first, second, f"{pair.similarity:.4f}"])
    write_bytes(out / "near_duplicates.csv", table.getvalue().encode())
    write_bytes(out / "near_duplicates.html", duplicates_page(audit).encode())


def _show_inspection(document: dict[str, Any]) -> None:
    console = Console()
    images, classes = document["images"], document["classes"]
    parts = [part for part in SPLITS if any(part in counts["splits"] for counts in classes.values())]
    table = Table(title=f"{document['source']}: {images:,} images, {document['groups']:,} groups")
    for column in ("class", "images", "share", "groups", *parts):
        table.add_column(column, justify="left" if column == "class" else "right")
    for name, counts in classes.items():
        row = [name, f"{counts['images']:,}", f"{counts['images'] / images:.1%}", f"{counts['groups']:,}"]
        table.add_row(*row, *(f"{counts['splits'].get(part, 0):,}" for part in parts))
    console.print(table)
    _line(console, "sizes", [f"{size['width']}×{size['height']} ({size['images']:,})" for size in document["sizes"]])
    _line(console, "colours", [f"{mode} ({count:,})" for mode, count in document["modes"].items()])
    _line(console, "formats", [f"{name} ({count:,})" for name, count in document["formats"].items()])
    if document["masks"]:
        _line(console, "masks", [f"{document['masks']:,}"])
    _line(console, "missing files", [f"{document['missing']['images']:,}"])
    _line(console, "broken files", [f"{document['broken']['images']:,}"])
    _show_reasons(console, document["broken"]["reasons"])
    show_notes(document["notes"], console)


def _show_audit(document: dict[str, Any], out: Path | None) -> None:
    console = Console()
    leak = document["leak"]
    table = Table(title=f"{document['source']}, protocol {document['protocol']}, seed {document['seed']}")
    for column in ("class", *SPLITS, "leaked", "share of test"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for name in document["classes"]:
        own = leak["by_class"].get(name, {"images": 0, "share": 0.0})
        counts = (f"{document['splits'][part]['by_class'][name]:,}" for part in SPLITS)
        table.add_row(name, *counts, f"{own['images']:,}", f"{own['share']:.1%}")
    table.add_section()
    totals = (f"{document['splits'][part]['images']:,}" for part in SPLITS)
    table.add_row("all", *totals, f"{leak['images']:,}", f"{leak['share']:.1%}", style="bold")
    console.print(table)
    _line(console, "leaking groups", [f"{leak['groups']:,} of {document['groups']:,}"])
    _line(console, "leaked validation images", [f"{leak['validation']['images']:,}"])
    _show_unreadable(console, document)
    near = document["near_duplicates"]
    if near is not None:
        text = f"{near['pairs']:,} pairs of different groups, {near['crossing']:,} across the split"
        _line(console, "near-duplicates", [text])
        if out is not None:
            _line(console, "pairs to look at", [str(out / "near_duplicates.html")])
        elif near["pairs"]:
            _line(console, "to look at them", ["add --out DIR"])
    show_notes(document["notes"], console)


def _show_unreadable(console: Console, document: dict[str, Any]) -> None:
    unreadable = document["unreadable"]
    if unreadable is None:
        _line(console, "unreadable images", ["nobody looked: no file was opened"])
        return
    where = ", ".join(f"{part} {count:,}" for part, count in unreadable["splits"].items() if count)
    more = f" of {document['images']:,}, counted above ({where}); training and evaluation leave them out"
    _line(console, "unreadable images", [f"{unreadable['images']:,}{more if unreadable['images'] else ''}"])
    _show_reasons(console, unreadable["reasons"])


def _show_reasons(console: Console, broken: Mapping[str, str]) -> None:
    for image, reason in list(broken.items())[:_SHOWN]:
        console.print(f"  {image}: {reason}", markup=False, highlight=False, soft_wrap=True)


def _line(console: Console, name: str, values: list[str]) -> None:
    more = f", and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    text = f"{name}: {', '.join(values[:_SHOWN]) or '–'}{more}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, so that standard output stays clean for ``--json``."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def _print_json(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(jsonable(document), indent=2, ensure_ascii=False) + "\n")
