"""What training arguments mean for a model whose parameters are sharded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import TrainingArguments
from transformers.training_args import ParallelMode


def check_arguments(args: TrainingArguments) -> None:
    """Refuses training arguments that a model in shards does not support.

    Raises:
        ValueError: An argument is not supported. The message names all of them, with the reason and the fix.
    """
    refused = [f"{name}: {reason}" for name, is_set, reason in _contradictions(args) if is_set]
    if refused:
        raise ValueError(
            "[smdp] DataParallel(shard_parameters=...) does not support these training arguments. "
            + " ".join(refused)
        )


def options_of(args: TrainingArguments) -> dict[str, Any]:
    """Returns the arguments of ShardedDataParallel that training arguments for DDP ask for."""
    found = {}
    if args.ddp_find_unused_parameters:
        found["unused_parameters"] = True
    if args.ddp_broadcast_buffers is not None:
        found["broadcast_buffers"] = args.ddp_broadcast_buffers
    return found


def _contradictions(args: Any) -> Iterator[tuple[str, bool, str]]:
    yield (
        "auto_find_batch_size",
        args.auto_find_batch_size,
        "shards stay with the model that was wrapped first. Set per_device_train_batch_size.",
    )
    yield (
        "fp16",
        args.fp16,
        "ranks would scale the loss by what they find in their own shards. Use bf16=True.",
    )
    yield (
        "torch_compile",
        args.torch_compile,
        "graphs of the model would use parameters that have been released. Remove it.",
    )
    for name in ("fp16_full_eval", "bf16_full_eval"):
        yield (name, getattr(args, name), "shards keep their dtype. Use bf16=True or precision='bf16'.")
    yield (
        "accelerator_config.even_batches=False",
        args.accelerator_config.even_batches is False,
        "ranks without a batch could not gather parameters for the others. Remove it.",
    )
    yield (
        "ddp_bucket_cap_mb",
        args.ddp_bucket_cap_mb is not None,
        "gradients are sent unit by unit, not in buckets. Remove it.",
    )
    yield (
        "ddp_backend='smddp'",
        args.parallel_mode == ParallelMode.SAGEMAKER_DATA_PARALLEL,
        "the Trainer then wraps the model in DDP itself. Use ddp_backend='smdp'.",
    )
    yield (
        "ddp_static_graph",
        bool(args.ddp_static_graph),
        "it is not needed. Remove it.",
    )
