"""Spherical k-means against faiss: same data, same starting centres, same number of iterations."""

from __future__ import annotations

import faiss
import torch
from torch.nn.functional import normalize

from benchmarks.common import Row, best_times, faster, within
from tdumpra.core.kmeans import lloyd

N, D, K, ITERATIONS = 200_000, 128, 100, 10


def run() -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    modes = normalize(torch.randn(K, D, generator=generator), dim=1)
    member = torch.randint(K, (N,), generator=generator)
    x = normalize(modes[member] + 0.15 * torch.randn(N, D, generator=generator), dim=1)
    start = x[torch.randperm(N, generator=generator)[:K]].clone()
    weight = torch.ones(N)
    objective = {}

    def ours() -> None:
        objective["ours"] = lloyd(x, start, weight, max_iter=ITERATIONS).objective

    def theirs() -> None:
        engine = faiss.Kmeans(D, K, niter=ITERATIONS, spherical=True, max_points_per_centroid=N, nredo=1)
        engine.train(x.numpy(), init_centroids=start.numpy())
        objective["faiss"] = float((1 - (x @ torch.from_numpy(engine.centroids).T).amax(1)).double().sum())

    mine, other = best_times(ours, theirs, repeats=3)
    gap = abs(objective["ours"] - objective["faiss"]) / objective["faiss"]
    name = f"spherical k-means, {N:,} × {D}, {K} clusters"
    return [
        faster(name, mine, other, at_least=0.8, against="faiss"),
        within(f"{name}, gap of objectives", gap, 1e-3, unit="", against="0.1 % of faiss's objective"),
    ]
