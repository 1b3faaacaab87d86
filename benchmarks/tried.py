"""What else a bank could be made of, or looked at through: each attempt against the same stack without a bank.

    python -m benchmarks.tried OUTPUTS.npz ... --out docs/results/tried.json

Each file holds the outputs of one outer fold of a seed, ``fold-K-seed-S.npz``; what the file has of other seeds is
kept. Beside it lie those of other views, ``views-fold-K-seed-S.npz`` (:mod:`benchmarks.other_views`), and, where there
is one, of a second network that memorises less, ``regular-K-seed-S.npz``. An attempt is judged on the folds that have
its opinions. It is a stack of them (:func:`benchmarks.opinions.stacked`), fitted on the validation rows of these folds
without the lesions that the fold tests; its rival is a stack of classifiers alone, at the same number of passes or
more. Both are judged as fitted and divided by a power of the prior. Intervals are 95 % and draw lesions.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.common import add_to, seed_of
from benchmarks.headline import BAR, replicates
from benchmarks.opinions import KAPPA, TINY, Rows, joined, powered, read, stacked
from benchmarks.sites import REPLICATES, span
from tdumpra.artifacts import jsonable
from tdumpra.core.bootstrap import Draws
from tdumpra.core.groups import group_folds, lesion_numbers
from tdumpra.method.bank import PrototypeBank

Array = np.ndarray
KINDS, FOLDS = ("fitted", "over_prior"), 5
BOTH, EIGHT, REGULAR = ("p", "p_second"), ("eight_classifier", "eight_second"), ("p", "regular_second")


class Tried(NamedTuple):
    """An attempt: its words, the opinions in it, and those of its rival."""

    words: str
    opinions: tuple[str, ...]
    rival: tuple[str, ...]


ATTEMPTS = {
    "bank": Tried("three opinions: both classifiers and the bank", (*BOTH, "bank"), BOTH),
    "gate": Tried("and neighbours' classes, familiarity: a gate that learns",
                  (*BOTH, "bank", "neighbours", "familiarity"), BOTH),
    "features_second": Tried("pooled features of the second network in place of its projection",
                             (*BOTH, "features_second"), BOTH),
    "unseen": Tried("a bank of validation images, which the encoder never trained on", (*BOTH, "unseen"), BOTH),
    "features": Tried("one network: a bank on the classifier's own pooled features", ("p", "features"), ("p",)),
    "stage3": Tried("one network: a bank on its middle stage 3", ("p", "stage3"), ("p",)),
    "stage3_head": Tried("the same, against a linear head on that stage", ("p", "stage3"), ("p", "stage3_head")),
    "stage5": Tried("one network: a bank on its middle stage 5", ("p", "stage5"), ("p",)),
    "grey": Tried("bank of the second network on grey-world colours", (*BOTH, "grey_bank"), (*BOTH, "grey_second")),
    "zoom": Tried("bank of the second network on the middle of the image", (*BOTH, "zoom_bank"),
                  (*BOTH, "zoom_second")),
    "lesion": Tried("bank of the second network on the lesion's box", (*BOTH, "lesion_bank"),
                    (*BOTH, "lesion_second")),
    "eight": Tried("eight views on both sides", (*EIGHT, "eight_bank"), EIGHT),
    "eight_and_one": Tried("the same, against the eight views and the plain one, no more passes",
                           (*EIGHT, "eight_bank"), (*EIGHT, *BOTH)),
    "regular": Tried("a second network that memorises less, with its bank", (*REGULAR, "regular_bank"), REGULAR),
    "regular_plain": Tried("the same, against the plain second network", (*REGULAR, "regular_bank"), BOTH),
}  # fmt: skip


def unit(z: Array) -> torch.Tensor:
    """Return rows of length one."""
    return torch.nn.functional.normalize(torch.from_numpy(z.astype(np.float32)), dim=1)


def scores(z_bank: Array, y_bank: Array, group: Array, z: Array, n_classes: int) -> Array:
    """Return what a bank of some rows says of others, as logarithms."""
    bank = PrototypeBank.fit(unit(z_bank), torch.from_numpy(y_bank), groups=group, n_classes=n_classes)
    return np.asarray(bank.class_scores(unit(z), kappa=KAPPA).double().log_softmax(1).numpy())


def unseen(z: Array, y: Array, group: Array, z_test: Array, n_classes: int) -> tuple[Array, Array]:
    """Return what a bank of validation rows says: of themselves by folds of lesions, and of the test rows."""
    fold, of_validation = group_folds(group, y, FOLDS, seed=0), np.empty((len(y), n_classes))
    for k in range(FOLDS):
        of_validation[fold == k] = scores(z[fold != k], y[fold != k], group[fold != k], z[fold == k], n_classes)
    floor = np.log(1e-6)  # a class may be missing from four of five folds
    both = of_validation, scores(z, y, group, z_test, n_classes)
    return np.maximum(both[0], floor), np.maximum(both[1], floor)


def linear_head(z_train: Array, y_train: Array, z: Array, n_classes: int) -> Array:
    """Return what a logistic regression on the training rows says of others, as logarithms."""
    head = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(z_train, y_train)
    p = np.full((len(z), n_classes), TINY)
    p[:, head.classes_] += head.predict_proba(z)
    return np.asarray(np.log(p))


def read_views(path: Path) -> tuple[Rows, Rows, Array]:
    """Return the rows of :func:`benchmarks.opinions.read` with the opinions of other views, spaces and networks."""
    found = read(path)
    own = arrays_of(path)
    views = arrays_of(path.with_name(f"views-{path.name}"))
    place = {name: i for i, name in enumerate(views["id"].tolist())}
    order = np.array([place[name] for name in own["id"].tolist()])
    n, split, y = len(order), own["split"], own["y"].astype(np.int64)

    def column(name: str) -> Array:
        """Return a column in the order of the outputs; training rows that were left out are not numbers."""
        values = views[name].astype(np.float64)
        return np.asarray(np.concatenate([np.full((n - len(values), values.shape[1]), np.nan), values])[order])

    train, n_classes = split == 0, found[0].opinions["p"].shape[1]
    spaces = {"features": own["features"], "features_second": own["features_second"]}
    spaces |= {name: column(name) for name in ("stage3", "stage5")}
    there = [view for view in ("grey", "zoom", "lesion", "eight") if f"{view}_second_z" in views]
    spaces |= {f"{view}_bank": column(f"{view}_second_z") for view in there}
    logits = {name: column(f"{name}_logits") for name in (EIGHT[0], *(f"{view}_second" for view in there))}
    of_both = unseen(own["z"][split == 1], y[split == 1], own["group"][split == 1], own["z"][split == 2], n_classes)
    regular = path.with_name(path.name.replace("fold-", "regular-", 1))
    others = read(regular)[:2] if regular.exists() else ()
    for number, (part, rows, of_unseen) in enumerate(zip((1, 2), found[:2], of_both, strict=True)):
        here = split == part
        for name, z in spaces.items():
            of_train = own["z"] if np.isnan(z[train]).any() else z
            bank = (of_train[train], y[train], own["group"][train])
            rows.opinions[name] = scores(*bank, z[here], n_classes)
        rows.opinions.update({name: log_softmax(each[here], axis=1) for name, each in logits.items()})
        rows.opinions["unseen"] = of_unseen
        rows.opinions["stage3_head"] = linear_head(spaces["stage3"][train], y[train], spaces["stage3"][here], n_classes)
        if others:
            rows.opinions["regular_second"] = others[number].opinions["p_second"]
            rows.opinions["regular_bank"] = others[number].opinions["bank"]
    if others and not np.array_equal(arrays_of(regular)["id"], own["id"]):
        raise SystemExit(f"{regular} and {path} are of other images")
    return found


def arrays_of(path: Path) -> dict[str, Array]:
    """Return the arrays of a file."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def posteriors(
    files: Sequence[tuple[Rows, Rows, Array]], stacks: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], tuple[Array, Array]]:
    """Return each stack on the test rows of all files, as fitted and divided by a power of the prior."""
    every = joined([validation for validation, _, _ in files])
    found: dict[tuple[str, ...], list[tuple[Array, Array]]] = {names: [] for names in stacks}
    for _, test, shares in files:
        choice = every.take(~np.isin(every.group, np.unique(test.group)))
        both = joined([choice, test])
        for names, parts in found.items():
            p = stacked(choice, names, both)
            of_choice, of_test = p[: len(choice.y)], p[len(choice.y) :]
            parts.append((of_test, powered(of_choice, choice, of_test, shares)))
    return {
        names: (np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]))
        for names, parts in found.items()
    }


def judged(
    files: Sequence[tuple[Rows, Rows, Array]], attempts: Mapping[str, Tried], melanoma: int
) -> dict[str, dict[str, Any]]:
    """Return how far each attempt is ahead of its rival on the test rows of some files."""
    rows = joined([test for _, test, _ in files])
    draws = Draws.make(lesion_numbers(rows.group, len(rows.y)), n_replicates=REPLICATES, seed=0)
    stacks = list(dict.fromkeys(names for tried in attempts.values() for names in (tried.opinions, tried.rival)))
    figures = {
        names: [replicates(p, rows.y, draws, melanoma) for p in both]
        for names, both in posteriors(files, stacks).items()
    }
    table: dict[str, dict[str, Any]] = {}
    for key, (words, opinions, rival) in attempts.items():
        table[key] = {
            "words": words,
            "opinions": opinions,
            "rival": rival,
            "test_rows": len(rows.y),
            "folds": len(files),
        }
        for place, name in enumerate(KINDS):
            with_bank, without = figures[opinions][place], figures[rival][place]
            table[key][name] = {
                metric: {"with_bank": float(with_bank[metric][0]), "without": float(without[metric][0]),
                         "lead": span([with_bank[metric] - without[metric]]),
                         "p": chance(with_bank[metric] - without[metric])}
                for metric in BAR
            }  # fmt: skip
        print(key, {n: [round(100 * v, 2) for v in table[key][n]["balanced_accuracy"]["lead"]] for n in KINDS})
    return table


def chance(drawn: Array) -> float:
    """Return how likely so large a difference would be by chance: two-sided, normal with the replicates' deviation."""
    return float(2 * norm.sf(abs(drawn[0]) / max(drawn[1:].std(), 1e-12)))


def main() -> None:
    """Write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("outputs", nargs="+", type=Path)
    parser.add_argument("--melanoma", type=int, default=4, help="number of the class whose sensitivity is given")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # banks of validation rows have classes of few lesions
    files = [read_views(path) for path in arguments.outputs]
    parts: dict[tuple[int, ...], dict[str, Tried]] = {}  # attempts by the folds that have their opinions
    for key, tried in ATTEMPTS.items():
        there = tuple(
            i for i, (rows, _, _) in enumerate(files) if {*tried.opinions, *tried.rival} <= rows.opinions.keys()
        )
        parts.setdefault(there, {})[key] = tried
    found: dict[str, dict[str, Any]] = {}
    for there, attempts in parts.items():
        if there:
            found |= judged([files[i] for i in there], attempts, arguments.melanoma)
    command = f"python -m benchmarks.tried {' '.join(path.name for path in arguments.outputs)} --out {arguments.out}"
    told = {
        "seed": seed_of(arguments.outputs),
        "command": command,
        "tried": {key: found[key] for key in ATTEMPTS if key in found},
    }
    add_to(arguments.out, [jsonable(told)], ("seed",))


if __name__ == "__main__":
    main()
