"""Record what a network does on a GPU as a CUDA graph, which the host launches at once in place of kernel by kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from tdumpra.networks.checkpoint import generator_states, python_generators, set_generators

T = TypeVar("T")

_WARM_UP = 3  # passes before the recording, in which libraries choose kernels and a compiler compiles


def record(compute: Callable[[], T], network: nn.Module, device: torch.device) -> tuple[Any, T]:
    """Return the graph of a computation of ``network``, and what it gives: each replay writes to the same places.

    It reads from fixed places too. Recording leaves no trace: buffers and generators are put back. Random numbers come
    from the device's default generator, whose position each replay reads and advances. For some milliseconds no other
    thread should draw random numbers, or wait for the GPU.

    Raises:
        RuntimeError: a graph cannot hold it, or would repeat for ever what the host did once.
    """
    with torch.cuda.device(device):  # else generators and streams are those of another GPU
        return _record(compute, network, device)


def _record(compute: Callable[[], T], network: nn.Module, device: torch.device) -> tuple[Any, T]:
    graph, buffers = torch.cuda.CUDAGraph(), dict(network.named_buffers())
    kept = {name: buffer.clone() for name, buffer in buffers.items()}
    generators = generator_states(), python_generators()
    on_device = torch.cuda.default_generators[device.index or 0]
    spare = on_device.clone_state()
    here, beside = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    beside.wait_stream(here)
    plain = PlainState(network)
    try:
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UP):
                compute()
            with _waiting_is_an_error():
                compute()
        if _host_state() != _host_state(generators):
            raise RuntimeError("the network draws random numbers on the host")
        if plain.has_changed():
            raise RuntimeError("the network keeps count on the host")
        if any(buffers.get(name) is not buffer for name, buffer in network.named_buffers()):
            raise RuntimeError("the network replaces its buffers")
        with torch.cuda.graph(graph, stream=beside, capture_error_mode="thread_local"):
            found = compute()
    except BaseException:
        on_device.graphsafe_set_state(spare)  # a recording that fails leaves the generator waiting for its end
        raise
    finally:
        here.wait_stream(beside)
        set_generators(*generators)
        plain.put_back()
        for name, buffer in network.named_buffers():
            buffer.copy_(kept[name])
    return graph, found


class PlainState:
    """Numbers and words that a network's modules hold beside tensors: a graph would keep them as they are for ever."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self.before = network, self._now(network)

    def has_changed(self) -> bool:
        """Return whether any of them is another now, or new."""
        return self._now(self.network) != self.before

    def put_back(self) -> None:
        """Let all be as they were."""
        for module, name in self._now(self.network).keys() - self.before.keys():
            delattr(self.network.get_submodule(module), name)
        for (module, name), value in self.before.items():
            setattr(self.network.get_submodule(module), name, value)

    @staticmethod
    def _now(network: nn.Module) -> dict[tuple[str, str], Any]:
        modules = network.named_modules()
        held = ((module, *each) for module, own in modules for each in vars(own).items())
        return {(module, name): value for module, name, value in held if isinstance(value, int | float | str)}


class _Generators(NamedTuple):
    """The states of the generators on the host, in a form that can be compared."""

    torch: list[int]
    python: dict[str, Any]


def _host_state(generators: tuple[dict[str, Tensor], dict[str, Any]] | None = None) -> _Generators:
    """Return the generators' states now, or as they were kept."""
    states, python = generators or (generator_states(), python_generators())
    return _Generators(states["torch"].tolist(), python)


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """Refuse operations that make the host wait for the GPU: no graph can hold one, and a recording would end badly."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode")  # says that it finds most, not all
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
