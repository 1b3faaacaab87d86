"""The work and the screen of the commands of ``tdumpra data``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tdumpra.artifacts import write_json
from tdumpra.checks import SPLITS
from tdumpra.data.audit import Audit
from tdumpra.data.duplicates import find_near_duplicates
from tdumpra.data.images.cache import cache_folder
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.prepare import QUARANTINE, prepare
from tdumpra.data.inspect import inspect_manifest
from tdumpra.data.manifest import Manifest
from tdumpra.data.sources import open_source, with_external_test
from tdumpra.data.splits import make_split
from tdumpra.errors import NoImagesError
from tdumpra.report.duplicates_page import duplicates_page
from tdumpra.screen import csv_text, plain, print_json, progress, say, show_notes
from tdumpra.writing import make_folder, write_bytes

_SHOWN = 10  # lines of broken files, and of sizes, on the screen; --json has all


def inspect_command(source: str, *, headers_only: bool, as_json: bool, out: Path | None, **options: Any) -> None:
    """Count what is in a data set; ``options`` are those of :func:`~tdumpra.data.sources.open_source`."""
    manifest = _open(source, options)
    absent = sum(record.path is None for record in manifest.records) if manifest.missing else 0
    with progress("reading images", len(manifest) - absent) as step:
        document = inspect_manifest(manifest, decode=not headers_only, on_step=step)
    if out is not None:
        make_folder(out)
        write_json(out / "inspection.json", kind="inspection", schema=1, content=document)
    if as_json:
        print_json(document)
    else:
        _show_inspection(document)


def audit_command(
    source: str,
    *,
    protocol: str,
    seed: int,
    hold_out: str | None,
    outer_folds: int | None,
    fold: int | None,
    test_source: str | None,
    near_duplicates: bool | None,
    as_json: bool,
    out: Path | None,
    **options: Any,
) -> None:
    """Split a data set and report its leaks; ``options`` are those of :func:`~tdumpra.data.sources.open_source`.

    Look-alikes are searched for by default wherever there is an image at all.
    """
    manifest = _open(source, options, pixels=near_duplicates is True)
    if test_source is not None:
        of_both = {name: options[name] for name in ("allow_missing", "metadata_only")}
        manifest = with_external_test(manifest, _open(test_source, of_both, pixels=near_duplicates is True))
    if outer_folds is not None and fold is None:
        fold = 0
    split = make_split(manifest, protocol, seed=seed, hold_out=hold_out, outer_folds=outer_folds, fold=fold)
    pairs = None
    if near_duplicates is not False and not options["metadata_only"] and len(manifest.missing) < len(manifest):
        with progress("comparing images", len(manifest)) as step:
            pairs = find_near_duplicates(manifest, on_step=step)
    result = Audit(manifest, split, pairs)
    if out is not None:
        _write_audit(result, out)
    if as_json:
        print_json(result.document())
    else:
        _show_audit(result.document(), out)


def _open(source: str, options: Mapping[str, Any], *, pixels: bool = False) -> Manifest:
    """Open a source; where none of its images is there and no ``pixels`` are needed, its tables alone."""
    try:
        return open_source(source, **options)
    except NoImagesError:
        if pixels:
            raise
        return open_source(source, **{**options, "metadata_only": True})


def prepare_command(
    source: str,
    *,
    out: Path,
    size: str,
    crop: bool,
    lesion_margin: float | None,
    workers: int | None,
    allow_missing: bool,
    as_json: bool,
) -> None:
    """Decode every image once into a cache."""
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
        print_json(document)
        return
    console = Console()
    show_notes((*manifest.notes, *prepared.notes), console)
    say(
        f"{document['images']:,} images of {height}×{width}, {prepared.images.nbytes / 1e9:.2f} GB, in "
        f"{document['folder']}; {document['broken']} broken",
        console,
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
    rows = [["from_img", "to_img", "similarity"]]  # the form that --duplicates takes
    for pair in audit.near_duplicates.pairs:
        first, second = (audit.manifest.records[row].id for row in pair[:2])
        rows.append([first, second, f"{pair.similarity:.4f}"])
    write_bytes(out / "near_duplicates.csv", csv_text(rows).encode())
    write_bytes(out / "near_duplicates.html", duplicates_page(audit).encode())


def _show_inspection(document: dict[str, Any]) -> None:
    console = Console()
    images, classes = document["images"], document["classes"]
    parts = [part for part in SPLITS if any(part in counts["splits"] for counts in classes.values())]
    table = Table(title=f"{plain(document['source'])}: {images:,} images, {document['groups']:,} groups")
    for column in ("class", "images", "share", "groups", *parts):
        table.add_column(column, justify="left" if column == "class" else "right")
    for name, counts in classes.items():
        row = [f"{counts['images']:,}", f"{counts['images'] / images:.1%}", f"{counts['groups']:,}"]
        table.add_row(plain(name), *row, *(f"{counts['splits'].get(part, 0):,}" for part in parts))
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
    table = Table(title=plain(f"{document['source']}, {document['drawn']}"))
    for column in ("class", *SPLITS, "leaked", "share of test"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for name in document["classes"]:
        own = leak["by_class"].get(name, {"images": 0, "share": 0.0})
        counts = (f"{document['splits'][part]['by_class'][name]:,}" for part in SPLITS)
        table.add_row(plain(name), *counts, f"{own['images']:,}", f"{own['share']:.1%}")
    table.add_section()
    totals = (f"{document['splits'][part]['images']:,}" for part in SPLITS)
    table.add_row("all", *totals, f"{leak['images']:,}", f"{leak['share']:.1%}", style="bold")
    console.print(table)
    repeated = document["repeated"]
    text = f"{repeated['groups']:,} of {document['groups']:,}, with {repeated['images']:,} images"
    mixed = f"; {repeated['of_several_classes']:,} of them of several classes" if repeated["of_several_classes"] else ""
    _line(console, "groups of several images", [text + mixed])
    _line(console, "leaking groups", [f"{leak['groups']:,} of {document['groups']:,}"])
    _line(console, "leaked validation images", [f"{leak['validation']['images']:,}"])
    _show_unreadable(console, document)
    near = document["near_duplicates"]
    if near is None:
        _line(console, "near-duplicates", ["nobody looked: no file was opened"])
    else:
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
        say(f"  {image}: {reason}", console)


def _line(console: Console, name: str, values: list[str]) -> None:
    more = f", and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    say(f"{name}: {', '.join(values[:_SHOWN]) or '–'}{more}", console)
