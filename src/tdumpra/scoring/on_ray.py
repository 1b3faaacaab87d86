"""Score the parts of an archive on a Ray cluster: the same folder as on one machine, and the same bits in it.

Ray Data hands parts to actors on CPUs or GPUs, which hold the networks, and starts actors anew where they die or their
machine does; a part that was open then goes through an actor again. Beside GPUs other actors fetch and decode images on
CPUs, ahead of the networks; an actor on a CPU does so itself, and no pixel is sent. An actor sees a part as a whole,
since the last bits of a row depend on the batch that it is in. The process that was started writes all parts, and
nobody else does.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from tdumpra.data.images.workers import available_cores
from tdumpra.errors import MissingExtraError, TdumpraError
from tdumpra.scoring.folder import Part, ScoreFolder
from tdumpra.scoring.ray_worker import Networks, Share, Work, from_ipc
from tdumpra.scoring.score import PartDone

if TYPE_CHECKING:
    import pyarrow as pa

_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_MOST_DECODERS = 16  # for one GPU
LOST = "the machine by which this command joined the cluster was lost: run the same command again"
_MOST_DEATHS = 5  # of actors in the middle of one part, before the part is to blame


def import_ray(address: str | None) -> Any:
    """Return the module, set up for a cluster on this machine or for the one at ``address``.

    Raises:
        MissingExtraError: Ray is not installed.
        ValueError: a cluster is to be joined without a token. Whoever reaches such a cluster can run code on it.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if _is_local(address):
        os.environ[_MODE] = "token"
        os.environ.setdefault(_TOKEN, secrets.token_hex(32))  # else Ray writes one into the user's home
    elif os.environ.get(_MODE) != "token":
        raise ValueError(
            f"{address} is a cluster that others can reach: start it with {_MODE}=token, and set {_MODE}=token and "
            f"{_TOKEN} here too"
        )
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("Ray", "ray", "--engine ray") from error
    return ray


def _is_local(address: str | None) -> bool:
    return address is None or address == "local"


def _join(address: str | None) -> Any:
    """Start Ray on this machine, or join the cluster at ``address``; return Ray."""
    ray = import_ray(address)
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    if _is_local(address):
        options |= {"address": "local", "num_cpus": available_cores(), "include_dashboard": False}
    try:
        ray.init(**options)
    except Exception as error:  # each step of connecting has its own
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise TdumpraError(
            f"no Ray cluster lets us in at {options['address']} ({reason}): see that it is up, and that {_TOKEN} is "
            "its own"
        ) from error
    return ray


def score_on_ray(
    folder: ScoreFolder,
    parts: Sequence[Part],
    work: Work,
    *,
    address: str | None,
    device: str | None = None,
    decoders: int | None = None,
    on_image: Callable[[], object] = lambda: None,
    on_part: Callable[[PartDone], object] = lambda done: None,
) -> None:
    """Score the parts that are not finished yet, with ``decoders`` beside each network or the usual number."""
    todo = {part.number: part for part in folder.unfinished(parts)}
    if not todo:
        return
    ray = _join(address)
    try:
        if not _is_local(address):
            _refuse_open_cluster(ray, address)
        with redirect_stdout(sys.stderr):  # where Ray may tell that somebody died
            for number, table in _results(ray, folder, list(todo.values()), work, _share(ray, device, decoders)):
                part = todo[number]
                folder.write_part(part, table)
                for _ in range(part.start, part.stop):
                    on_image()
                on_part(PartDone(part, len(table) - table["error"].null_count))
    except ray.exceptions.RayError as error:
        raise _in_a_sentence(ray, error) from error
    finally:
        ray.shutdown()


def _refuse_open_cluster(ray: Any, address: str | None) -> None:
    """Refuse a cluster that would also do without the token."""
    if ray.get(ray.remote(num_cpus=0)(_mode).remote()) != "token":
        raise ValueError(f"the cluster at {address} asks for no token: start its machines with {_MODE}=token")


def _mode() -> str | None:
    """Return how the machine that this runs on asks who is there."""
    return os.environ.get(_MODE)


def _results(
    ray: Any, folder: ScoreFolder, todo: Sequence[Part], work: Work, share: Share
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the number and the rows of each part, as they come."""
    from ray import data

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what goes wrong is told in a sentence
    context = data.DataContext.get_current()
    context.enable_progress_bars = False  # there is one of ours
    context.raise_original_map_exception = True  # which is for the user
    room = int(ray.cluster_resources().get("GPU" if share.gpus else "CPU", 1))
    items = [{"number": part.number, "entries": json.dumps(folder.entries_of(part))} for part in todo]
    scored = data.from_items(items, override_num_blocks=len(items)).map_batches(
        Networks, fn_constructor_args=(ray.put(work), share), batch_size=1, batch_format="pyarrow",
        compute=data.ActorPoolStrategy(size=max(1, min(room, len(todo))), max_tasks_in_flight_per_actor=1),
        num_cpus=share.cpus, num_gpus=share.gpus, max_task_retries=_MOST_DEATHS,
    )  # fmt: skip
    for row in scored.iter_rows():
        yield row["number"], from_ipc(row["rows"])


def _share(ray: Any, device: str | None, decoders: int | None) -> Share:
    """Return what the networks take of a machine, and what is left for decoding."""
    has = ray.cluster_resources()
    gpus = int(has.get("GPU", 0))
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"on a cluster --device is cpu or cuda, and Ray says which one, not {device!r}")
    if device == "cuda" and not gpus:
        raise ValueError("--device is cuda, and no machine of the cluster has a GPU that Ray knows of")
    if gpus and device != "cpu":
        many = decoders or max(1, min(_MOST_DECODERS, int(has.get("CPU", 1)) // gpus))
        return Share(cpus=0.0, gpus=1, decoders=many, decoding=0.5)  # so that they find room where machines are lost
    if decoders:
        return Share(cpus=0.8, gpus=0, decoders=decoders, decoding=0.2 / decoders)  # a core for all of them
    return Share(cpus=1.0, gpus=0, decoders=0, decoding=0.0)


def _in_a_sentence(ray: Any, error: BaseException) -> Exception:
    """Return what a worker raised, if it was for the user; else what became of it."""
    cause: Any = error
    while isinstance(cause, ray.exceptions.RayTaskError):  # which says what a task or an actor raised
        cause = cause.cause
    if isinstance(cause, TdumpraError | ValueError | TypeError):
        return cause
    if isinstance(cause, ray.exceptions.LocalRayletDiedError):
        return TdumpraError(LOST)
    if isinstance(cause, ray.exceptions.RayError):
        return TdumpraError(
            f"workers died over the same part {_MOST_DEATHS} times ({type(cause).__name__}): run the same command "
            "again; if their machines lack memory, take a smaller --part-size in a new folder"
        )
    return TdumpraError(f"a worker failed: {type(cause).__name__}: {cause}")
