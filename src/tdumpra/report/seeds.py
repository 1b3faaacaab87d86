"""Reports over several seeds or models: one page for all, with links to each one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tdumpra.artifacts import make_folder, read_json, write_bytes
from tdumpra.errors import ArtifactError
from tdumpra.evaluation.evaluate import gained
from tdumpra.evaluation.over_seeds import SeedResult, over_seeds
from tdumpra.method.bank_health import bank_health
from tdumpra.report import kit, sections
from tdumpra.report.image_material import of_folder
from tdumpra.report.material import MISSING_FROM_FILE, Material, decide_again, shown_names, tuning_document
from tdumpra.report.report import FOLDER, INDEX, write_page
from tdumpra.report.summary import headline, p_text, summarise
from tdumpra.runs.attach import EVALUATION
from tdumpra.runs.config import Config, read_config
from tdumpra.runs.fitting import fit
from tdumpra.runs.outputs import SavedRun, other_seeds, read_saved, saved_runs


class Linked(NamedTuple):
    """A report below another, by its name and its address from there."""

    name: str
    address: str
    evaluation: Mapping[str, Any]


def write_seeds(root: Path, folders: list[Path], out: Path, limit: int) -> Path:
    """Each seed's own report stands in its own folder; without ``--out`` the links lead there."""
    at_root = read_json(root / EVALUATION, kind="evaluation", schema=1) if (root / EVALUATION).exists() else {}
    known = at_root.get("by_seed", {})
    materials = {
        folder.name[5:]: of_folder(folder, None if (folder / EVALUATION).exists() else known.get(folder.name[5:]))
        for folder in sorted(folders, key=lambda folder: int(folder.name[5:]))
    }
    config = read_config(folders[0] / "config.toml")
    places = {
        seed: root / f"seed-{seed}" / FOLDER if out == root / FOLDER else out / f"seed-{seed}" for seed in materials
    }
    return _over_seeds(config.name, materials, places, out, limit, at_root)


def write_saved(root: Path, config: Config, out: Path, limit: int) -> Path:
    """Reports of outputs that a configuration names: of each model, and of each seed where there are several."""
    document, text = (
        read_json(root / EVALUATION, kind="evaluation", schema=1),
        (root / "config.toml").read_text("utf-8"),
    )
    runs = saved_runs(config)
    names = list(dict.fromkeys(run.model for run in runs))
    models = document.get("models", {names[0]: document})
    linked = []
    for name in names:
        of_model = [run for run in runs if run.model == name]
        place = out if len(names) == 1 else out / kit.page_name(name).removesuffix(".html")
        back = None if len(names) == 1 else ("../index.html", "All models")
        _model(name, of_model, config, models[name], text, place, limit, back)
        linked.append(Linked(name, f"{place.name}/{INDEX}", models[name]))
    if len(names) == 1:
        return out / INDEX
    return _index(config.name, f"{len(names)} models", linked, out)


def _model(
    name: str,
    runs: list[SavedRun],
    config: Config,
    evaluation: Mapping[str, Any],
    text: str,
    out: Path,
    limit: int,
    back: tuple[str, str] | None,
) -> None:
    if len(runs) == 1:
        write_page(of_saved(runs[0], config, evaluation, text), out, limit=limit, back_link=back)
        return
    materials = {str(run.seed): of_saved(run, config, evaluation["by_seed"][str(run.seed)], text) for run in runs}
    _over_seeds(name, materials, {seed: out / f"seed-{seed}" for seed in materials}, out, limit, evaluation, back)


def _over_seeds(
    name: str,
    materials: Mapping[str, Material],
    places: Mapping[str, Path],
    out: Path,
    limit: int,
    known: Mapping[str, Any],
    back: tuple[str, str] | None = None,
) -> Path:
    """The page over the seeds, and theirs; ``known`` is what was noted of all seeds together, if anything was."""
    make_folder(out)
    results = {}
    for seed, material in materials.items():
        if material.decided is None or material.splits is None:
            raise ArtifactError(f"seed {seed} of {name} has lost its outputs")
        results[int(seed)] = SeedResult(material.evaluation, gained(material.decided, material.splits.test))
    evaluation = over_seeds(results)
    linked = []
    for seed, material in materials.items():
        to, home = _between(out, places[seed]), _between(places[seed], out)
        write_page(material, places[seed], limit=limit, back_link=(f"{home}/{INDEX}", "All seeds"))
        linked.append(Linked(f"seed {seed}", f"{to}/{INDEX}", material.evaluation))
    first = next(iter(materials.values()))
    page = kit.render(
        "report_seeds.html",
        name=name,
        lead=f"{len(materials)} seeds of one configuration, scored on {evaluation['rows']['test']:,} test cases of "
        f"{len(first.class_names)} classes each.",
        summary=summarise(evaluation) if len(materials) > 1 else summarise(first.evaluation),
        results=sections.results(evaluation),
        paired=sections.paired(known) if known.get("comparators") == evaluation["comparators"] else None,
        paper=sections.beside_paper(first.config, evaluation),
        seeds=[_row(each) for each in linked],
        settings=first.settings,
        back_link=back,
    )
    write_bytes(out / INDEX, page.encode("utf-8", "replace"))
    return out / INDEX


def _index(name: str, lead: str, linked: list[Linked], out: Path) -> Path:
    make_folder(out)
    page = kit.render("report_models.html", name=name, lead=lead, models=[_row(each) for each in linked])
    write_bytes(out / INDEX, page.encode("utf-8", "replace"))
    return out / INDEX


def _row(each: Linked) -> dict[str, Any]:
    """A seed or a model in a line."""
    gate, scores = each.evaluation["gate"], each.evaluation["comparators"]
    figures = [
        sections.number(scores[who][metric])
        for metric in ("accuracy", "balanced_accuracy", "ece")
        for who in ("student", "gate")
    ]
    return {
        "name": each.name, "address": each.address, "headline": headline(each.evaluation), "figures": figures,
        "counts": [f"{gate[key]:,}" for key in ("opened", "fixed", "broken")],
        "tuning": each.evaluation["tuning"],
        "p": "" if gate["mcnemar_p"] is None else p_text(gate["mcnemar_p"]).removeprefix("p = ").removeprefix("p "),
    }  # fmt: skip


def _between(here: Path, there: Path) -> str:
    """The address of a folder from another, as a page needs it."""
    return Path(os.path.relpath(there, here)).as_posix()


def of_saved(run: SavedRun, config: Config, evaluation: Mapping[str, Any], settings: str) -> Material:
    """One file of outputs that a configuration names; the gate is tuned again, as it was."""
    splits = read_saved(run, config)
    tuning = fit(splits, config.bank, config.tune, others=other_seeds(config, run)).tuning
    decision = tuning.decision
    names = shown_names(evaluation)
    return Material(
        name=f"{run.model}, seed {run.seed}",
        evaluation=evaluation,
        class_names=names,
        splits=splits,
        decision=decision,
        decided=decide_again(decision, splits, evaluation, run.path),
        health=bank_health(decision.bank, names, splits.train.z, splits.train.y),
        tuning=tuning_document(tuning),
        config=config,
        settings=settings,
        identity={"outputs": splits.fingerprint},
        missing=MISSING_FROM_FILE,
    )
