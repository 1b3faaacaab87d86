"""What adapting brings at a hospital that the networks never saw: the figures behind docs/new-hospital.md.

    python -m benchmarks.new_hospital site_rosendahl_seed0.npz site_rosendahl_seed1.npz --out
    python -m benchmarks.new_hospital site-vidir_modern-seed-0.npz site-vidir_molemax-seed-0.npz --out
    python -m benchmarks.new_hospital site_rosendahl_seed0.npz --ship

Each file holds outputs of a network trained without the hospital: train and validation rows from home, test rows from
there. Of the hospital's lesions 600 are drawn, three times; ``adapt`` runs on the first 50, 100, 200, 400 and 600 of a
draw, and each way that it tried is judged on the lesions that were not drawn. Intervals draw those lesions again.
Figures of other files stay as they are.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tdumpra.artifacts import jsonable
from tdumpra.core.bootstrap import group_weights, percentile_interval
from tdumpra.core.groups import lesion_numbers
from tdumpra.estimator import DualPathClassifier
from tdumpra.method.record import BankRecipe, Record
from tdumpra.method.rows import KeptRows
from tdumpra.models.adapt import adapt, figures_of
from tdumpra.models.ways import Adapted, Workbench
from tdumpra.tuning.goal import Goal

SIZES = (50, 100, 200, 400, 600)
DRAWS = 3
CHECKED = (200, 600)  # sizes at which the first draw's estimate stands beside the truth
SHOWN = ("accuracy", "balanced_accuracy", "macro_f1", "nll", "ece")
OBJECTIVES = ("accuracy", "balanced_accuracy")
SHIPPED_ROWS, SHIPPED_FEATURES = 300, 128  # training rows of each class, and principal components
ROOT = Path(__file__).resolve().parent.parent
FIGURES, SHIPPED = ROOT / "docs" / "results" / "new-hospital.json", ROOT / "examples" / "rosendahl_outputs.npz"
PAGE = ROOT / "docs" / "new-hospital.md"
MAIN = "site_rosendahl"  # files of the page's first hospital begin like this
HOSPITALS = {
    "site-vidir_modern-seed-0": "Vienna, modern",
    "site-vidir_molemax-seed-0": "Vienna, MoleMax",
}
_REPLICATES = 400
_WAYS = {
    "keep": "as it is", "bias": "temperature and bias", "head": "linear head, replay", "bank": "local bank",
    "bias+bank": "bias and bank", "head+bank": "head and bank", "chosen": "**what adapt chose**",
}  # fmt: skip


def read(path: Path) -> tuple[DualPathClassifier, Record, KeptRows, list[str]]:
    """Return the model that attach makes of a file, its record, and the hospital's rows."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    names = arrays["classes"].tolist()

    def rows(split: int) -> KeptRows:
        of_split = arrays["split"] == split
        p = arrays["p"][of_split].astype(np.float64)
        return KeptRows(
            ids=arrays["id"][of_split], groups=arrays["group"][of_split], y=arrays["y"][of_split].astype(np.int64),
            p=(p / p.sum(1, keepdims=True)).astype(np.float32), z=arrays["z"][of_split].astype(np.float32),
            features=arrays["features"][of_split],
        )  # fmt: skip

    train, validation = rows(0), rows(1)
    model = DualPathClassifier()
    model.fit(train.z, train.y, train.groups, ids=train.ids, class_names=names)
    model.tune(validation.p, validation.z, validation.y, validation.groups)
    return model, Record.keep(train, validation, BankRecipe(5, 0, 0.999)), rows(2), names


def with_intervals(
    parts: list[dict[str, np.ndarray]], base: list[dict[str, np.ndarray]] | None = None
) -> dict[str, Any]:
    """Return the mean over draws of each figure, or of its lead over ``base``, with its interval over lesions."""
    found = {}
    for metric in SHOWN:
        values = np.mean([part[metric] for part in parts], axis=0)
        if base is not None:
            values = values - np.mean([part[metric] for part in base], axis=0)
        found[metric] = [round(float(v), 4) for v in (values[0], *percentile_interval(values[1:], 0.95))]
    return found


def replicates(p: np.ndarray, y: np.ndarray, weights: list[np.ndarray], goal: Goal) -> dict[str, np.ndarray]:
    """Return each figure on the rows as they are and then, by weights, in each replicate."""
    of_weights = figures_of(p, y, goal)
    pieces = [of_weights(w) for w in weights]
    return {metric: np.concatenate([piece[metric] for piece in pieces]) for metric in SHOWN}


def study(path: Path, objective: str) -> dict[str, Any]:
    """Return what each way reaches at each size, at the hospital and at home, and how honest the estimate is."""
    model, record, local, names = read(path)
    goal = Goal.check(objective, n_classes=len(names))
    member = lesion_numbers(local.kin, len(local))
    draws = [np.random.default_rng(draw).permutation(member.max() + 1) for draw in range(DRAWS)]
    weights = [np.ones((len(local), 1)), *group_weights(member, n_replicates=_REPLICATES, seed=0)]
    home_weights = [np.ones((len(record.validation), 1))]
    result: dict[str, Any] = {"sizes": {}, "estimates": []}
    for size in SIZES:
        there: dict[str, list[dict[str, np.ndarray]]] = {}
        home: dict[str, list[dict[str, np.ndarray]]] = {}
        winners = []
        for draw, order in enumerate(draws):
            rest = np.flatnonzero(~np.isin(member, order[: max(SIZES)]))
            bench = Workbench(model.decision_, record, names, local.rows(np.isin(member, order[:size])))
            done = adapt(bench, goal)
            winners.append(done.choice.winner if done.survives else "keep")
            fitted = {way: bench.fit(np.ones(len(bench.local), bool), plan) for way, plan in done.choice.plans.items()}
            fitted["chosen"] = fitted[winners[-1]]
            for way, adapted in fitted.items():
                there.setdefault(way, []).append(judged(adapted, local.rows(rest), [w[rest] for w in weights], goal))
                home.setdefault(way, []).append(judged(adapted, record.validation, home_weights, goal))
            if draw == 0 and size in CHECKED:
                truth = float(there[done.choice.winner][-1][objective][0])
                estimate = done.figures["chosen"][objective].value
                result["estimates"].append({"lesions": size, "estimate": estimate, "truth": truth})
        result["sizes"][size] = {
            "winners": winners,
            "there": {way: with_intervals(parts) for way, parts in there.items()},
            "lead": {way: with_intervals(parts, there["keep"]) for way, parts in there.items() if way != "keep"},
            "home": {
                way: {m: round(float(np.mean([p[m][0] for p in parts])), 4) for m in SHOWN}
                for way, parts in home.items()
            },
        }
        print(
            path.stem, objective, size, winners, {w: f[objective][0] for w, f in result["sizes"][size]["there"].items()}
        )
    return result


def judged(adapted: Adapted, rows: KeptRows, weights: list[np.ndarray], goal: Goal) -> dict[str, np.ndarray]:
    """Return the figures of an adapted model on rows that it has not seen."""
    return replicates(np.asarray(adapted.decide(rows).p), rows.y, weights, goal)


def at_home_and_there(path: Path) -> dict[str, Any]:
    """Return the figures of the model as it is on its own validation rows and at the hospital."""
    model, record, local, names = read(path)
    goal = Goal.check("accuracy", n_classes=len(names))
    found = {}
    for name, rows in (("home", record.validation), ("there", local)):
        member = lesion_numbers(rows.kin, len(rows))
        weights = [np.ones((len(rows), 1)), *group_weights(member, n_replicates=_REPLICATES, seed=0)]
        found[name] = with_intervals([judged(Adapted(model.decision_), rows, weights, goal)])
        found[name] |= {"rows": len(rows), "lesions": int(member.max()) + 1}
    return found


def figures(path: Path) -> dict[str, Any]:
    """Return all figures of a file; of further hospitals with one objective."""
    objectives = OBJECTIVES if path.stem.startswith(MAIN) else OBJECTIVES[:1]
    return {"as_it_is": at_home_and_there(path), **{each: study(path, each) for each in objectives}}


def ship(path: Path, out: Path) -> None:
    """Write a file that is small enough to hand on: fewer training rows and features, half precision."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    rng = np.random.default_rng(0)
    train = np.flatnonzero(arrays["split"] == 0)
    kept = [rng.permutation(train[arrays["y"][train] == c])[:SHIPPED_ROWS] for c in np.unique(arrays["y"])]
    rows = np.sort(np.concatenate([*kept, np.flatnonzero(arrays["split"] > 0)]))
    logits = np.log(np.maximum(arrays["p"][rows].astype(np.float64), 1e-12))
    small = {
        "logits": logits.astype(np.float16), "z": arrays["z"][rows].astype(np.float16),
        "features": arrays["features"][rows, :SHIPPED_FEATURES].astype(np.float16), "classes": arrays["classes"],
        **{name: arrays[name][rows] for name in ("y", "split", "group", "id")},
    }  # fmt: skip
    np.savez_compressed(out, **small)
    print(f"{out}: {len(rows)} rows, {out.stat().st_size / 2**20:.2f} MiB")


def drop(document: Mapping[str, Any], hospitals: Mapping[str, str] | None = None) -> list[str]:
    """Return the table of the model as it is, at home and there."""
    first = "network" if hospitals is None else "new hospital"
    lines = [f"| {first} | where | lesions | accuracy | balanced accuracy | ECE |", "|---|---|---|---|---|---|"]
    for number, (name, of_network) in enumerate(document.items()):
        label = str(number) if hospitals is None else hospitals[name]
        for where in ("home", "there"):
            found = of_network["as_it_is"][where]
            figures = " | ".join(_span(found[metric]) for metric in ("accuracy", "balanced_accuracy", "ece"))
            lines.append(f"| {label} | {where} | {found['lesions']:,} | {figures} |")
    return lines


def by_size(document: Mapping[str, Any], objective: str) -> list[str]:
    """Return the table of each way's objective there, by the number of local lesions."""
    sizes = list(next(iter(document.values()))[objective]["sizes"])
    lines = [f"| network | way | {' | '.join(sizes)} |", "|---|---|" + "---|" * len(sizes)]
    for number, of_network in enumerate(document.values()):
        for way, words in _WAYS.items():
            cells = [_span(of_network[objective]["sizes"][size]["there"][way][objective]) for size in sizes]
            lines.append(f"| {number} | {words} | {' | '.join(cells)} |")
    return lines


def leads(document: Mapping[str, Any], objective: str) -> list[str]:
    """Return the table of what each way gains over the model as it is, by the number of local lesions."""
    sizes = list(next(iter(document.values()))[objective]["sizes"])
    lines = [f"| network | way | {' | '.join(sizes)} |", "|---|---|" + "---|" * len(sizes)]
    for number, of_network in enumerate(document.values()):
        for way, words in _WAYS.items():
            if way == "keep":
                continue
            cells = [_span(of_network[objective]["sizes"][size]["lead"][way][objective], signed=True) for size in sizes]
            lines.append(f"| {number} | {words} | {' | '.join(cells)} |")
    return lines


def at_home(document: Mapping[str, Any], objective: str) -> list[str]:
    """Return the table of what 600 local lesions cost at home."""
    lines = ["| network | way | accuracy at home | balanced accuracy at home |", "|---|---|---|---|"]
    for number, of_network in enumerate(document.values()):
        found = of_network[objective]["sizes"]["600"]["home"]
        for way, words in _WAYS.items():
            lines.append(
                f"| {number} | {words} | {found[way]['accuracy']:.3f} | {found[way]['balanced_accuracy']:.3f} |"
            )
    return lines


def estimates(document: Mapping[str, Any], objective: str) -> list[str]:
    """Return the table of estimates beside what fresh lesions say."""
    lines = ["| network | lesions | estimate | fresh lesions |", "|---|---|---|---|"]
    for number, of_network in enumerate(document.values()):
        lines += [
            f"| {number} | {each['lesions']} | {each['estimate']:.3f} | {each['truth']:.3f} |"
            for each in of_network[objective]["estimates"]
        ]
    return lines


def elsewhere(document: Mapping[str, Any]) -> list[str]:
    """Return the table of what each way gains at further hospitals, by the number of local lesions."""
    sizes = [str(size) for size in SIZES]
    lines = [f"| new hospital | way | {' | '.join(sizes)} |", "|---|---|" + "---|" * len(sizes)]
    for name, of_network in document.items():
        found = of_network["accuracy"]["sizes"]
        for way, words in _WAYS.items():
            if way != "keep":
                cells = [_span(found[size]["lead"][way]["accuracy"], signed=True) for size in sizes]
                lines.append(f"| {HOSPITALS[name]} | {words} | {' | '.join(cells)} |")
    return lines


def tables(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return every table of the page."""
    first = {name: each for name, each in document.items() if name.startswith(MAIN)}
    others = {name: document[name] for name in HOSPITALS if name in document}
    return {
        "drop": drop(first),
        "accuracy": by_size(first, "accuracy"),
        "leads": leads(first, "accuracy"),
        "balanced": leads(first, "balanced_accuracy"),
        "home": at_home(first, "accuracy"),
        "estimates": estimates(first, "accuracy"),
        "drop_elsewhere": drop(others, HOSPITALS),
        "elsewhere": elsewhere(others),
    }


def _span(interval: Sequence[float], *, signed: bool = False) -> str:
    value, low, high = (f"{each:+.3f}" if signed else f"{each:.3f}" for each in interval)
    return f"{value} ({low} to {high})".replace("-", "−")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", action="store_true", help=f"write {FIGURES.name} and the page's tables")
    parser.add_argument("--ship", action="store_true", help=f"write {SHIPPED.name} from the first file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # small classes, small validation sets: the page says so
    if arguments.ship:
        ship(arguments.files[0], SHIPPED)
    if arguments.out:
        document = jsonable({path.stem: figures(path) for path in arguments.files})
        known = json.loads(FIGURES.read_text(encoding="utf-8"))
        before, document = tables(known), {**known, **document}
        page = PAGE.read_text(encoding="utf-8")
        for name, lines in tables(document).items():
            page = page.replace("\n".join(before[name]), "\n".join(lines))
        PAGE.write_text(page, encoding="utf-8")
        FIGURES.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
