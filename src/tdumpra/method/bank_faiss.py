"""faiss as the engine of spherical k-means (extra ``faiss``), for banks of millions of rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tdumpra.core.kmeans import KMeansResult, lloyd
from tdumpra.errors import MissingExtraError


def faiss_lloyd(x: Tensor, centers: Tensor, weight: Tensor, *, max_iter: int) -> KMeansResult:
    """Run faiss from ``centers``, then finish with :func:`lloyd`.

    Left alone, faiss neither normalises the rows (ours arrive normalised) nor uses more than 256 of them per centre,
    and it fills empty clusters with near-copies of full ones. So it is told to use every row, and a closing run of
    :func:`lloyd` re-seeds what is empty and settles the assignment; where faiss has converged that costs two passes.
    """
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("faiss", "faiss", "the faiss engine of k-means") from error
    engine = faiss.Kmeans(
        x.shape[1],
        len(centers),
        niter=max_iter,
        nredo=1,
        spherical=True,
        min_points_per_centroid=1,
        max_points_per_centroid=len(x),
    )
    rows = x.float().cpu().numpy()
    engine.train(rows, weights=weight.float().cpu().numpy(), init_centroids=centers.float().cpu().numpy())
    found = torch.from_numpy(np.array(engine.centroids)).to(x)
    return lloyd(x, found, weight, max_iter=max_iter)
