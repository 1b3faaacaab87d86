"""Joint training: cross-entropy and supervised contrastive loss on two views, followed by an EMA teacher.

:func:`train` is the whole loop. A run that was killed resumes from its last checkpoint. On a CPU with deterministic
algorithms it ends with exactly the weights of an uninterrupted run.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from tdumpra.core import metrics
from tdumpra.core.ema import EmaTeacher
from tdumpra.data.batches.pipeline import Pipeline
from tdumpra.data.batches.prefetch import prefetch
from tdumpra.data.batches.sampling import BatchPlan
from tdumpra.errors import StopRequestedError
from tdumpra.networks.checkpoint import Checkpointer, Progress, TrainingFiles, training_identity
from tdumpra.networks.encode import encode
from tdumpra.networks.progress import Screen
from tdumpra.networks.settings import TrainConfig
from tdumpra.networks.step import joined_loss, make_step
from tdumpra.networks.watch import FiniteWatch, stop_signals
from tdumpra.networks.watch import TrainingError as TrainingError

Array = np.ndarray


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Task:
    """The images, by number, and their labels; which of them are for training and which for validation."""

    pipeline: Pipeline
    labels: Tensor  # of every image in the store, on the device
    train: Array
    validation: Array  # empty where they are among the training images
    ids: tuple[str, ...]
    n_classes: int  # including those without a training image
    identity: dict[str, str]  # fingerprints of data, split, preprocessing and network
    epochs: int | None = None  # end after so many, on the learning rates of all; None: after all


def make_fabric(config: TrainConfig) -> Fabric:
    """Set up the devices that ``config`` asks for."""
    if config.accelerator == "cuda" and not torch.cuda.is_available():
        raise TrainingError('train.accelerator is "cuda", and PyTorch sees no CUDA device here: use "auto" or "cpu"')
    accelerator = config.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if accelerator == "cuda" and config.devices > torch.cuda.device_count():
        raise TrainingError(f"train.devices is {config.devices}, and there are {torch.cuda.device_count()} here")
    if accelerator == "cpu" and config.precision == "16-mixed":
        raise TrainingError('16-bit floats with a gradient scaler need a GPU: use "bf16-mixed" or "32-true" on a CPU')
    many = config.devices * config.nodes > 1
    if accelerator == "cpu" and many and config.sync_batchnorm:
        raise TrainingError("train.sync_batchnorm needs GPUs: PyTorch has no synchronised BatchNorm for CPU processes")
    return Fabric(
        accelerator=accelerator,
        devices=config.devices,
        num_nodes=config.nodes,
        precision=config.precision,
        strategy="ddp" if many else "auto",
    )


def train(
    network: nn.Module,
    task: Task,
    config: TrainConfig,
    folder: TrainingFiles,
    *,
    seed: int,
    fabric: Fabric,
    screen: Screen,
) -> Progress:
    """Train ``network`` in place, from the last checkpoint if there is one; return where training stands."""
    plan = _plan(config, task, seed, fabric)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
        torch.use_deterministic_algorithms(True)
    if config.channels_last:
        network.to(memory_format=torch.channels_last)
    if config.sync_batchnorm and fabric.world_size > 1:
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    network.to(fabric.device)
    teacher = EmaTeacher(network, config.ema_momentum, config.ema_warmup).to(fabric.device)
    optimizer: Optimizer = AdamW(
        network.parameters(),
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        # a fused optimiser unscales float16 gradients itself, too late for them to be clipped
        fused=fabric.device.type == "cuda" and not (config.precision == "16-mixed" and config.clip_norm is not None),
    )
    torch.manual_seed(seed * fabric.world_size + fabric.global_rank)  # dropout differs between processes
    epochs = task.epochs or config.epochs
    identity = {**task.identity, **training_identity(config, seed, task.epochs)}
    checkpointer = Checkpointer(network, teacher, optimizer, identity, folder, fabric, config.checkpoint_minutes)
    progress = checkpointer.restore()
    if fabric.is_global_zero:
        folder.rewind_metrics(progress.step, progress.epoch)
    if progress.finished:
        return progress
    steps_per_epoch = math.ceil(plan.n_batches / config.accumulate)
    objective = partial(
        joined_loss, config=config, class_weights=_class_weights(config, task, fabric.device), fabric=fabric
    )
    step, way = make_step(
        network, teacher, optimizer, objective, config, fabric,
        image_size=task.pipeline.evaluation.size, steps=epochs * steps_per_epoch,
    )  # fmt: skip
    screen.takes_steps(folder, progress, way)
    watch = FiniteWatch(plan, task.ids, folder)
    learning_rate = learning_rate_at(progress.step, steps_per_epoch, config)

    with screen.training(epochs, plan.n_batches, progress), stop_signals() as stop:
        for epoch in range(progress.epoch, epochs):
            step.student.train()
            batches = task.pipeline.train(plan, epoch, start=progress.batch, compiled=way.captured and way.compiled)
            for batch in prefetch(batches, fabric.device):
                labels = task.labels[batch.numbers].repeat(len(batch.views))
                views = batch.views.flatten(0, 1)
                if config.channels_last:
                    views = views.contiguous(memory_format=torch.channels_last)
                in_step = batches_in_step(progress.batch, plan.n_batches, config.accumulate)
                last_of_step = (progress.batch + 1) % config.accumulate == 0 or progress.batch + 1 == plan.n_batches
                loss = step.gradients(views, labels, in_step=in_step, last=last_of_step)
                watch.look(loss.total, progress)
                progress.batch += 1
                screen.advance(progress)
                if last_of_step:
                    learning_rate = learning_rate_at(progress.step, steps_per_epoch, config)
                    step.move(learning_rate)
                    progress.step += 1
                    if progress.step % config.log_every == 0:
                        watch.refuse_non_finite(learning_rate)
                        screen.log(folder, progress, loss, learning_rate, len(views) * fabric.world_size, fabric)
                    # agreeing on a stop or a save makes processes wait for each other, so do it only now and then
                    if fabric.world_size == 1 or progress.step % config.log_every == 0:
                        stopping = stop.is_set(fabric)
                        if stopping or checkpointer.is_due():
                            watch.refuse_non_finite(learning_rate, network)
                            checkpointer.save(progress)
                        if stopping:
                            raise StopRequestedError(
                                f"stopped after step {progress.step}; the same command goes on from there"
                            )
            watch.refuse_non_finite(learning_rate, network)
            progress.epoch, progress.batch = epoch + 1, 0
            better = False
            if len(task.validation):
                scores = _validation_scores(network, teacher, task, config, fabric)
                better = progress.is_best(scores["student"]["nll"])
                if fabric.is_global_zero:
                    folder.append_metrics({"step": progress.step, "epoch": progress.epoch, "validation": scores})
                screen.validated(progress, scores)
            patience_ended = config.early_stop is not None and progress.epochs_since_best >= config.early_stop
            progress.finished = progress.epoch == epochs or patience_ended
            if better:  # before "last": a run killed in between would know of the best loss and never save its weights
                checkpointer.save(progress, "best")
            if progress.epoch % config.checkpoint_every == 0 or progress.finished:
                checkpointer.save(progress)
            if progress.finished:
                break
    return progress


def batches_in_step(batch: int, n_batches: int, accumulate: int) -> int:
    """Return how many batches make up the step of ``batch``; the last step of an epoch may have fewer."""
    return min(accumulate, n_batches - batch // accumulate * accumulate)


def learning_rate_at(step: int, steps_per_epoch: int, config: TrainConfig) -> float:
    """Return the learning rate: linear warm-up and then a half cosine to zero, or constant."""
    warmup = config.warmup_epochs * steps_per_epoch if config.schedule == "cosine" else 0
    if step < warmup:
        return config.learning_rate * (step + 1) / (warmup + 1)
    if config.schedule == "constant":
        return config.learning_rate
    share = (step - warmup) / max(1, config.epochs * steps_per_epoch - warmup)
    return config.learning_rate * (1 + math.cos(math.pi * min(1.0, share))) / 2


def _plan(config: TrainConfig, task: Task, seed: int, fabric: Fabric) -> BatchPlan:
    if config.batch_size > len(task.train):
        raise TrainingError(
            f"train.batch_size is {config.batch_size}, and there are {len(task.train)} training images: lower it"
        )
    return BatchPlan(
        numbers=task.train,
        batch_size=config.batch_size,
        seed=seed,
        balanced=config.sampler == "balanced",
        labels=task.labels.cpu().numpy()[task.train],
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )


def _class_weights(config: TrainConfig, task: Task, device: torch.device) -> Tensor | None:
    """Return inverse class shares, scaled so that the average training image has weight one."""
    if config.class_weights == "none":
        return None
    counts = torch.bincount(task.labels.cpu()[torch.from_numpy(task.train)], minlength=task.n_classes).float()
    present = int((counts > 0).sum())
    return (counts.sum() / (present * counts.clamp(min=1))).to(device)  # a class without images weights none


def _validation_scores(
    network: nn.Module, teacher: EmaTeacher, task: Task, config: TrainConfig, fabric: Fabric
) -> dict[str, dict[str, float]]:
    encodings = encode(
        [network, teacher.module], task.pipeline, task.validation, batch_size=2 * config.batch_size, fabric=fabric
    )
    y = task.labels.cpu().numpy()[task.validation]
    posteriors = [encoding.logits.double().softmax(1).numpy() for encoding in encodings]
    return {
        name: metrics.classification_metrics(p, y) for name, p in zip(("student", "teacher"), posteriors, strict=True)
    }
