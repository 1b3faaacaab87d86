"""Does a bank add to two classifiers? Pools and stacks of opinions, with and without it, on equal terms.

    python -m benchmarks.opinions OUTPUTS.npz ... --out FIGURES.json

Each file holds the outputs of one outer fold of a seed, as ``tdumpra attach`` reads them: ``p``, ``p_second``, ``zt``
(or ``z``), ``y``, ``split``, ``group``; what the file has of other seeds is kept. Everything is fitted on the
validation rows of all files, each scored by its own networks, without the lesions that the file at hand tests; the test
rows of all files are then scored together. Each mixture has two rows: as fitted by likelihood, and divided by the power
of the class shares that has the best balanced accuracy on the rows of choice, at no less accuracy than the classifier
alone (by none, where each has less). Intervals draw lesions again, and are of the difference from the best mixture
without a bank.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.common import add_to, seed_of
from tdumpra.core.bootstrap import group_weights, percentile_interval
from tdumpra.core.calibration import adjust_prior
from tdumpra.core.groups import lesion_numbers
from tdumpra.core.metrics import classification_metrics, sensitivity_at_specificity
from tdumpra.core.neighbours import nearest_neighbour_shares
from tdumpra.method.bank import PrototypeBank
from tdumpra.tuning.tune import PRIOR_EXPONENTS

Array = np.ndarray
KAPPA, REPLICATES, TINY = 10.0, 1000, 1e-12
MIXTURES: dict[str, tuple[str, ...]] = {
    "classifier": ("p",),
    "second network": ("p_second",),
    "bank": ("bank",),
    "both classifiers": ("p", "p_second"),
    "classifier and bank": ("p", "bank"),
    "second network and bank": ("p_second", "bank"),
    "both classifiers and bank": ("p", "p_second", "bank"),
}
STACKS: dict[str, tuple[str, ...]] = {
    "both classifiers": ("p", "p_second"),
    "both classifiers and bank": ("p", "p_second", "bank", "neighbours", "familiarity"),
}
WITHOUT_BANK = ("classifier", "second network", "both classifiers")


class Rows(NamedTuple):
    """Rows of one part of a file: opinions by name, as logarithms, and what they are judged by."""

    opinions: dict[str, Array]
    y: Array
    group: Array

    def take(self, chosen: Array) -> Rows:
        """Return some of the rows."""
        return Rows({name: each[chosen] for name, each in self.opinions.items()}, self.y[chosen], self.group[chosen])


def read(path: Path) -> tuple[Rows, Rows, Array]:
    """Return the validation rows, the test rows and the class shares of a file's training rows."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    split, y = arrays["split"], arrays["y"].astype(np.int64)
    if split.dtype.kind == "U":
        split = np.select([split == "train", split == "val"], [0, 1], 2)
    z = torch.from_numpy(arrays["zt" if "zt" in arrays else "z"].astype(np.float32))
    train = torch.from_numpy(np.flatnonzero(split == 0))
    labels, n_classes = torch.from_numpy(y), arrays["p"].shape[1]
    bank = PrototypeBank.fit(z[train], labels[train], groups=arrays["group"][split == 0])
    found = []
    for part in (1, 2):
        rows = np.flatnonzero(split == part)
        scores = bank.class_scores(z[rows], kappa=KAPPA)
        cosine = bank.similarity(z[rows]).flatten(1).amax(1)
        neighbours = nearest_neighbour_shares(z[train], labels[train], z[rows], n_classes=n_classes)
        opinions = {
            "p": np.log(arrays["p"][rows].astype(np.float64) + TINY),
            "p_second": np.log(arrays["p_second"][rows].astype(np.float64) + TINY),
            "bank": scores.double().log_softmax(1).numpy(),
            "neighbours": neighbours.double().numpy(),
            "familiarity": cosine.double().numpy()[:, None],
        }
        found.append(Rows(opinions, y[rows], arrays["group"][rows]))
    shares = np.bincount(y[split == 0], minlength=n_classes) / (split == 0).sum()
    return found[0], found[1], shares


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several parts as one, with the opinions that all of them have."""
    shared = [name for name in parts[0].opinions if all(name in each.opinions for each in parts)]
    opinions = {name: np.concatenate([each.opinions[name] for each in parts]) for name in shared}
    return Rows(opinions, np.concatenate([p.y for p in parts]), np.concatenate([p.group for p in parts]))


def pooled(chosen_on: Rows, names: Sequence[str], rows: Rows) -> Array:
    """Return the log-linear pool whose weights are most likely on the rows of choice."""
    parts = np.stack([chosen_on.opinions[name] for name in names])

    def loss(weights: Array) -> float:
        return _nll(np.tensordot(weights, parts, 1), chosen_on.y)

    weights = minimize(loss, np.full(len(names), 1 / len(names)), method="Nelder-Mead").x
    return _softmax(np.tensordot(weights, np.stack([rows.opinions[name] for name in names]), 1))


def stacked(chosen_on: Rows, names: Sequence[str], rows: Rows) -> Array:
    """Return a logistic regression on opinions; how much it is held back is chosen by folds of lesions."""

    def design(each: Rows) -> Array:
        return np.concatenate([np.maximum(each.opinions[name], -12.0) for name in names], 1)

    x, n_classes = design(chosen_on), rows.opinions["p"].shape[1]
    folds = list(StratifiedGroupKFold(5).split(x, chosen_on.y, chosen_on.group))

    def model(strength: float) -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))

    def predicted(fitted: Any, of: Array) -> Array:
        p = np.full((len(of), n_classes), TINY)  # a rare class may be missing from the rows of choice
        p[:, fitted.classes_] = fitted.predict_proba(of)
        return np.asarray(p / p.sum(1, keepdims=True))

    def score(strength: float) -> float:
        losses = [
            log_loss(
                chosen_on.y[judged],
                predicted(model(strength).fit(x[taken], chosen_on.y[taken]), x[judged]),
                labels=range(n_classes),
            )
            for taken, judged in folds
        ]
        return -float(np.mean(losses))

    return predicted(model(max((0.001, 0.01, 0.1), key=score)).fit(x, chosen_on.y), design(rows))


def powered(p_choice: Array, chosen_on: Rows, p: Array, shares: Array) -> Array:
    """Divide by the power of the class shares that is best on the rows of choice; by none that costs accuracy there."""
    floor = float((chosen_on.opinions["p"].argmax(1) == chosen_on.y).mean())
    prior = torch.from_numpy(shares)

    def adjusted(each: Array, power: float) -> Array:
        return adjust_prior(torch.from_numpy(each), prior, power).numpy()

    def judged(power: float) -> tuple[bool, float]:
        predicted = adjusted(p_choice, power).argmax(1)
        recalls = [(predicted[chosen_on.y == c] == c).mean() for c in np.unique(chosen_on.y)]
        return float((predicted == chosen_on.y).mean()) >= floor, round(float(np.mean(recalls)), 12)

    best = max(PRIOR_EXPONENTS, key=judged)
    return adjusted(p, best if judged(best)[0] else 0.0)


def _softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))


def _nll(logits: Array, y: Array) -> float:
    return float(-np.log(_softmax(logits)[np.arange(len(y)), y] + TINY).mean())


def posteriors(files: Sequence[Path]) -> tuple[dict[str, Array], Rows]:
    """Return each mixture's probabilities on the test rows of all files, and those rows."""
    read_files = [read(path) for path in files]
    found: dict[str, list[Array]] = {}
    for _, test, shares in read_files:
        every = joined([validation for validation, _, _ in read_files])
        choice = every.take(~np.isin(every.group, np.unique(test.group)))
        for kind, fit, mixtures in (("pool", pooled, MIXTURES), ("stack", stacked, STACKS)):
            for name, opinions in mixtures.items():
                p_choice, p = (fit(choice, opinions, rows) for rows in (choice, test))
                found.setdefault(f"{kind}: {name}", []).append(p)
                found.setdefault(f"{kind}: {name}, ÷ prior", []).append(powered(p_choice, choice, p, shares))
    return {name: np.concatenate(parts) for name, parts in found.items()}, joined([test for _, test, _ in read_files])


def figures(p: Array, y: Array, melanoma: int) -> dict[str, float]:
    """Return what the table shows of one mixture."""
    shown = ("accuracy", "balanced_accuracy", "macro_f1", "nll", "ece")
    every = classification_metrics(p, y)
    at, _ = sensitivity_at_specificity(p[:, melanoma], y == melanoma, 0.9)
    return {**{name: float(every[name]) for name in shown}, "melanoma_at_90": at}


def difference(p: Array, other: Array, rows: Rows) -> dict[str, tuple[float, float, float]]:
    """Return how far one mixture is ahead of another in accuracy and balanced accuracy, with intervals over lesions."""
    member, classes = lesion_numbers(rows.group, len(rows.y)), np.unique(rows.y)
    right = [(each.argmax(1) == rows.y).astype(float) for each in (p, other)]
    ahead = right[0] - right[1]
    draws: dict[str, list[Array]] = {"accuracy": [], "balanced_accuracy": []}
    for weights in group_weights(member, n_replicates=REPLICATES, seed=0):
        draws["accuracy"].append(ahead @ weights / weights.sum(0))
        of_class = [
            (ahead[rows.y == c] @ weights[rows.y == c]) / np.maximum(weights[rows.y == c].sum(0), TINY) for c in classes
        ]
        draws["balanced_accuracy"].append(np.mean(of_class, 0))
    points = {"accuracy": ahead.mean(), "balanced_accuracy": np.mean([ahead[rows.y == c].mean() for c in classes])}
    return {
        name: (float(points[name]), *percentile_interval(np.concatenate(parts), 0.95)) for name, parts in draws.items()
    }


def main() -> None:
    """Write and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("outputs", nargs="+", type=Path)
    parser.add_argument("--melanoma", type=int, default=4, help="number of the class whose sensitivity is given")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found, rows = posteriors(arguments.outputs)
    table: dict[str, dict[str, Any]] = {name: figures(p, rows.y, arguments.melanoma) for name, p in found.items()}
    without = [name for name in found if name.split(": ")[1].removesuffix(", ÷ prior") in WITHOUT_BANK]
    for name, p in found.items():
        rival = max((each for each in without if each.endswith("÷ prior") == name.endswith("÷ prior")),
                    key=lambda each: table[each]["balanced_accuracy"])  # fmt: skip
        table[name] |= {"rival": rival, **{f"ahead_{k}": v for k, v in difference(p, found[rival], rows).items()}}
        shown = "  ".join(f"{value:.4f}" for value in table[name].values() if isinstance(value, float))
        print(f"{name:45} {shown}  {[round(100 * v, 2) for v in table[name]['ahead_balanced_accuracy']]}")
    shown = " ".join(path.name for path in arguments.outputs)
    command = f"python -m benchmarks.opinions {shown} --out {arguments.out}"
    document = {"seed": seed_of(arguments.outputs), "command": command, "test_rows": len(rows.y), "rows": table}
    add_to(arguments.out, [document], ("seed",))


if __name__ == "__main__":
    main()
