"""``predict_proba`` on a million rows, all of them below theta, against the bare matrix product with the prototypes."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.common import Row, best_times, peak_memory, within
from tdumpra import DualPathClassifier
from tdumpra.tuning.presets import Preset

N, D, C, K = 1_000_000, 128, 8, 10


def run() -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(N, D, generator=generator)
    p = torch.randn(N, C, generator=generator).softmax(1)
    y = torch.randint(C, (N,), generator=generator)
    few = slice(0, 4000)
    y_few = z[few, :C].argmax(1)  # something to find, so that the gate does open
    preset = Preset(theta=(1.0,), beta=(0.0,), margin=(0.0,), delta=(0.0,), alpha=(0.1,), rule=("linear",))
    classifier = DualPathClassifier(n_prototypes=K, preset=preset).fit(z[few], y_few).tune(p[few], z[few], y_few)
    assert (p.amax(1) < classifier.decision_.thresholds.theta).all()
    rows, embeddings = p.numpy(), z.numpy()
    prototypes = classifier.bank_.prototypes.reshape(C * K, D)
    used = peak_memory(lambda: classifier.predict_proba(rows, embeddings))
    ours, bare = best_times(lambda: classifier.predict_proba(rows, embeddings), lambda: z @ prototypes.T, repeats=5)
    del y
    assert np.isfinite(classifier.predict_proba(rows[:10], embeddings[:10])).all()
    share = bare / ours
    name = f"predict_proba, {N:,} × {D}, {C} × {K} prototypes"
    return [
        within(f"{name}, memory", used, 1.5, unit="GiB", against="1.5 GiB above its inputs"),
        Row(
            name=f"{name}, share of the bare product's speed", ours=ours, peer=bare, ratio=share, goal="≥ 0.3 ×",
            met=share >= 0.3, unit="s", against="the matrix product alone",
        ),
    ]  # fmt: skip
