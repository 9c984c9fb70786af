"""Runs the Trainer's steps on microbatches. The Trainer's own code handles each microbatch as a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from smdp import pipeline as schedules
from smdp._shown import counted
from smdp.torch import MixedPrecision, PipelinedModule
from smdp.torch.plugin_support import batch_size, cut


def train_step(
    trainer: Trainer, pipe: PipelinedModule, run: Callable[..., Tensor], inputs: Any, items: Any
) -> Tensor:
    """Runs forward and backward of a batch.

    Args:
        trainer: The Trainer.
        pipe: The pipelined model.
        run: The Trainer's training_step().
        inputs: The batch, the same on all ranks of a pipeline.
        items: The number of items by which losses are divided, or None.

    Returns:
        The loss that the Trainer would return for the whole batch.
    """
    parts = microbatches(pipe, inputs)
    share = _share(trainer, pipe, items, len(parts))
    scaler = trainer.accelerator.scaler
    optimizer = trainer.optimizer.optimizer  # inside of Accelerate's
    if isinstance(optimizer, MixedPrecision):
        optimizer.forget_gradients()  # on every rank, because only the last stage scales a loss
        scaler = optimizer

    def program(part: Any) -> None:
        # The step reports the loss that was passed to backward(), and all ranks get the mean.
        run(pipe, part, share)

    def scaled(loss: Tensor) -> Tensor:
        mean = loss / len(parts)
        return mean if scaler is None else scaler.scale(mean)

    with _in_training(pipe), _counted(trainer, share):
        loss, _ = pipe.run_step(program, parts, is_training=True, scale=scaled, mean_loss=True)
    return loss


def predict_step(
    trainer: Trainer, pipe: PipelinedModule, run: Callable[..., Any], inputs: Any, loss_only: bool
) -> tuple[Tensor | None, Any, Any]:
    """Runs the forward of a batch with the Trainer's prediction_step().

    The arguments are those of train_step(), and `loss_only` makes the Trainer return no logits and labels.

    Returns:
        Loss, logits and labels of the whole batch.
    """
    prepared: Any = trainer._prepare_inputs(inputs)
    items = trainer._get_num_items_in_batch([prepared], trainer.args.device)
    parts = microbatches(pipe, prepared)
    share = _share(trainer, pipe, items, len(parts))

    def loss_program(part: Any) -> Any:
        return run(pipe, part, True)

    def full_program(part: Any) -> Any:
        return run(pipe, part, False)

    with _counted(trainer, share):
        results = pipe.run_step(loss_program if loss_only else full_program, parts, is_training=False)
    losses, logits, labels = zip(*results, strict=True)
    return (
        None if losses[0] is None else torch.stack(losses).mean(),
        _joined(logits),
        _joined(labels),
    )


def microbatches(pipe: PipelinedModule, inputs: Any) -> list[Any]:
    """Divides a batch into the schedule's number of microbatches, or a smaller last batch into fewer.

    Raises:
        ValueError: The schedule supports no number of microbatches that divides the batch.
    """
    batch = dict(inputs)
    size = batch_size(batch)
    own = pipe.schedule
    for count in range(min(own.microbatches, size), 0, -1):
        if size % count == 0 and (count == own.microbatches or _takes(own, count)):
            return cut(batch, count)
    raise ValueError(
        f"[smdp] a batch of {counted(size, 'row')} cannot be divided for schedule {own.name!r} of"
        f" {counted(own.microbatches, 'microbatch')}. Use a multiple of {counted(own.microbatches, 'row')}."
        " To drop a smaller last batch, set dataloader_drop_last=True."
    )


def _share(trainer: Trainer, pipe: PipelinedModule, items: Any, parts: int) -> Any:
    """Returns the number of items by which the loss of a microbatch is divided.

    With it, the loss of a batch is the mean over its microbatches, even if the model divides its loss by
    something else, and the gradient is the mean over replicas.
    """
    if items is None:
        return None
    return items / (parts * (pipe.mesh.replicas if trainer.args.average_tokens_across_devices else 1))


@contextlib.contextmanager
def _in_training(pipe: PipelinedModule) -> Iterator[None]:
    """Sets training mode once, because the Trainer would visit all modules for every microbatch."""
    pipe.train()
    pipe.train = lambda mode=True: pipe  # type: ignore[method-assign]
    try:
        yield
    finally:
        del pipe.train


@contextlib.contextmanager
def _counted(trainer: Trainer, share: Any) -> Iterator[None]:
    """Keeps the Trainer from counting a microbatch's items and multiplying its loss by the replicas."""
    trainer._get_num_items_in_batch = lambda *_: share
    trainer.get_tp_size = lambda: trainer.accelerator.num_processes
    try:
        yield
    finally:
        del trainer._get_num_items_in_batch, trainer.get_tp_size


def _takes(own: schedules.Schedule, count: int) -> bool:
    try:
        schedules.generate(
            own.name, stages=own.ranks, microbatches=count, virtual_stages=own.stages // own.ranks
        )
    except ValueError:
        return False
    return True


def _joined(parts: Any) -> Any:
    """Returns the parts of the microbatches joined to the structure of the whole batch."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts) if first.dim() > 0 else torch.stack(parts).float().mean().to(first.dtype)
    if isinstance(first, (list, tuple)):
        return type(first)(_joined(each) for each in zip(*parts, strict=True))
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts]) for key in first}
    return first
