"""What ``tdumpra bank list``, ``diff``, ``add`` and ``remove`` do and print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tdumpra.cli.predict import model_file
from tdumpra.models.bank import Changed, add, remove
from tdumpra.models.bank_view import difference, listed
from tdumpra.models.bank_worth import Worth, worth
from tdumpra.models.local_rows import read_rows
from tdumpra.models.opened import OpenedModel, open_model, refuse_existing
from tdumpra.screen import plain, print_json, progress, say, show_notes

_SHOWN = 3  # exemplars of a class on the screen


def list_command(path: Path, *, as_json: bool) -> None:
    """Show what is in a bank."""
    document = listed(open_model(model_file(path)))
    if as_json:
        print_json(document)
        return
    table = Table("class", "rows", "groups", "prototypes", "exemplars")
    for each in document["classes"]:
        nearest = [one["id"] for prototype in each["prototypes"] for one in prototype["exemplars"][:1]]
        more = ", …" if len(nearest) > _SHOWN else ""
        counts = ("?" if each[key] is None else f"{each[key]:,}" for key in ("rows", "groups"))
        shown = ", ".join(nearest[:_SHOWN]) + more
        table.add_row(plain(each["name"]), *counts, str(len(each["prototypes"])), plain(shown))
    Console().print(table)
    if document["beside"]:
        say(f"Beside the bank the model keeps {_some(document['beside'], 'row')}: of validation, or of adapting.")
    if any(each["rows"] is None for each in document["classes"]):
        say("The model keeps no record of its rows, so the bank cannot be changed: make the model again for that.")


def diff_command(first: Path, second: Path, *, as_json: bool) -> None:
    """Show in what two banks differ."""
    document = difference(open_model(model_file(first)), open_model(model_file(second)))
    if as_json:
        print_json(document)
        return
    table = Table("class", "rows gone", "rows new", "prototypes", "unchanged", "least cosine")
    for each in document["classes"]:
        counts = ("?" if each[key] is None else f"{len(each[key]):,}" for key in ("rows_gone", "rows_new"))
        cosine = "" if each["least_cosine"] is None else f"{each['least_cosine']:.4f}"
        before, after = each["prototypes"]
        table.add_row(plain(each["name"]), *counts, f"{before} → {after}", str(each["unchanged"]), cosine)
    Console().print(table)
    if (beside := document["beside"]) is not None and (beside["rows_gone"] or beside["rows_new"]):
        gone, new = (_some(len(beside[key]), "row") for key in ("rows_gone", "rows_new"))
        say(f"Of the rows that are kept beside the banks, {gone} went and {new} came.")
    say("The second model was made from the first." if document["descends"] else "Neither names the other as parent.")
    if not document["same_networks"]:
        say("Their networks differ, so that cosines between the banks mean nothing.")
    if not document["same_head"]:
        say("Their classifiers' last layers differ.")
    if document["settings_changed"]:
        say(f"Settings that differ: {', '.join(document['settings_changed'])}")


def add_command(
    path: Path,
    source: str,
    out: Path,
    *,
    new_classes: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Add a source's rows to a bank, measure what that brings, and write the new model."""
    refuse_existing(out)
    model = open_model(model_file(path))
    model.record  # noqa: B018  # a model without one is refused before images are read
    with progress("looking at images", show=not as_json) as bar:
        local = read_rows(
            model, source, new_classes=new_classes, on_rows=lambda done, total: bar(done, total), **options
        )
    missing = [name for name in new_classes if name not in local.class_names]
    if missing:
        raise ValueError(f"no row of {source} is called {missing[0]!r}, which --new-class names")
    rows = local.rows.rows(local.rows.labelled)
    changed = add(model, rows, local.class_names, local.fingerprint)
    measured = worth(model, rows, local.class_names)
    new = list(local.class_names[len(model.class_names) :])
    model.write_child(
        out, changed.content, command="bank add", inputs={"rows": local.fingerprint},
        settings={"source": source, "rows": len(rows), "groups": changed.groups, "new_classes": new},
    )  # fmt: skip
    notes = [*local.notes, *changed.notes]
    if as_json:
        found = None if measured is None else {**measured._asdict(), "classes": [c._asdict() for c in measured.classes]}
        print_json({"model": str(out), **_counts(changed), "new_classes": new, "worth": found, "notes": notes})
        return
    show_notes(notes, Console())
    _show_worth(measured)
    listed_new = f"; new: {', '.join(new)}" if new else ""
    say(f"{_some(len(rows), 'row')} of {_some(changed.groups, 'group')} added{listed_new}")
    say(f"Written: {out}")


def remove_command(path: Path, out: Path, *, groups: Sequence[str], ids: Sequence[str], as_json: bool) -> None:
    """Take rows out of a model, and write the new one. The history says how many, and names nobody."""
    refuse_existing(out)
    model = open_model(model_file(path))
    changed = remove(model, groups=groups, ids=ids)
    model.write_child(
        out, changed.content, command="bank remove", inputs={},
        settings={"removed": changed.rows, "groups": changed.groups, "stays": list(changed.notes)},
    )  # fmt: skip
    if as_json:
        print_json({"model": str(out), **_counts(changed), "notes": changed.notes})
        return
    show_notes(changed.notes, Console())
    say(_removed(model, changed))
    say(f"Written: {out}")


def _removed(model: OpenedModel, changed: Changed) -> str:
    parts = [_some(count, f"{part} row") for part, count in changed.rows.items() if count]
    held = f"{model.path} still holds them: delete it and its copies"
    return f"{' and '.join(parts)} of {_some(changed.groups, 'group')} removed; {held}"


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _counts(changed: Changed) -> dict[str, Any]:
    return {"rows": changed.rows, "groups": changed.groups}


def _show_worth(measured: Worth | None) -> None:
    if measured is None:
        say("The rows are of one group, so that nothing can be left out: what they bring was not measured.")
        return
    table = Table("class", "rows", "groups", "right before", "right after", "retrieval alone")
    for each in measured.classes:
        shares = ("" if value is None else f"{value:.3f}" for value in (each.before, each.after, each.retrieval))
        name = f"{each.name} (new)" if each.is_new else each.name
        table.add_row(plain(name), f"{each.rows:,}", f"{each.groups:,}", *shares)
    Console().print(table)
    sentence = measured.sentence()
    say(f"{sentence[0].upper()}{sentence[1:]}.")
