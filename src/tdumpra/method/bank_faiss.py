"""faiss (extra ``faiss``) for millions of rows: the engine of spherical k-means, and an index of neighbours."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tdumpra.core.kmeans import KMeansResult, lloyd
from tdumpra.core.rowwise import normalise
from tdumpra.errors import MissingExtraError
from tdumpra.method.clusters import Directions

_LISTS = 4096  # most parts that an index is divided into
_FOR_A_LIST = 50  # rows that a part's middle is found from; faiss warns below 39
_LOOKED_AT = 32  # parts that a query is compared with: 8 miss a third of the nearest among rows in a few lumps
_CANDIDATES = 64  # of a query, whose exact cosines decide
_QUERIES = 1024  # at once


def faiss_lloyd(x: Tensor, centers: Tensor, weight: Tensor, *, max_iter: int) -> KMeansResult:
    """Run faiss from ``centers``, then finish with :func:`lloyd`.

    Left alone, faiss neither normalises the rows (ours arrive normalised) nor uses more than 256 of them per centre,
    and it fills empty clusters with near-copies of full ones. So it is told to use every row, and a closing run of
    :func:`lloyd` re-seeds what is empty and settles the assignment; where faiss has converged that costs two passes.
    """
    engine = _faiss("the faiss engine of k-means").Kmeans(
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


def has_faiss() -> bool:
    """Return whether faiss is installed."""
    return find_spec("faiss") is not None


class NeighbourIndex:
    """The nearest of millions of rows by cosine, nearly always; half a byte of memory for each of their numbers.

    Rows are dealt into parts around middles that a few of them give, and kept there in four bits a number. A query
    looks through the parts nearest to it; the best few candidates are then compared by their exact cosines, with the
    rows where they lie.
    """

    def __init__(self, rows: Float[Tensor, "m d"]) -> None:
        faiss = _faiss("an index of neighbours")
        self._rows = Directions(rows)
        n, width = rows.shape
        lists = int(np.clip(4 * np.sqrt(n), 1, min(_LISTS, max(1, n // _FOR_A_LIST))))
        self._index = faiss.index_factory(width, f"IVF{lists},SQ4", faiss.METRIC_INNER_PRODUCT)
        drawn = np.sort(np.random.default_rng(0).choice(n, min(n, _FOR_A_LIST * lists), replace=False))
        self._index.train(self._rows[torch.from_numpy(drawn)].float().numpy())
        for _, block in self._rows.blocks():
            self._index.add(block.float().numpy())
        self._index.nprobe = min(lists, _LOOKED_AT)

    def nearest(self, queries: Float[Tensor, "n d"], k: int) -> Int[Tensor, "n k"]:
        """Return the numbers of the ``k`` rows with the largest cosines, nearest first."""
        found = [self._nearest(queries[start : start + _QUERIES], k) for start in range(0, len(queries), _QUERIES)]
        return torch.cat(found)

    def _nearest(self, queries: Tensor, k: int) -> Tensor:
        unit = normalise(queries).float()
        _, numbers = self._index.search(unit.numpy(), max(k, _CANDIDATES))
        candidates = torch.from_numpy(numbers)
        candidates = torch.where(candidates < 0, candidates[:, :1], candidates)  # small parts have fewer than asked for
        rows = self._rows[candidates.flatten()].float().view(*candidates.shape, -1)
        cosine = torch.einsum("qd,qcd->qc", unit, rows).masked_fill(torch.from_numpy(numbers) < 0, -torch.inf)
        return candidates.gather(1, cosine.topk(k, dim=1).indices)


def _faiss(purpose: str) -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("faiss", "faiss", purpose) from error
    return faiss
