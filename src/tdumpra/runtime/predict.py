"""Predict images from an exported model alone, as :class:`tdumpra.Predictor` does from a model file.

Files are decoded and framed by the same code, to the same pixels. The graph computes in float32 and decides in float64
(OpenVINO: float32 throughout), so probabilities differ from PyTorch's by some 1e-6, and labels only within that of a
threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tdumpra.data.images.new import Framed, Image, list_images, read_batches
from tdumpra.data.images.workers import available_cores
from tdumpra.errors import ArtifactError, BrokenImageError
from tdumpra.lanes import Lanes
from tdumpra.runtime.exported import Graph, read_exported
from tdumpra.runtime.prediction import NOT_FINITE, Prediction, failed
from tdumpra.runtime.sessions import ENGINES, Engine, open_session
from tdumpra.values import check_choice, check_count

SIGNALS = ("gamma_cls", "entropy_cls", "gamma_sim", "margin_sim", "js", "label_cls", "label_sim")
_BATCH = 16
_FLAGS = ("finite", "asked", "opened")


class ExportedPredictor:
    """Predict images from an exported model. Load one with :meth:`load`.

    Args:
        graphs: the contents of the exported files.
        engine: ``onnx`` or ``openvino``; ``auto`` is what the file was exported to.
        mode: ``lazy`` runs the second of two networks only for images below theta, ``eager`` for all.
        threads: how many to compute on; by default one for each core.

    Attributes:
        rows_seen: number of images that went through the classifier so far.
        rows_matched: number of images that went through the second network as well.
    """

    def __init__(
        self,
        graphs: Sequence[Graph],
        *,
        engine: Engine | Literal["auto"] = "auto",
        mode: Literal["lazy", "eager"] = "lazy",
        threads: int | None = None,
    ) -> None:
        check_choice(engine, "engine", ("auto", *ENGINES))
        check_choice(mode, "mode", ("lazy", "eager"))
        if threads is not None:
            check_count(threads, "threads")
        self.graphs, self.mode = tuple(graphs), mode
        self.engine: Engine = graphs[0].format if engine == "auto" else engine
        self._sessions = [open_session(graph, self.engine, threads or available_cores()) for graph in graphs]
        self.rows_seen = self.rows_matched = 0

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> ExportedPredictor:
        """Load an exported model by its first file; options as in the class."""
        return cls(read_exported(Path(path)), **options)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of the probabilities."""
        return self.graphs[0].description.class_names

    @property
    def has_two_networks(self) -> bool:
        """Return whether prototypes are matched by a network of their own."""
        return len(self.graphs) == 2

    @property
    def cuts_out(self) -> bool:
        """Return whether one of the networks sees lesions cut out along their masks."""
        return any(graph.description.transform.framing.lesion_margin is not None for graph in self.graphs)

    def predict(
        self,
        images: Sequence[str | Path],
        *,
        batch_size: int | None = None,
        masks: Sequence[str | Path | None] | None = None,
        embeddings: bool = False,
    ) -> Iterator[Prediction]:
        """Yield predictions in order. An image that cannot be read or decided gives one with its ``error``.

        Args:
            images: files.
            batch_size: how many at once.
            masks: files of the lesion's segmentation, for a model that :attr:`cuts_out` lesions.
            embeddings: run the network that matches prototypes on every image, and attach its embedding.
        """
        if batch_size is not None:
            check_count(batch_size, "batch_size")
        cases = list_images(images, masks, cuts_out=self.cuts_out)
        return self._predict(cases, batch_size or _BATCH, embeddings)

    def decide(
        self, first: np.ndarray, second: np.ndarray | None = None, *, eager: bool = False
    ) -> dict[str, np.ndarray]:
        """Return what the model has to say of framed images (n, h, w, 3), by the names of the graph's outputs.

        A model of two networks takes the images in the frame of each. It has every output for all of them if it is
        ``eager``; else the outputs that come from the bank hold zeros for the images above theta, as ``asked`` tells.
        """
        outputs = self._run(0, pixels=first)
        self.rows_seen += len(first)
        if not self.has_two_networks:
            return outputs
        asked = np.ones(len(first), dtype=bool) if eager or self.mode == "eager" else outputs["asked"]
        outputs["asked"], outputs["opened"] = asked, np.zeros(len(first), dtype=bool)
        if asked.any():
            frames = first if second is None else second
            decided = self._run(1, pixels=frames[asked], logits=outputs["logits"][asked])
            self.rows_matched += int(asked.sum())
            decided["finite"] &= outputs["finite"][asked]
            decided.pop("asked", None)  # the first graph's to say
            for name, values in decided.items():
                if name not in outputs:
                    outputs[name] = np.zeros((len(first), *values.shape[1:]), values.dtype)
                outputs[name][asked] = values
        return outputs

    def _predict(self, cases: list[Image], batch_size: int, embeddings: bool) -> Iterator[Prediction]:
        first, second = (graph.description.transform.framing for graph in (self.graphs[0], self.graphs[-1]))
        todo = iter(cases)
        with Lanes(1) as lane:  # so that Ctrl-C waits for no graph
            for read in read_batches(cases, first, second, batch_size=batch_size):
                outputs = lane.submit(self._decide_read, read, embeddings).result()
                i = 0
                for found in read:
                    path = next(todo).path
                    if isinstance(found, BrokenImageError):
                        yield failed(path, str(found))
                        continue
                    prediction = self._prediction(path, outputs, i)
                    if embeddings and prediction.error is None:
                        prediction = prediction._replace(embedding=outputs["embedding"][i])
                    yield prediction
                    i += 1

    def _decide_read(self, read: Sequence[Framed | BrokenImageError], eager: bool) -> dict[str, np.ndarray]:
        framed = [each for each in read if isinstance(each, Framed)]
        if not framed:
            return {}
        first, second = [each.first for each in framed], [each.second for each in framed]
        return self.decide(np.stack(first), np.stack(second), eager=eager)

    def _prediction(self, path: Path, outputs: Mapping[str, np.ndarray], i: int) -> Prediction:
        if not outputs["finite"][i]:
            return failed(path, NOT_FINITE)
        names, signals = self.class_names, None
        if "asked" not in outputs or outputs["asked"][i]:
            signals = {name: outputs[name][i].item() for name in SIGNALS}
        p = dict(zip(names, outputs["p"][i].tolist(), strict=True))
        return Prediction(str(path), names[int(outputs["label"][i])], p, bool(outputs["opened"][i]), signals, None)

    def _run(self, which: int, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Run a graph, and refuse outputs that are not what its kind promises: a stranger may have made it."""
        graph, n, n_classes = self.graphs[which], len(inputs["pixels"]), len(self.class_names)
        outputs = dict(self._sessions[which](**inputs))
        by_row: dict[str, tuple[int, ...]] = {"p": (n, n_classes), "label": (n,), "finite": (n,)}
        if graph.description.role == "classifier":
            by_row |= {"asked": (n,), "logits": (n, n_classes)}
        else:
            by_row |= {"opened": (n,), **dict.fromkeys(SIGNALS, (n,))}
        for name, shape in by_row.items():
            if name not in outputs or outputs[name].shape != shape:
                found = outputs[name].shape if name in outputs else "nothing"
                raise ArtifactError(f"{graph.path} must give {name} of shape {shape}, and gives {found}")
            wanted = "b" if name in _FLAGS else "iu" if name.startswith("label") else "f"
            if outputs[name].dtype.kind not in wanted:
                raise ArtifactError(f"{graph.path} gives {name} in the type {outputs[name].dtype}, which it never has")
        for name in ("label", *(("label_cls", "label_sim") if "label_cls" in by_row else ())):
            if not ((outputs[name] >= 0) & (outputs[name] < n_classes)).all():
                raise ArtifactError(f"{graph.path} gives {name} beyond its {n_classes} classes")
        return outputs
