"""What the machines of a Ray cluster do: actors run the networks on images that they decode, or that others do."""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from tdumpra import __version__
from tdumpra.data.images.framing import Framing
from tdumpra.data.images.new import Framed, Read
from tdumpra.errors import BrokenImageError, SourceError, TdumpraError
from tdumpra.limits import VARIABLE
from tdumpra.scoring.fetch import fetch, read_found
from tdumpra.scoring.listing import Entry, is_address
from tdumpra.scoring.score import rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tdumpra.networks.predict import Mode, Predictor

_AT_ONCE = 128  # images that a decoder is given: enough that starting on them costs little
_AHEAD = 3  # times as many ahead of the networks, at least


class Work(NamedTuple):
    """What every machine must know of a job."""

    model: bytes  # of the file
    source: str
    embeddings: bool
    mode: Mode
    trusted: tuple[str, ...]
    limits: str  # as the environment has them
    version: str = __version__


class Share(NamedTuple):
    """What the networks take of a machine, and those who decode for them."""

    cpus: float
    gpus: int
    decoders: int  # for each actor with networks; without any, it decodes itself
    decoding: float  # CPUs of a decoder


class Networks:
    """An actor: a model's networks, which see whole parts."""

    def __init__(self, work: Any, share: Share) -> None:
        import ray

        self.ray, self.work_at = ray, work
        hire = ray.remote(num_cpus=share.decoding, max_restarts=-1, max_task_retries=-1)(Decoder)
        self.decoders = [hire.remote() for _ in range(share.decoders)]  # anywhere; they end with this actor
        self.on_gpu = bool(share.gpus)

    @cached_property  # and not above: what goes wrong there is no sentence, but an actor that dies again and again
    def work(self) -> Work:
        """What is to be done."""
        work: Work = self.ray.get(self.work_at)
        if work.version != __version__:
            raise TdumpraError(f"{socket.gethostname()} has tdumpra {__version__}, and this job is of {work.version}")
        return work

    @cached_property
    def predictor(self) -> Predictor:
        """The model."""
        import torch

        from tdumpra.networks.predict import Predictor

        if not self.on_gpu:
            torch.set_num_threads(1)  # there is an actor for each core
        work, device = self.work, "cuda" if self.on_gpu else "cpu"
        with TemporaryDirectory(prefix="tdumpra-score-") as folder:
            path = Path(folder) / "model.safetensors"
            path.write_bytes(work.model)
            return Predictor.load(path, mode=work.mode, device=device, trusted=work.trusted)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Score one part, a row of its number and its entries; return a row of its number and its rows."""
        import pyarrow as pa

        entries = [Entry(*each) for each in json.loads(batch["entries"][0].as_py())]
        names = [Path(entry.id) for entry in entries]
        read = self._decoded(entries, self.predictor.framings)
        predictions = list(self.predictor.predict(names, embeddings=self.work.embeddings, read=read))
        rows = rows_of(self.predictor, entries, predictions, self.work.embeddings)
        return pa.table({"number": batch["number"], "rows": pa.array([to_ipc(rows)], pa.large_binary())})

    def _decoded(self, entries: Sequence[Entry], framings: tuple[Framing, Framing]) -> Read:
        """Yield the images in order, as they are decoded here, or by others in turns, some ahead.

        Here a process is forked for them, and the networks then write to every page of theirs as if it were new: the
        fewer times the better. Images that are fetched come in turns, so that the networks need not wait for all.
        """
        coming: deque[Any] = deque()
        turns = cycle(self.decoders)
        at_once = _AT_ONCE if self.decoders or any(is_address(each.file) for each in entries) else len(entries)
        for start in range(0, len(entries), at_once):
            asked = entries[start : start + at_once], framings, self.work.source, self.work.limits
            if not self.decoders:
                yield from decode(*asked)  # pixels stay in memory that is shared already
                continue
            coming.append(next(turns).decode.remote(*asked))
            if len(coming) > max(_AHEAD, len(self.decoders)):
                yield from self.ray.get(coming.popleft())
        while coming:
            yield from self.ray.get(coming.popleft())


class Decoder:
    """An actor that decodes. A task would do, but its process ends when it idles, and to load torch takes seconds."""

    def decode(self, *arguments: Any) -> list[Framed | BrokenImageError]:
        """Fetch, decode and frame some images, as :func:`decode` does."""
        return list(decode(*arguments))


def decode(
    entries: Sequence[Entry], framings: tuple[Framing, Framing], source: str, said: str = ""
) -> Iterator[Framed | BrokenImageError]:
    """Fetch, decode and frame some images, within the limits that were ``said`` where the job was started.

    Raises:
        SourceError: this machine does not see the source. Without this, every image would count as vanished.
    """
    import torch  # noqa: F401  # pixels are resized much faster where it is loaded

    os.environ[VARIABLE] = said
    if not is_address(source) and not Path(source).exists():
        raise SourceError(
            f"{source} is not there on {socket.gethostname()}: every machine of a cluster must see the images at the "
            "same path; or give an address, as of a bucket"
        )
    with TemporaryDirectory(prefix="tdumpra-score-") as folder:
        yield from read_found(fetch(entries, Path(folder) / "files"), framings, workers=1)


def to_ipc(table: pa.Table) -> bytes:
    """Return a table as bytes for another process."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_ipc(data: bytes) -> pa.Table:
    """Return the table that :func:`to_ipc` was given."""
    import pyarrow as pa

    return pa.ipc.open_stream(data).read_all()
