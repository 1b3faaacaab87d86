"""Passes through a network: what one is, and how it is started.

A network is anything that maps framed images to an :class:`~tdumpra.networks.build.Encoding` (:class:`Pass`), so that
another runtime can stand in PyTorch's place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from tdumpra.data.images.framing import EvalTransform
from tdumpra.lanes import Lanes
from tdumpra.networks.build import Encoding, arithmetic
from tdumpra.networks.capture import record
from tdumpra.networks.settings import Precision

log = logging.getLogger(__name__)

_RECORD_AFTER = 4  # full batches: recording takes as long as some of them
_MOST_LANES = 8  # each holds the activations of a batch
_SETTING_THREADS = threading.Lock()


class Pass(Protocol):
    """One network, ready to run: framed images on the engine's device in, logits and embeddings out, row by row."""

    def __call__(self, framed: UInt8[Tensor, "n h w 3"], /) -> Encoding:
        """Return the encoding of each image, on the same device."""


class NetworkPass(NamedTuple):
    """A PyTorch network with the preprocessing that it expects and the precision in which it computes."""

    network: nn.Module
    transform: EvalTransform
    precision: Precision | None  # None: as the caller has it
    channels_last: bool = False  # a layout that is faster on a GPU, once its convolutions are planned

    def __call__(self, framed: UInt8[Tensor, "n h w 3"]) -> Encoding:
        """Transform framed images where they are, and run the network."""
        return self.encode(self.transform(framed))

    def encode(self, images: Float[Tensor, "n 3 s s"]) -> Encoding:
        """Run the network on transformed images."""
        if self.channels_last:
            images = images.to(memory_format=torch.channels_last)
        elif images.is_cuda:  # which plans convolutions with the channels last for seconds, for each new batch size
            images = images.contiguous()
        with nullcontext() if self.precision is None else arithmetic(self.precision, images.device):
            encoding: Encoding = self.network(images)
        return encoding


class RecordedPass:
    """A pass on a GPU that records itself once there have been some full batches, and then replays them.

    To launch hundreds of kernels one by one takes the host about as long as the GPU takes to run them. What it gives
    for a full batch is overwritten by the next one: copy it right behind the pass, on the same stream. A network with
    hooks is not recorded, for a replay calls none.
    """

    def __init__(self, plain: NetworkPass, size: int) -> None:
        self.plain, self.size = plain, size  # rows of a full batch
        self._before = _RECORD_AFTER
        self._graph: Any = None  # torch.cuda.CUDAGraph, once there is one
        self._framed, self._encoding = torch.empty(0), Encoding(*[torch.empty(0)] * 3)

    def __call__(self, framed: UInt8[Tensor, "n h w 3"]) -> Encoding:
        """Replay the recording for a full batch; any other, and the first ones, go through the network as they are."""
        if len(framed) == self.size:
            self._before -= 1
            if self._before == 0:
                self._record(framed)
            if self._graph is not None and not _has_hooks(self.plain.network):
                self._framed.copy_(framed)
                self._graph.replay()
                return self._encoding
        return self.plain(framed)

    def _record(self, framed: Tensor) -> None:
        self._framed = framed.clone()
        try:
            self._graph, self._encoding = record(lambda: self.plain(self._framed), self.plain.network, framed.device)
        except Exception as error:  # whatever no graph can hold, or has no memory for one, still runs without
            log.debug("a network is run without a recording: %s", error)


def _has_hooks(network: nn.Module) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


class Recordings:
    """Recorded passes, each in the hands of one engine at a time; the last of each network is kept for the next."""

    def __init__(self) -> None:
        self._spare: list[RecordedPass] = []

    @contextmanager
    def lent(self, plain: NetworkPass, size: int) -> Iterator[RecordedPass]:
        """Lend the pass of a network for full batches of ``size``, of before if nobody else has it."""
        lent = self._take(plain, size) or RecordedPass(plain, size)
        try:
            yield lent
        finally:
            self._spare = [*(each for each in self._spare if each.plain != plain), lent]

    def __reduce__(self) -> tuple[type[Recordings], tuple[()]]:
        """Travel without recordings: they belong to a GPU."""
        return Recordings, ()

    def _take(self, plain: NetworkPass, size: int) -> RecordedPass | None:
        for each in list(self._spare):
            if (each.plain, each.size) == (plain, size):
                with suppress(ValueError):  # another thread has just taken it
                    self._spare.remove(each)
                    return each
        return None


class Started(Protocol):
    """A pass that may be under way."""

    def done(self) -> bool:
        """Return whether its result is there."""

    def result(self) -> Encoding:
        """Wait for the result, and return it."""


class Launched(NamedTuple):
    """A pass whose result is there when an event of the GPU has come; without one, now."""

    encoding: Encoding
    event: Any  # torch.cuda.Event or None; its type stubs lack the parts

    def done(self) -> bool:
        """Return whether the event has come."""
        return self.event is None or bool(self.event.query())

    def result(self) -> Encoding:
        """Wait for the event, and return the encoding."""
        if self.event is not None:
            self.event.synchronize()
        return self.encoding


def most_lanes() -> int:
    """Return how many passes to run at a time on a CPU: threads that share one pass wait for each other."""
    return min(torch.get_num_threads(), _MOST_LANES)


def open_lanes(count: int, *, threads: int | None = None) -> Lanes:
    """Return lanes that share the threads which PyTorch has here, or have so many of them each."""
    with _SETTING_THREADS:
        own = torch.get_num_threads()
        try:
            return Lanes(count, partial(_have_threads, threads or max(1, own // count)))
        finally:
            torch.set_num_threads(own)  # threads that start later would otherwise have the lanes' number


def _have_threads(number: int) -> None:
    """Give this thread so many helpers."""
    torch.get_num_threads()  # which the first look sets to the program's number, now or after the next line
    torch.set_num_threads(number)


def check_device(asked: str | torch.device) -> torch.device:
    """Return a device that can compute here; PyTorch knows the names of many that cannot."""
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise ValueError(f"device must be 'cpu', 'cuda' or the like, not {asked!r}") from error
    try:
        torch.empty(0, device=device)
    except Exception as error:  # each backend that is missing raises its own
        raise ValueError(f"PyTorch cannot compute on the device {str(device)!r} here: use 'cpu'") from error
    if device.type == "meta":  # shapes without numbers
        raise ValueError("the device 'meta' holds no numbers: use 'cpu'")
    return device
