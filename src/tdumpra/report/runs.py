"""The report of a folder: of one seed, of its outer folds, of several seeds, of several models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tdumpra import __version__
from tdumpra.errors import ArtifactError
from tdumpra.report import kit, operating, sections
from tdumpra.report.cases import SHOWN
from tdumpra.report.material import MISSING_FROM_FILE, Material, gather
from tdumpra.report.report import FOLDER, INDEX, write_page
from tdumpra.report.summary import headline, p_text, summarise
from tdumpra.runs.config import Config, read_config
from tdumpra.runs.folder import RunFolder, file_digest, fold_places
from tdumpra.runs.outputs import Outputs, TrainedOutputs, all_outputs, folds_of_seeds, place_of
from tdumpra.runs.steps import digest, read_document, read_kept, write_kept
from tdumpra.writing import make_folder, sweep, write_bytes

MADE_FROM = "report.json"


def write_report(run: str | Path, out: str | Path | None = None, *, limit: int = SHOWN) -> Path:
    """Write the report of a run into ``RUN/report``, or into ``out``; return the path of its first page.

    ``run`` is the folder of a run, of one of its seeds or folds, or of ``tdumpra attach``; ``limit`` cases get a page
    of their own. A report of the same results that is complete is left as it is.
    """
    root = Path(run)
    if not root.is_dir():
        raise ArtifactError(f"{root} is not a folder: name the folder of a run, for instance runs/NAME")
    outputs = _outputs_in(root)
    place = Path(out) if out is not None else root / FOLDER
    made_from = _made_from(outputs, limit)
    kept = read_kept(place / MADE_FROM, "report", made_from)
    if kept is not None and not kept["missing"] and (place / INDEX).exists():
        sweep(place)
        return place / INDEX
    materials = {each.name: gather(each) for each in outputs}
    page = _write(root, outputs, materials, place, limit)
    missing = any(_may_turn_up(material.missing) for material in materials.values())
    write_kept(place / MADE_FROM, "report", made_from, {"missing": missing})
    return page


def _may_turn_up(missing: Mapping[str, str]) -> bool:
    """Return whether something is missing that may be there next time: pictures, or a file of outputs."""
    of_file = MISSING_FROM_FILE["pictures"]
    return "cases" in missing or missing.get("pictures", of_file) != of_file


def _outputs_in(root: Path) -> tuple[Outputs, ...]:
    """List the outputs that a folder holds the results of."""
    seeds = _seed_folders(root)
    if seeds:
        config = _config_in(seeds[min(seeds)])
        return all_outputs(replace(config, seeds=tuple(sorted(seeds)), folder=str(root)))
    folds = fold_places(root)
    if not folds and not (root / "config.toml").exists():
        raise ArtifactError(
            f"{root} holds no run: make one with  tdumpra run CONFIG  or  tdumpra attach OUTPUTS --out {root}"
        )
    beside = {*_seed_folders(root.parent).values(), *fold_places(root.parent).values()}
    if root in beside:  # one of several seeds, which may have been tuned together, or of the folds of one
        return tuple(each for each in _outputs_in(root.parent) if each.place.is_relative_to(root))
    return all_outputs(replace(_config_in(root), folder=str(root)))


def _seed_folders(root: Path) -> dict[int, Path]:
    found = (path for path in root.glob("seed-*") if (path / "config.toml").exists() or fold_places(path))
    return {int(path.name[5:]): path for path in found if path.name[5:].isdigit()}


def _config_in(root: Path) -> Config:
    """Read the configuration of a seed; of several folds, that of all of them."""
    folds = fold_places(root)
    if not folds:
        return read_config(root / "config.toml")
    config = read_config(folds[min(folds)] / "config.toml")
    return config if len(folds) == 1 else replace(config, data=replace(config.data, fold=None))


def _made_from(outputs: Sequence[Outputs], limit: int) -> str:
    def files(each: Outputs) -> list[str]:
        folder = RunFolder(each.place)
        there = [folder.evaluation, folder.gate]
        there += [folder.model, folder.metrics] if isinstance(each, TrainedOutputs) else []
        return [file_digest(path) if path.exists() else "" for path in there]

    return digest({"version": __version__, "limit": limit, "files": {each.name: files(each) for each in outputs}})


def _write(root: Path, outputs: Sequence[Outputs], materials: Mapping[str, Material], out: Path, limit: int) -> Path:
    if len(outputs) == 1:
        return write_page(materials[outputs[0].name], out, limit=limit)
    models: dict[str, list[tuple[Outputs, ...]]] = {}
    for folds in folds_of_seeds(outputs):
        models.setdefault(folds[0].model, []).append(folds)
    document = _over_all(root)
    linked = []
    own = out == root / FOLDER and not outputs[0].config.outputs  # each seed's report stands in its own folder
    for name, seeds in models.items():
        place = out if len(models) == 1 else out / kit.page_name(name).removesuffix(".html")
        back = None if len(models) == 1 else ("../index.html", "All models")
        evaluation = document["models"][name] if len(models) > 1 else document
        if len(seeds) == 1:
            _of_seed(seeds[0], materials, place, limit, evaluation, back, own=own)
        else:
            pages = []
            for folds in seeds:
                there = place_of(folds) / FOLDER if own else place / f"seed-{folds[0].seed}"
                of_seed = _evaluation_of(folds, materials)
                up = (f"{_between(there, place)}/{INDEX}", "All seeds")
                _of_seed(folds, materials, there, limit, of_seed, up, own=own)
                pages.append(_row(f"seed {folds[0].seed}", f"{_between(place, there)}/{INDEX}", of_seed))
            of_model = [materials[each.name] for folds in seeds for each in folds]
            _overview(name, "seed", pages, of_model, place, evaluation, back)
        linked.append(_row(name, f"{place.name}/{INDEX}", evaluation))
    if len(models) > 1:
        make_folder(out)
        config: Config = outputs[0].config
        page = kit.render("report_models.html", name=config.name, lead=f"{len(models)} models", models=linked)
        write_bytes(out / INDEX, page.encode("utf-8", "replace"))
    return out / INDEX


def _over_all(root: Path) -> dict[str, Any]:
    if not (root / "evaluation.json").exists():
        raise ArtifactError(f"{root} has no evaluation.json yet: run  tdumpra evaluate CONFIG  first")
    return read_document(root / "evaluation.json", "evaluation")


def _evaluation_of(folds: Sequence[Outputs], materials: Mapping[str, Material]) -> Mapping[str, Any]:
    """Return the evaluation of a seed: of its folds together, where it has several."""
    return materials[folds[0].name].evaluation if len(folds) == 1 else _over_all(place_of(folds))


def _of_seed(
    folds: Sequence[Outputs],
    materials: Mapping[str, Material],
    out: Path,
    limit: int,
    evaluation: Mapping[str, Any],
    back: tuple[str, str] | None,
    *,
    own: bool,
) -> None:
    """Write the page of a seed; of several folds the page over them, and theirs."""
    first = materials[folds[0].name]
    if len(folds) == 1:
        write_page(first, out, limit=limit, back_link=back)
        return
    if evaluation["inputs"]["folds"] != [materials[each.name].evaluation["made_from"] for each in folds]:
        raise ArtifactError(f"{place_of(folds)} was evaluated with other folds: run  tdumpra evaluate CONFIG  again")
    pages = []
    for each in folds:
        there, name = each.place / FOLDER if own else out / f"fold-{each.fold}", f"fold {each.fold}"
        up = (f"{_between(there, out)}/{INDEX}", "All folds")
        write_page(materials[each.name], there, limit=limit, back_link=up)
        pages.append(_row(name, f"{_between(out, there)}/{INDEX}", materials[each.name].evaluation))
    _overview(folds[0].seed_name, "fold", pages, [materials[each.name] for each in folds], out, evaluation, back)


def _overview(
    name: str,
    what: str,
    pages: Sequence[Mapping[str, Any]],
    materials: Sequence[Material],
    out: Path,
    evaluation: Mapping[str, Any],
    back: tuple[str, str] | None,
) -> None:
    """Write the page over the seeds of a model, or over the folds of a seed."""
    make_folder(out)
    first = materials[0]
    rows = f"{evaluation['rows']['test']:,} test cases of {len(first.class_names)} classes"
    lead = {
        "seed": f"{len(pages)} seeds of one configuration, scored on {rows} each.",
        "fold": f"{len(pages)} outer folds, each trained, tuned and scored apart: {rows} together, every "
        "group tested once.",
    }
    page = kit.render(
        "report_seeds.html",
        name=name,
        what=what,
        lead=lead[what],
        summary=summarise(evaluation, gates=[material.tuning for material in materials]),
        results=sections.results(evaluation),
        paired=sections.paired(evaluation),
        per_1000=operating.per_1000(evaluation),
        points=operating.operating_points(evaluation),
        cost=operating.cost_curve(evaluation),
        paper=sections.beside_paper(first.config, evaluation),
        seeds=pages,
        settings=first.settings,
        back_link=back,
    )
    write_bytes(out / INDEX, page.encode("utf-8", "replace"))


def _row(name: str, address: str, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return a seed or a model as a row of the table; ``address`` is that of its own report."""
    gate, scores = evaluation["gate"], evaluation["comparators"]
    figures = [
        kit.number(scores[who][metric])
        for metric in ("accuracy", "balanced_accuracy", "ece")
        for who in ("student", "gate")
    ]
    return {
        "name": name, "address": address, "headline": headline(evaluation), "figures": figures,
        "counts": [f"{gate[key]:,}" for key in ("opened", "fixed", "broken")], "tuning": evaluation["tuning"],
        "p": "" if gate["mcnemar_p"] is None else p_text(gate["mcnemar_p"]).removeprefix("p = ").removeprefix("p "),
    }  # fmt: skip


def _between(here: Path, there: Path) -> str:
    """Return the address of a folder from another, as a page needs it."""
    return Path(os.path.relpath(there, here)).as_posix()
