"""Count the headline figures again, from saved outputs, by code that shares nothing with the package.

    python -m benchmarks.recount EVALUATION.json OUTPUTS.npz ...
    python -m benchmarks.recount HEADLINE.json POSTERIORS.npz ...

Plain NumPy, SciPy, scikit-learn and safetensors. Each file holds the outputs of one seed, or of one outer fold of a
seed (``fold-K-seed-S.npz``). Recounted, seed by seed: accuracy, balanced accuracy, macro-F1, calibration error and the
sensitivity for melanoma at 90 % specificity, of the classifier, of the second network, of each after a temperature of
its own, of their mean, of the 16 nearest training images; and, from the banks and thresholds below the evaluation's
folder, of retrieval and of the gate, with what it fixed and broke. The exit code is 1 if a figure differs by more than
a millionth. The second form needs the repository alone: ``headline.json`` and each seed's posteriors on the test
images, from which it counts the rows' figures, their means over seeds, what the gate fixed and broke, and every lead.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax, xlogy
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, roc_curve

Array = np.ndarray
ALLOWED, NEIGHBOURS, BINS = 1e-6, 16, 15
METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "ece", "melanoma_at_90")


def tempered(p: Array, temperature: float) -> Array:
    """Return a posterior at a temperature."""
    logits = np.log(np.maximum(p, 1e-300)) / temperature
    powered = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powered / powered.sum(1, keepdims=True))


def calibrated(p: Array, choice: Array, y: Array) -> Array:
    """Return a posterior at the temperature that is most likely on the rows of choice."""

    def loss(log_temperature: float) -> float:
        of_choice = tempered(p[choice], float(np.exp(log_temperature)))
        return float(-np.log(of_choice[np.arange(len(of_choice)), y[choice]] + 1e-300).mean())

    found = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-8})
    return tempered(p, float(np.exp(found.x)))


def nearest(z_train: Array, y_train: Array, z: Array, n_classes: int) -> Array:
    """Return the shares of the classes among the nearest training images."""
    cosine = unit(z) @ unit(z_train).T
    closest = np.argsort(-cosine, axis=1, kind="stable")[:, :NEIGHBOURS]
    return np.stack([(y_train[closest] == c).mean(1) for c in range(n_classes)], 1)


def unit(z: Array) -> Array:
    """Return rows of length one."""
    wide = z.astype(np.float64)
    return np.asarray(wide / np.linalg.norm(wide, axis=1, keepdims=True))


def retrieved_and_gated(folder: Path, p: Array, z: Array, shares: Array) -> tuple[Array, Array]:
    """Return retrieval's posterior and the gate's, by the bank and the thresholds in a folder."""
    bank = load_file(folder / "bank.safetensors")
    chosen = json.loads((folder / "gate.json").read_text(encoding="utf-8"))["decision"]
    if chosen["calibrated"] is not None or chosen["prior_exponent"]:
        raise SystemExit(f"{folder}: only gates of the five clauses are counted again")
    live = bank["mask"].astype(bool)
    cosine = np.einsum("nd,ckd->nck", unit(z), bank["prototypes"].astype(float))
    scores = logsumexp(np.where(live, chosen["kappa"] * cosine, -np.inf), axis=2)
    scores = scores + np.log(live.sum(1).max() / live.sum(1))
    cls, sim = tempered(p, chosen["temperature"]), softmax(scores / chosen["tau"], axis=1)
    middle = (cls + sim) / 2
    divergence = (xlogy(cls, cls / middle) + xlogy(sim, sim / middle)).sum(1) / 2
    first, second = np.sort(sim, axis=1)[:, ::-1][:, :2].T
    at = chosen["thresholds"]
    opened = (cls.max(1) < at["theta"]) & (first > at["beta"]) & (first - second > at["margin"])
    opened &= (divergence > at["delta"]) & (cls.argmax(1) != sim.argmax(1))
    if at["entropy"] is not None:
        opened &= -xlogy(cls, cls).sum(1) > at["entropy"]
    alpha = at["alpha"]
    fused = alpha * cls + (1 - alpha) * sim if chosen["rule"] == "linear" else cls**alpha * sim ** (1 - alpha)
    fused = fused / shares ** chosen["fused_exponent"]
    label = fused.argmax(1)
    if chosen["first_choices_only"]:
        opened &= (label == cls.argmax(1)) | (label == sim.argmax(1))
    return sim, np.where(opened[:, None], fused / fused.sum(1, keepdims=True), cls)


def folder_of(evaluation: Path, path: Path) -> Path:
    """Return the folder with the bank and the gate of a file, below that of the evaluation."""
    seed, fold = (re.search(rf"{what}-?(\d+)", path.stem) for what in ("seed", "fold"))
    below = f"fold-{fold[1]}/" if fold else ""
    of_seeds = list(evaluation.parent.glob(f"*_seed{seed[1] if seed else 0}/{below}gate.json"))
    (found,) = of_seeds or [evaluation.parent / below / "gate.json"]  # of a single seed, there is no folder for each
    return found.parent


def posteriors(path: Path, folder: Path) -> tuple[dict[str, Array], Array, list[str]]:
    """Return each row's posterior on a file's test images, their labels, and the names of the classes."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    y, split, names = arrays["y"].astype(int), arrays["split"], arrays["classes"].tolist()
    p, second = (each / each.sum(1, keepdims=True) for each in (arrays[k].astype(float) for k in ("p", "p_second")))
    own, other = (calibrated(each, split == 1, y) for each in (p, second))
    z, train = arrays["zt" if "zt" in arrays else "z"], split == 0
    test = split == 2
    found = {"student": p, "temperature": own, "second": second, "second_temperature": other}
    found["ensemble"] = (own + other) / 2
    rows = {name: each[test] for name, each in found.items()}
    shares = np.bincount(y[train], minlength=len(names)) / train.sum()
    rows["similarity"], rows["gate"] = retrieved_and_gated(folder, p[test], z[test], shares)
    return {**rows, "knn": nearest(z[train], y[train], z[test], len(names))}, y[test], names


def counted(p: Array, y: Array, melanoma: int) -> dict[str, float]:
    """Return the figures of one posterior."""
    label, confidence = p.argmax(1), p.max(1)
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = [abs(((label == y)[place == b] - confidence[place == b]).sum()) for b in range(BINS)]
    false, found, _ = roc_curve(y == melanoma, p[:, melanoma], drop_intermediate=False)
    return {
        "accuracy": float(accuracy_score(y, label)),
        "balanced_accuracy": float(balanced_accuracy_score(y, label)),
        "macro_f1": float(f1_score(y, label, average="macro")),
        "ece": float(sum(gaps) / len(y)),
        "melanoma_at_90": float(found[false <= 0.1 + 1e-12].max()),
    }


def told(evaluation: Mapping[str, Any], name: str, names: Sequence[str], melanoma: int) -> dict[str, float]:
    """Return the same figures as the evaluation has them."""
    scores = dict(evaluation["comparators"][name])
    scores["melanoma_at_90"] = evaluation["operating_points"][name][names[melanoma]]["0.9"]["sensitivity"]
    return scores


def headline(document: Mapping[str, Any], files: Sequence[Path]) -> int:
    """Print every figure of the headline twice, and return 1 if two differ."""
    seeds: list[dict[str, dict[str, float]]] = []
    moved: dict[str, list[int]] = {"fixed": [], "broken": []}
    for path in files:
        with np.load(path, allow_pickle=False) as file:
            y, melanoma = file["y"].astype(int), file["classes"].tolist().index("mel")
            seeds.append({name: counted(file[name].astype(float), y, melanoma) for name in document["rows"]})
            before, after = (file[name].argmax(1) == y for name in ("temperature", "gate"))
        moved["fixed"].append(int((after & ~before).sum()))
        moved["broken"].append(int((before & ~after).sum()))
    same = all(moved[name] == document["gate"][name] for name in moved)
    print(f"gate fixed {moved['fixed']} and broke {moved['broken']}{'' if same else '  DIFFERS'}")
    widest = 0.0 if same else np.inf
    for name, metric in itertools.product(document["rows"], METRICS):
        by_seed = [of_seed[name][metric] for of_seed in seeds]
        there = [document["rows"][name][metric][0], *(each[0] for each in document["by_seed"][name][metric])]
        here = [float(np.mean(by_seed)), *by_seed]
        differs = max(abs(one - two) for one, two in zip(here, there, strict=True))
        widest = max(widest, differs)
        told = "  ".join(f"{one:.6f} {two:.6f}" for one, two in zip(here, there, strict=True))
        print(f"{name:20}{metric:20}{told}{'  DIFFERS' if differs > ALLOWED else ''}")
    for name, rivals in document["leads"].items():
        for rival, metric in itertools.product(rivals, METRICS):
            ahead = float(np.mean([of_seed[name][metric] - of_seed[rival][metric] for of_seed in seeds]))
            widest = max(widest, abs(ahead - rivals[rival][metric][0]))
    print(f"the widest difference is {widest:.2g}")
    return int(widest > ALLOWED)


def main(evaluation: Path, *files: Path) -> int:
    """Print every figure twice, and return 1 if two differ."""
    document = json.loads(evaluation.read_text(encoding="utf-8"))
    if "comparators" not in document:
        return headline(document, files)
    seeds: dict[str, list[Path]] = {}
    for path in files:
        named = re.search(r"seed-?(\d+)", path.stem)
        if named is None:
            raise SystemExit(f"{path.name} does not name its seed")
        seeds.setdefault(named[1], []).append(path)
    widest = 0.0
    for seed, paths in seeds.items():
        parts = [posteriors(path, folder_of(evaluation, path)) for path in paths]
        y, names = np.concatenate([part[1] for part in parts]), parts[0][2]
        melanoma = names.index("mel")
        of_seed = document.get("by_seed", {seed: document})[seed]
        right, before = (np.concatenate([part[0][who].argmax(1) for part in parts]) == y for who in ("gate", "student"))
        moved = [int((right & ~before).sum()), int((before & ~right).sum())]
        same = moved == [of_seed["gate"][name] for name in ("fixed", "broken")]
        widest = widest if same else np.inf
        print(f"seed {seed}  gate fixed and broke {moved}{'' if same else '  DIFFERS'}")
        for name in parts[0][0]:
            here = counted(np.concatenate([part[0][name] for part in parts]), y, melanoma)
            there = told(of_seed, name, names, melanoma)
            for metric, value in here.items():
                widest = max(widest, abs(value - there[metric]))
                mark = "" if abs(value - there[metric]) <= ALLOWED else "  DIFFERS"
                print(f"seed {seed}  {name:20}{metric:20}{value:.6f}  {there[metric]:.6f}{mark}")
    print(f"the widest difference is {widest:.2g}")
    return int(widest > ALLOWED)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
