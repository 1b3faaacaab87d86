"""A full evaluation with intervals against looping over scikit-learn's metrics, replicate by replicate."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, log_loss, roc_auc_score

from benchmarks.common import Row, faster
from tdumpra.core.bootstrap import MetricSums, group_weights
from tdumpra.core.calibration import class_prior
from tdumpra.evaluation.comparators import Case
from tdumpra.evaluation.evaluate import evaluate
from tdumpra.evaluation.settings import EvaluateConfig
from tdumpra.method.bank import PrototypeBank
from tdumpra.method.outputs import TestOutputs, TrainOutputs, ValidationOutputs
from tdumpra.tuning.tune import tune

N, C, D, REPLICATES = 10_000, 7, 64, 1000
LOOPED = 20  # replicates that the loop is timed on; its cost is the same for each


def run() -> list[Row]:
    case = _case()
    settings = EvaluateConfig(bootstrap=REPLICATES)
    evaluate(replace(case), settings=EvaluateConfig(bootstrap=0))  # warm; a copy keeps what it fits to itself
    start = time.perf_counter()
    found = evaluate(case, settings=settings, paired=False).document
    ours = time.perf_counter() - start

    posterior, y = case.decided.p.numpy(), case.test.y.numpy()
    member = np.unique(np.asarray(case.test.groups), return_inverse=True)[1]
    w = next(group_weights(member, n_replicates=LOOPED, seed=settings.seed))
    start = time.perf_counter()
    looped = [_by_scikit_learn(posterior[rows], y[rows]) for rows in (_rows(w[:, b]) for b in range(LOOPED))]
    theirs = (time.perf_counter() - start) * REPLICATES / LOOPED * len(found["comparators"])
    same = MetricSums.prepare(posterior, y).metrics(w)
    for b, expected in enumerate(looped):
        worst = max(abs(same[name][b] - value) for name, value in expected.items())
        assert worst < 1e-9, f"replicate {b} differs by {worst}"
    name = f"evaluation, {N:,} rows, {len(found['comparators'])} comparators, {REPLICATES:,} replicates"
    against = f"scikit-learn in a loop (timed on {LOOPED} replicates)"
    return [faster(name, ours, theirs, at_least=20, against=against)]


def _case() -> Case:
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(C, D))

    def rows(n: int, prefix: str) -> tuple[np.ndarray, ...]:
        y = rng.choice(C, n, p=[0.03, 0.05, 0.11, 0.02, 0.11, 0.66, 0.02])
        logits = torch.from_numpy(1.5 * np.eye(C)[y] + rng.normal(size=(n, C)))
        groups = np.array([f"{prefix}{g}" for g in rng.integers(3 * n // 4, size=n)])
        z = (directions[y] + 2 * rng.normal(size=(n, D))).astype(np.float32)  # as networks give them
        return logits.softmax(1).numpy(), z, y, groups

    train = TrainOutputs.check(*rows(7000, "train")[1:])
    validation, test = ValidationOutputs.check(*rows(1000, "val")), TestOutputs.check(*rows(N, "test"))
    bank = PrototypeBank.fit(train.z, train.y, 5, train.groups)
    decision = tune(bank, validation, class_prior(train.y, C)).decision
    decided = decision.decide(test.p, test.z)
    return Case(train=train, validation=validation, test=test, decision=decision, decided=decided)


def _rows(weights: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(weights)), weights.astype(int))


def _by_scikit_learn(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    label = p.argmax(1)
    confidence, correct = p.max(1), label == y
    bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
    gaps = np.bincount(bins, weights=correct - confidence, minlength=15)
    return {
        "accuracy": accuracy_score(y, label),
        "macro_f1": f1_score(y, label, average="macro"),
        "balanced_accuracy": balanced_accuracy_score(y, label),
        "macro_auroc": roc_auc_score(y, p, multi_class="ovr", labels=list(range(C))),
        "ece": float(np.abs(gaps).sum() / len(y)),  # scikit-learn has none
        "nll": log_loss(y, p, labels=list(range(C))),
        "brier": float(((p - np.eye(C)[y]) ** 2).sum(1).mean()),
    }
