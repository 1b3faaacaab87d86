"""The prototype bank: a few directions per class, what they stand for, and the training cases nearest to them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tdumpra import checks
from tdumpra.artifacts import Artifact, read_artifact, write_artifact
from tdumpra.core.kmeans import Engine
from tdumpra.core.posterior import prototype_similarity, similarity_posterior, vmf_class_scores
from tdumpra.core.rowwise import by_rows, widen
from tdumpra.errors import ArtifactError
from tdumpra.foreign import reading
from tdumpra.method.arrays import like
from tdumpra.method.clusters import (
    FIRST_ROWS,
    Clusters,
    Directions,
    cluster_classes,
    count_groups,
    warn_of_large_classes,
)
from tdumpra.method.schema import check_bank

KIND, SCHEMA = "bank", 1
MERGE_ABOVE = 0.999  # two prototypes closer than this say the same thing
_EXEMPLARS = 8  # so that a few remain when those of the query's own lesion are left out
_REFERENCE_QUANTILES = 1001
_TENSORS = ("prototypes", "mask", "weight", "cohesion", "reference")  # of a bank, as they go into a file


class Exemplar(NamedTuple):
    """A training case near a prototype."""

    id: str
    group: str
    cosine: float


@dataclass(frozen=True, slots=True, eq=False)
class PrototypeBank:
    """Class prototypes on the unit sphere. Build one with :meth:`fit`.

    ``prototypes`` is (C, K, D); ``mask`` (C, K) says which are live; ``weight`` is each one's share of its class,
    ``cohesion`` the mean cosine of its members; the largest comes first. ``merged`` counts the near-duplicates that
    were merged in each class.
    """

    prototypes: Float[Tensor, "c k d"]
    mask: Bool[Tensor, "c k"]
    weight: Float[Tensor, "c k"]
    cohesion: Float[Tensor, "c k"]
    merged: tuple[int, ...]
    exemplars: tuple[tuple[tuple[Exemplar, ...], ...], ...]  # [class][prototype]: nearest first, one per group
    reference: Float[Tensor, " q"]  # quantiles of the training rows' top cosine, for familiarity

    def __repr__(self) -> str:
        merged = f", {sum(self.merged)} merged" if any(self.merged) else ""
        return (
            f"PrototypeBank({int(self.mask.sum())} prototypes of {self.mask.shape[0]} classes in "
            f"{self.prototypes.shape[2]} dimensions{merged})"
        )

    @classmethod
    def fit(
        cls,
        z: Any,
        labels: Any,
        n_prototypes: int = 5,
        groups: Any = None,
        n_classes: int | None = None,
        seed: int = 0,
        *,
        ids: Any = None,
        merge_above: float | None = MERGE_ABOVE,
        engine: Engine | None = None,
        class_names: Sequence[str] | None = None,
        weights: Any = None,
    ) -> PrototypeBank:
        """Cluster each class's training embeddings by spherical k-means.

        Args:
            z: training embeddings (n, D) of any encoder; normalised here.
            labels: integer classes.
            n_prototypes: K. A class with fewer distinct groups gets as many as it has groups, with a warning.
            groups: lesion or patient of each row: images of one group are no independent evidence.
            n_classes: C; needed only where some class has no training row, which is otherwise refused.
            seed: of the clustering.
            ids: names of the rows, shown as evidence; row numbers if left out.
            merge_above: merge prototypes of a class with a larger cosine than this; ``None`` or 1 keeps all.
            engine: another k-means engine, for instance :func:`tdumpra.method.bank_faiss.faiss_lloyd`.
            class_names: for warnings; numbers if left out.
            weights: how much each row counts; a weight of two equals two copies. All alike if left out.
        """
        checks.check_count(n_prototypes, "n_prototypes")
        checks.check_count(seed, "seed", least=0)
        rows = checks.check_embeddings(z, "z")
        if not len(rows):
            raise ValueError("z has no rows: a bank needs training embeddings")
        if n_classes is not None:
            checks.check_count(n_classes, "n_classes", least=2)
        y = checks.check_labels(labels, "labels", n_rows=len(rows), n_classes=n_classes)
        n_classes = _count_classes(y, n_classes)
        if class_names is not None:
            checks.check_class_names(class_names, n_classes)
        lesions = checks.check_groups(groups, "groups", n_rows=len(rows))
        names = _check_ids(ids, len(rows))
        lesions = names if lesions is None else lesions
        mass = _check_weights(weights, len(rows))
        unit, of_class = Directions(rows), [(y == c).nonzero().squeeze(1) for c in range(n_classes)]
        wanted = [count_groups(lesions, members.numpy(), int(n_prototypes)) for members in of_class]
        _warn_of_small_classes(n_prototypes, wanted, class_names)
        warn_of_large_classes(of_class, class_names)
        clusters = cluster_classes(unit, mass, of_class, wanted, seed=int(seed), merge_above=merge_above, engine=engine)
        return _assemble(unit, clusters, names, lesions, n_prototypes)

    @property
    def n_classes(self) -> int:
        """C, classes without prototypes included."""
        return self.prototypes.shape[0]

    @property
    def width(self) -> int:
        """D, the width of the embeddings that can be matched."""
        return self.prototypes.shape[2]

    def similarity(self, z: Float[Tensor, "n d"]) -> Float[Tensor, "n c k"]:
        """Return cosines of checked rows of any length with all prototypes; those of dead slots mean nothing."""
        wide = widen(z)
        cosines = prototype_similarity(wide, self.prototypes.to(wide))
        # Dividing C x K cosines costs less than dividing D columns; a zero row was refused before.
        return cosines / checks.row_norms(wide)[:, None, None]

    def class_scores(self, z: Float[Tensor, "n d"], *, kappa: float) -> Float[Tensor, "n c"]:
        """Return the mixture's unnormalised class scores of checked rows."""
        return by_rows(
            lambda rows: vmf_class_scores(self.similarity(rows), self.mask.to(rows.device), kappa=kappa),
            z,
            width=self.mask.numel(),
        )

    def posterior(self, z: Any, kappa: float = 20.0, tau: float = 1.0) -> Any:
        """Return class probabilities by similarity, in the kind and type of ``z``."""
        checks.check_positive(kappa, "kappa")
        checks.check_positive(tau, "tau")
        rows = checks.check_embeddings(z, "z", width=self.width)
        return like(z)(similarity_posterior(self.class_scores(rows, kappa=kappa), tau=tau))

    def familiarity(self, similarity: Float[Tensor, "n c k"]) -> Float[Tensor, " n"]:
        """Return each row's percentile, among the training rows, of the cosine to the nearest prototype.

        A softmax is decisive on images unlike anything in the bank too; a low percentile tells.
        """
        top = similarity.masked_fill(~self.mask.to(similarity.device), -torch.inf).amax((1, 2))
        reference = self.reference.to(top)
        return 100 * torch.searchsorted(reference, top, right=True).to(top.dtype) / len(reference)

    def save(self, path: str | Path) -> None:
        """Write one sealed safetensors file."""
        artifact = self.to_artifact()
        write_artifact(path, kind=KIND, schema=SCHEMA, tensors=artifact.tensors, meta=artifact.meta)

    @classmethod
    def load(cls, path: str | Path) -> PrototypeBank:
        """Read what :meth:`save` wrote; a file that was altered by one byte is refused."""
        artifact = read_artifact(path, kind=KIND, schema=SCHEMA)
        with reading(path, "tdumpra bank", ArtifactError):
            return cls.from_artifact(artifact)

    def to_artifact(self) -> Artifact:
        """Return tensors and JSON values, for files that hold a bank among other things."""
        return Artifact(
            {name: getattr(self, name) for name in _TENSORS}, {"merged": list(self.merged), "exemplars": self.exemplars}
        )

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> PrototypeBank:
        """Read what :meth:`to_artifact` returned; other tensors in the same file are passed over."""
        with reading("its bank", "bank", ArtifactError):
            check_bank(artifact.tensors, artifact.meta)
        exemplars = tuple(
            tuple(tuple(Exemplar(*each) for each in of_prototype) for of_prototype in of_class)
            for of_class in artifact.meta["exemplars"]
        )
        tensors = {name: artifact.tensors[name] for name in _TENSORS}
        return cls(merged=tuple(artifact.meta["merged"]), exemplars=exemplars, **tensors)


def _count_classes(y: Tensor, n_classes: int | None) -> int:
    largest = int(y.max())
    if n_classes is None and largest >= max(len(y), 2**20):  # one label would ask for gigabytes of counts
        seen = set(y.tolist())
        missing = next(c for c in range(largest) if c not in seen)
        raise ValueError(
            f"labels go up to {largest} in {len(y)} rows, and class {missing} has none: number them from 0"
        )
    present = torch.bincount(y, minlength=n_classes or 0) > 0
    if n_classes is None and not present.all():
        missing = int((~present).nonzero()[0])
        if present[1:].all() and len(present) > 2:
            raise ValueError(
                f"labels run from 1 to {len(present) - 1} and count from 0: subtract 1, or pass "
                f"n_classes={len(present)} if there is a class 0 without a training row"
            )
        raise ValueError(
            f"class {missing} has no training row; pass n_classes={len(present)} if that is meant, "
            "and it will never be retrieved"
        )
    if n_classes is None and len(present) < 2:
        raise ValueError("labels hold a single class; a bank needs at least two")
    return len(present)


def _check_ids(ids: Any, n_rows: int) -> np.ndarray:
    if ids is None:
        return np.arange(n_rows)  # as numbers: names of millions of rows would take more than is kept of all of them
    names = np.asarray(ids)
    if names.shape != (n_rows,):
        raise ValueError(f"ids needs one entry per row: {n_rows}, not shape {names.shape}")
    return names.astype(np.str_, copy=False)


def _check_weights(weights: Any, n_rows: int) -> Tensor | None:
    if weights is None:
        return None
    mass = checks.to_tensor(weights, "weights").float().cpu()
    if mass.shape != (n_rows,) or not bool(torch.isfinite(mass).all() and (mass > 0).all()):
        raise ValueError(f"weights needs one positive number per row: {n_rows}")
    return mass


def _warn_of_small_classes(n_prototypes: int, wanted: list[int], class_names: Sequence[str] | None) -> None:
    names = class_names or [f"class {c}" for c in range(len(wanted))]
    short = [f"{names[c]} has {k}" for c, k in enumerate(wanted) if 0 < k < n_prototypes]
    if short:
        warnings.warn(
            f"n_prototypes={n_prototypes} is more than the distinct groups of some classes ({checks.some_of(short)}); "
            "they get as many prototypes as groups",
            stacklevel=3,
        )


def _assemble(
    z: Directions, clusters: list[Clusters], names: np.ndarray, groups: np.ndarray, n_prototypes: int
) -> PrototypeBank:
    shape = (len(clusters), n_prototypes)
    prototypes = clusters[0].centers.new_zeros(*shape, z.width)
    mask = torch.zeros(shape, dtype=torch.bool)
    weight, cohesion = prototypes.new_zeros(shape), prototypes.new_zeros(shape)
    own = torch.empty(z.n_rows, dtype=torch.int64)  # the number of each row's own prototype
    members: list[list[Tensor]] = []
    for c, cluster in enumerate(clusters):
        sizes = torch.bincount(cluster.assignment, cluster.mass, minlength=len(cluster.centers))
        order = sizes.argsort(descending=True, stable=True)
        live = slice(len(order))
        prototypes[c, live], mask[c, live] = cluster.centers[order], True
        weight[c, live] = (sizes[order].double() / sizes.sum()).to(weight)
        slot = order.argsort()[cluster.assignment]
        own[cluster.rows] = c * n_prototypes + slot
        members.append([cluster.rows[slot == number] for number in range(len(order))])
    cosine, top = _cosines(z, prototypes, mask, own)
    exemplars: list[tuple[tuple[Exemplar, ...], ...]] = []
    for c, of_class in enumerate(members):
        for number, rows in enumerate(of_class):
            cohesion[c, number] = cosine[rows].mean()
        exemplars.append(
            tuple(_nearest_of_each_group(rows.numpy(), cosine[rows].numpy(), names, groups) for rows in of_class)
        )
    quantiles = np.quantile(top.numpy(), np.linspace(0, 1, min(_REFERENCE_QUANTILES, len(top))))
    merged = tuple(cluster.merged for cluster in clusters)
    reference = torch.from_numpy(quantiles).to(prototypes.dtype)
    return PrototypeBank(prototypes, mask, weight, cohesion, merged, tuple(exemplars), reference)


def _cosines(z: Directions, prototypes: Tensor, mask: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's cosine with its own prototype, and with the nearest of all, in one pass over the rows."""
    of_own, top = prototypes.new_empty(z.n_rows), prototypes.new_empty(z.n_rows)
    for rows, block in z.blocks(mask.numel()):
        cosines = prototype_similarity(block, prototypes).flatten(1)
        of_own[rows] = cosines.gather(1, own[rows, None])[:, 0]
        top[rows] = cosines.masked_fill_(~mask.flatten(), -torch.inf).amax(1)
    return of_own, top


def _nearest_of_each_group(
    rows: np.ndarray, cosine: np.ndarray, names: np.ndarray, groups: np.ndarray
) -> tuple[Exemplar, ...]:
    order = np.argsort(-cosine, kind="stable")
    for looked_at in (FIRST_ROWS, len(order)):  # the nearest few are nearly always of groups enough
        _, first = np.unique(
            groups[rows[order[:looked_at]]], return_index=True
        )  # each group's best place in that order
        if len(first) >= _EXEMPLARS:
            break
    best = order[np.sort(first)[:_EXEMPLARS]]
    return tuple(Exemplar(str(names[rows[i]]), str(groups[rows[i]]), round(float(cosine[i]), 6)) for i in best)
