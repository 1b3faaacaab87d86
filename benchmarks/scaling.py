"""What limits training on many processes: pieces measured here, put together for 1 to 64 processes.

python benchmarks/scaling.py --out docs/results/scaling.json

Every process computes the contrastive loss of the joined batch, so that the result does not depend on how many there
are (:func:`tdumpra.networks.train._joined_loss`). Its time grows with the square of the joined batch and is shared by
nobody; the network's time is shared by all; what is sent grows with the batch and with the weights. Measured are the
loss of each size, and forward and backward of a network for a view; the rest is arithmetic. Seconds are those of one
processor core, so that a busy machine does not change them much. Nothing is sent here while something is computed, as
sums of gradients are in truth: the shares are those of the worst case.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

from benchmarks.common import Row, within
from tdumpra.core.losses import joint_loss

PROCESSES = (1, 2, 4, 8, 16, 32, 64)
VIEWS = 128  # of 64 images, a process
WIDTH, CLASSES = 128, 7
BACKBONE, SIDE = "efficientnet_lite0", 224
ON_A_GPU = Path(__file__).resolve().parents[1] / "docs" / "results" / "h200" / "compiled-step.json"


class Links(NamedTuple):
    """What connects processes, in bytes a second each way."""

    name: str
    bytes_a_second: float


GPU_FLOPS = 6e12  # assumed of the loss: a tenth of the card's float32 rate
LINKS = (Links("10 Gb/s Ethernet", 1.25e9), Links("200 Gb/s InfiniBand", 25e9))


def run() -> list[Row]:
    """Measure, and say how much of a step of 64 processes is not the network's."""
    found = simulate(measure())
    last = found["cpu, batch grows"][-1]
    return [
        within("joined loss of 64 processes, of a step", last["loss_s"] / last["step_s"], 0.5, unit="", against="half")
    ]


def measure() -> dict[str, Any]:
    """Return processor seconds of the loss by joined views and of the network for a view, and what else is needed."""
    import timm

    torch.set_num_threads(1)
    loss = {VIEWS * p: _best(_loss_step(VIEWS * p), 3 if p < 32 else 1) for p in PROCESSES}
    network = timm.create_model(BACKBONE, num_classes=CLASSES)
    few = 8
    step = _best(_network_step(network, few), 2) / few
    return {
        "loss_s": loss,
        "network_s_a_view": step,
        "weights": sum(each.numel() for each in network.parameters()),
    }


def _best(function: Callable[[], None], repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def _loss_step(n: int) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    z = nn.functional.normalize(torch.randn(n, WIDTH, generator=generator), dim=1).requires_grad_()
    logits = torch.randn(n, CLASSES, generator=generator).requires_grad_()
    labels = torch.randint(CLASSES, (n,), generator=generator)

    def step() -> None:
        joint_loss(logits, z, labels).total.backward()

    return step


def _network_step(network: nn.Module, n: int) -> Callable[[], None]:
    images, labels = torch.randn(n, 3, SIDE, SIDE), torch.zeros(n, dtype=torch.int64)

    def step() -> None:
        network.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()

    return step


def simulate(measured: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """Put the pieces together, on cores and on GPUs, with a batch that grows with the processes or does not."""
    cores = {int(n): seconds for n, seconds in measured["loss_s"].items()}
    rows = {row["name"]: row for row in json.loads(ON_A_GPU.read_text(encoding="utf-8"))["rows"]}
    views_a_second = rows["efficientnet_b0, eager, full step"]["ours"]

    def on_gpu(n: int) -> float:
        """The loss: three products of n × n by the width."""
        return 6 * WIDTH * n * n / GPU_FLOPS

    growing = {p: VIEWS * p for p in PROCESSES}
    fixed = dict.fromkeys(PROCESSES, VIEWS)
    weights, network = measured["weights"], measured["network_s_a_view"]
    found = {}
    for name, batch in (("batch grows", growing), ("batch stays", fixed)):
        found[f"cpu, {name}"] = [
            _step(p, views, network * views / p, cores[views], weights, LINKS[0].bytes_a_second)
            for p, views in batch.items()
        ]
        for link in LINKS:
            found[f"gpu, {name}, {link.name}"] = [
                _step(p, views, views / p / views_a_second, on_gpu(views), weights, link.bytes_a_second)
                for p, views in batch.items()
            ]
    return found


def _step(p: int, views: int, network_s: float, loss_s: float, weights: int, speed: float) -> dict[str, float]:
    """One step of ``p`` processes: a ring sends (p - 1)/p of a gather, and twice that of a sum of gradients."""
    share = (p - 1) / p
    gathered = 2 * share * views * 4 * (WIDTH + CLASSES)  # forward, and its gradient back
    summed = 2 * share * 4 * weights
    sent_s = (gathered + summed) / speed
    step_s = network_s + loss_s + sent_s
    return {
        "processes": p,
        "views": views,
        "network_s": network_s,
        "loss_s": loss_s,
        "gathered_bytes": gathered,
        "gradient_bytes": summed,
        "sent_s": sent_s,
        "step_s": step_s,
        "efficiency": network_s / step_s,  # of the time, what would be spent alone on as many views
    }


def main() -> None:
    """Measure and simulate, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    asked = parser.parse_args()
    measured = measure()
    document = {"measured": measured, "simulated": simulate(measured)}
    asked.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
