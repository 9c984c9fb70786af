"""The Trainer's steps on microbatches: each runs what the Trainer would do with a whole batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from smdp import pipeline as schedules
from smdp._shown import counted
from smdp.torch import PipelinedModule
from smdp.torch.plugin_support import batch_size, cut


def train_step(
    trainer: Trainer, pipe: PipelinedModule, run: Callable[..., Tensor], inputs: Any, items: Any
) -> Tensor:
    """Run forward and backward of a batch.

    Args:
        trainer: Whose step it is.
        pipe: The model.
        run: The Trainer's training_step().
        inputs: The batch, the same on all ranks of a pipeline.
        items: How many items losses are divided by, or None.

    Returns:
        The loss, as the Trainer gives it for the whole batch.
    """
    parts = microbatches(pipe, inputs)
    share = _share(trainer, pipe, items, len(parts))
    scaler = trainer.accelerator.scaler

    def program(part: Any) -> None:
        # It gives the loss that backward() was told of, which reaches all ranks as one mean.
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
    """Run the forward of a batch; as train_step(), with the Trainer's prediction_step().

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
    """Cut a batch into as many parts as the schedule has, or, a smaller last one, into fewer.

    Raises:
        ValueError: The schedule takes no number of parts that divides the batch.
    """
    batch = dict(inputs)
    size = batch_size(batch)
    own = pipe.schedule
    for count in range(min(own.microbatches, size), 0, -1):
        if size % count == 0 and (count == own.microbatches or _takes(own, count)):
            return cut(batch, count)
    raise ValueError(
        f"[smdp] a batch of {counted(size, 'row')} cannot be cut for schedule {own.name!r} of"
        f" {counted(own.microbatches, 'microbatch')}; allowed: a multiple of"
        f" {counted(own.microbatches, 'row')}. dataloader_drop_last=True leaves out a smaller last batch."
    )


def _share(trainer: Trainer, pipe: PipelinedModule, items: Any, parts: int) -> Any:
    """Give the number of items of a part, by which its loss is divided.

    The loss of a batch is then the mean over its parts, also where a loss has been divided by nothing or by
    something else; and the gradient the mean over replicas.
    """
    if items is None:
        return None
    return items / (parts * (pipe.mesh.replicas if trainer.args.average_tokens_across_devices else 1))


@contextlib.contextmanager
def _in_training(pipe: PipelinedModule) -> Iterator[None]:
    """Switch training mode once: the Trainer would walk through all modules for every part."""
    pipe.train()
    pipe.train = lambda mode=True: pipe  # type: ignore[method-assign]
    try:
        yield
    finally:
        del pipe.train


@contextlib.contextmanager
def _counted(trainer: Trainer, share: Any) -> Iterator[None]:
    """Let the Trainer neither count the items of a part, nor multiply its loss by the number of replicas."""
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
    """Give the structure of the whole batch."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts) if first.dim() > 0 else torch.stack(parts).float().mean().to(first.dtype)
    if isinstance(first, (list, tuple)):
        return type(first)(_joined(each) for each in zip(*parts, strict=True))
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts]) for key in first}
    return first
