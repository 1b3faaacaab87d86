"""What is computed to see that no figure changes: commands and public names only, on small inputs.

Each case takes an empty folder and returns figures that fit into JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.figures.condense import SHORT, evaluation_figures, figures

import tdumpra

EXAMPLE = Path(__file__).parents[2] / "examples" / "ham10000_outputs.npz"
N_CLASSES, WIDTH = 4, 8
ROWS = {"train": 240, "val": 200, "test": 160}
Case = Callable[[Path], Any]
Arrays = dict[str, np.ndarray]
FREE = ("--preset", "free")


def command(*arguments: Any) -> Any:
    """Run ``python -m tdumpra`` in this process and return the JSON that it prints."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = ["tdumpra", *map(str, arguments), "--json"]
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_module("tdumpra", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{' '.join(sys.argv)} ended with {end.code}") from end
    finally:
        sys.argv = before
        torch.use_deterministic_algorithms(False)
    return json.loads(printed.getvalue())


def make_outputs(model: int, seed: int) -> Arrays:
    """Make outputs of one model: the rows are shared by all, probabilities and embeddings are its own."""
    rng = np.random.default_rng(7)
    centres, share = rng.normal(size=(N_CLASSES, WIDTH)), 1 / np.arange(1, N_CLASSES + 1)
    n = sum(ROWS.values())
    y = rng.choice(N_CLASSES, n, p=share / share.sum())
    y[np.cumsum([0, *ROWS.values()])[:-1, None] + np.arange(N_CLASSES)] = np.arange(N_CLASSES)
    z = centres[y] + rng.normal(size=(n, WIDTH))
    logits = 1.2 * np.eye(N_CLASSES)[y] + rng.normal(size=(n, N_CLASSES)) + np.log(share)
    own = np.random.default_rng([7, model, seed])
    logits, z = logits + own.normal(scale=0.4, size=logits.shape), z + own.normal(scale=0.3, size=z.shape)
    teacher = logits + own.normal(scale=0.2, size=logits.shape)
    return {
        "p": softmax(logits).astype(np.float32),
        "pt": softmax(teacher).astype(np.float32),
        "p_second": softmax(1.5 * np.eye(N_CLASSES)[y] + own.normal(size=logits.shape)).astype(np.float32),
        "z": z.astype(np.float32),
        "zt": (z + own.normal(scale=0.1, size=z.shape)).astype(np.float32),
        "y": y,
        "split": np.repeat([0, 1, 2], list(ROWS.values())),
        "group": np.array([f"lesion{i // 2}" for i in range(n)]),  # every split has an even number of rows
        "id": np.array([f"image{i}" for i in range(n)]),
    }


def softmax(logits: np.ndarray) -> np.ndarray:
    grown = np.exp(logits - logits.max(1, keepdims=True))
    rows: np.ndarray = grown / grown.sum(1, keepdims=True)
    return rows


def attach(*options: str, whole: tuple[str, ...] = ()) -> Case:
    """Attach the second path to the example's outputs."""

    def case(folder: Path) -> Any:
        found = command("attach", EXAMPLE, "--out", folder / "out", "--no-report", *options)
        return evaluation_figures(found, SHORT | {"comparators", *whole})

    return case


def config(folder: Path, models: tuple[str, ...], seeds: tuple[int, ...], tune: str, evaluate: str = "") -> Path:
    """Save outputs beside a configuration that names them."""
    tables = []
    for model, name in enumerate(models):
        backbone, training = name.split("_")
        for seed in seeds:
            file = f"{name}_seed{seed}.npz"
            np.savez(folder / file, allow_pickle=False, **make_outputs(model, seed))
            told = {"file": file, "backbone": backbone, "training": training, "seed": seed}
            tables.append("\n".join(["[[outputs]]", *(f"{key} = {json.dumps(value)}" for key, value in told.items())]))
    path = folder / "saved.toml"
    path.write_text("\n".join([*tables, f"[tune]\n{tune}\n[evaluate]\nbootstrap = 50\n{evaluate}\n"]))
    return path


def tune_and_evaluate(folder: Path, *, tune: str, seeds: tuple[int, ...] = (0, 1)) -> Any:
    """Tune and evaluate one model over seeds, as one would for a user's own saved outputs."""
    path = config(folder, ("net_joint",), seeds, tune)
    tuned = command("tune", path, "--out", folder / "tuned")
    evaluated = command("evaluate", path, "--out", folder / "evaluated")
    return {"tune": figures(tuned), "evaluate": evaluation_figures(evaluated)}


def experiment(*name: str, seeds: tuple[int, ...]) -> Case:
    """Run an experiment over a model trained on cross-entropy alone and one on the joint objective."""

    def case(folder: Path) -> Any:
        path = config(folder, ("net_ce", "net_joint"), seeds, 'preset = "free"')
        found = command(*name, path, "--out", folder / "out")
        return evaluation_figures(found) if name == ("evaluate",) else figures(found)

    return case


def classifier(**params: Any) -> Case:
    """Fit, tune, predict, save, load and report with the array way in."""

    def case(folder: Path) -> Any:
        arrays = make_outputs(0, 0)
        train, val, test = ({k: v[arrays["split"] == part] for k, v in arrays.items()} for part in range(3))
        model = tdumpra.DualPathClassifier(n_prototypes=3, preset="free", **params)
        model.fit(train["z"], train["y"], train["group"], ids=train["id"])
        model.tune(val["p"], val["z"], val["y"], val["group"])
        model.save(folder / "model.safetensors")
        loaded = tdumpra.DualPathClassifier.load(folder / "model.safetensors")
        p = model.predict_proba(test["p"], test["z"])
        report = model.report(test["p"], test["z"], test["y"], test["group"], p_teacher=test["pt"])
        return {
            "probabilities": column_sums(p),
            "loaded": bool((loaded.predict_proba(test["p"], test["z"]) == p).all()),
            "labels": np.bincount(model.predict(test["p"], test["z"]), minlength=N_CLASSES).tolist(),
            "report": evaluation_figures(jsonable(report)),
        }

    return case


def column_sums(p: np.ndarray) -> list[list[float]]:
    """Return sums that differ if any probability does: plain, and weighted by row."""
    p = np.asarray(p, np.float64)
    weighted = p * (1 + np.arange(len(p)) % 97)[:, None]
    return [[round(float(total), 12) for total in each.sum(0)] for each in (p, weighted)]


def jsonable(value: Any) -> Any:
    """Return ``value`` as it comes back from JSON; what is not finite becomes null, as in the commands' files."""
    return json.loads(json.dumps(value, default=lambda each: each.tolist()), parse_constant=lambda _: None)


def array_functions(_folder: Path) -> Any:
    """Call the public functions of arrays, one after the other."""
    arrays = make_outputs(1, 0)
    train, test = ({k: v[arrays["split"] == part] for k, v in arrays.items()} for part in (0, 2))
    bank = tdumpra.PrototypeBank.fit(train["z"], train["y"], 3, train["group"])
    p_sim = bank.posterior(test["z"], kappa=10.0, tau=0.8)
    thresholds = tdumpra.GateThresholds(theta=0.7, beta=0.5, margin=0.2, delta=0.05, alpha=0.3)
    fused = {rule: tdumpra.fuse(test["p"], p_sim, thresholds, rule=rule) for rule in ("linear", "log-linear")}
    unit = torch.nn.functional.normalize(torch.from_numpy(train["z"].astype(np.float64)), dim=1)
    labels = torch.from_numpy(train["y"])
    clusters = tdumpra.spherical_kmeans(unit, 5)
    leak = tdumpra.audit_leakage(np.arange(len(arrays["y"])) % 3, arrays["group"], arrays["y"])
    return jsonable({
        "prototypes": column_sums(np.asarray(bank.prototypes).reshape(-1, WIDTH)),
        "live": np.asarray(bank.mask).sum(1),
        "posterior": column_sums(np.asarray(p_sim)),
        "vmf_posterior": column_sums(
            np.asarray(tdumpra.vmf_posterior(test["z"], np.asarray(bank.prototypes), bank.mask))
        ),
        "js_divergence": float(np.asarray(tdumpra.js_divergence(test["p"], p_sim), np.float64).sum()),
        "fused": {rule: column_sums(np.asarray(found.p)) for rule, found in fused.items()},
        "opened": {rule: int(found.opened.sum()) for rule, found in fused.items()},
        "metrics": tdumpra.classification_metrics(test["p"], test["y"]),
        "ece": float(tdumpra.expected_calibration_error(test["p"], test["y"])),
        "gate_report": figures(jsonable(
            tdumpra.gate_report(test["p"], p_sim, fused["linear"].p, test["y"], test["group"])
        )),
        "contrastive": {
            reduction: float(tdumpra.supervised_contrastive_loss(unit, labels, reduction=reduction))
            for reduction in ("mean", "sum")
        },
        "kmeans": [float(clusters.objective), np.bincount(np.asarray(clusters.assignment)).tolist()],
        "leak": figures(jsonable(leak if isinstance(leak, dict) else leak.to_json())),
    })  # fmt: skip


def run(folder: Path) -> Any:
    """Train a small network on synthetic images, and follow it to its evaluation."""
    path = folder / "run.toml"
    path.write_text(
        f"""
        name = "tiny"
        [data]
        source = "synthetic:n=120,size=32"
        cache = {json.dumps(str(folder / "cache"))}
        framing = {{height = 16, width = 16}}
        workers = 0
        [network]
        backbone = "tiny_networks:plain"
        weights = "none"
        image_size = 16
        embedding = 8
        [train]
        epochs = 4
        batch_size = 16
        learning_rate = 1e-2
        ema_momentum = 0.9
        accelerator = "cpu"
        deterministic = true
        [bank]
        n_prototypes = 2
        [tune]
        preset = "free"
        [evaluate]
        bootstrap = 50
        """
    )
    command("run", path, "--out", folder / "out")
    evaluation, gate = (json.loads((folder / "out" / f"{name}.json").read_text()) for name in ("evaluation", "gate"))
    return {"evaluation": evaluation_figures(evaluation), "gate": figures(gate)}


CASES: dict[str, Case] = {
    "attach": attach(*FREE, whole=("intervals", "ambiguous")),
    "attach_paper": attach("--preset", "paper"),
    "attach_rebalancing": attach("--preset", "rebalancing", "--objective", "macro_f1"),
    "attach_adjusted": attach(*FREE, "--adjust-prior"),
    "certify": partial(tune_and_evaluate, tune='preset = "free"\ncertify = true'),
    "certify_holm": partial(
        tune_and_evaluate,
        tune='preset = "free"\ncertify = true\nlevel = 0.2\ncorrection = "holm"\nadjust_prior = true',
        seeds=(2,),
    ),
    "folds": partial(tune_and_evaluate, tune='preset = "free"\nfolds = 3'),
    "training_rows": partial(tune_and_evaluate, tune='preset = "free"\nfolds = 2\ntraining_rows = true', seeds=(1,)),
    "pool_seeds": partial(tune_and_evaluate, tune='preset = "free"\npool_seeds = true', seeds=(0, 1, 2)),
    "costs": partial(
        tune_and_evaluate,
        tune='preset = "free"\nobjective = "cost"\ncosts = [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [9, 9, 9, 0]]',
        seeds=(0,),
    ),
    "teacher": partial(tune_and_evaluate, tune='classifier = "teacher"\npreset = "paper-swapped"', seeds=(0,)),
    "evaluate": experiment("evaluate", seeds=(0, 1)),
    "ablate": experiment("ablate", seeds=(0, 1)),
    "sweep": experiment("sweep", seeds=(0,)),
    "reproduce": experiment("reproduce", "ham10000", seeds=(0, 1)),
    "classifier_certify": classifier(selection="certified"),
    "classifier_folds": classifier(selection="crossfit", folds=3),
    "array_functions": array_functions,
    "run": run,
}
LOOSE = {"run": 1e-6}  # training sums in an order that depends on the machine
SLOW = frozenset({"attach_adjusted", "attach_rebalancing", "certify_holm", "sweep", "training_rows"})
