"""Checks for training arguments that a pipelined model does not support."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import TrainingArguments
from transformers.debug_utils import DebugOption
from transformers.training_args import OptimizerNames

from smdp._shown import counted
from smdp.transformers.other_parallelism import asked_for

_FUSED_WITH_BACKWARD = (
    OptimizerNames.LOMO,
    OptimizerNames.ADALOMO,
    OptimizerNames.GALORE_ADAMW_LAYERWISE,
    OptimizerNames.GALORE_ADAMW_8BIT_LAYERWISE,
    OptimizerNames.GALORE_ADAFACTOR_LAYERWISE,
    OptimizerNames.APOLLO_ADAMW_LAYERWISE,
)


def check_arguments(args: TrainingArguments, stages: int, tensor: int) -> None:
    """Refuses training arguments that a pipelined model does not support.

    Raises:
        ValueError: An argument is not supported. The message names all of them, with the reason and the fix.
    """
    world = args.world_size
    if isinstance(tensor, bool) or not isinstance(tensor, int) or tensor < 1:
        raise ValueError(
            f"[smdp] ModelParallel(tensor={tensor!r}) is not valid. Use an integer of at least 1."
        )
    size = stages * tensor
    if world % size != 0:
        asked = f"stages={stages}" if tensor == 1 else f"stages={stages}, tensor={tensor}"
        raise ValueError(
            f"[smdp] ModelParallel({asked}) does not fit a job of {counted(world, 'process')}. Start"
            f" a multiple of {counted(size, 'process')}, for example `smdp run -n {size} train.py`, or"
            f" use {'stages' if tensor == 1 else 'stages x tensor'} = "
            + ", ".join(str(number) for number in range(1, world + 1) if world % number == 0)
        )
    refused = [f"{name}: {reason}" for name, is_set, reason in _contradictions(args) if is_set]
    if refused:
        raise ValueError(
            "[smdp] ModelParallel does not support these training arguments. " + " ".join(refused)
        )


def check_batch(args: TrainingArguments, microbatches: int) -> None:
    """Checks that a batch can be divided into microbatches.

    Raises:
        ValueError: The batch size is not divisible by the number of microbatches.
    """
    size = args.per_device_train_batch_size
    if size % microbatches != 0:
        best = max(count for count in range(1, microbatches + 1) if size % count == 0)
        raise ValueError(
            f"[smdp] per_device_train_batch_size is {size}, which ModelParallel cannot divide into"
            f" {counted(microbatches, 'microbatch')}. Use a multiple of {microbatches}, or"
            f" microbatches={best}. It is the batch of a whole pipeline, not of one rank."
        )


def _contradictions(args: Any) -> Iterator[tuple[str, bool, str]]:
    for other in ("deepspeed", "fsdp", "megatron_lm", "parallelism_config"):
        asked = asked_for(args, other)
        yield asked or "", bool(asked), "it divides the model itself. Remove it or the plugin."
    yield (
        "predict_with_generate",
        getattr(args, "predict_with_generate", False),
        "no rank has the whole model to generate with. Save the model, and generate in one process.",
    )
    yield (
        "auto_find_batch_size",
        args.auto_find_batch_size,
        "the batch size of a pipeline cannot change. Set per_device_train_batch_size.",
    )
    yield (
        "train_sampling_strategy='batch_rebalance'",
        args.train_sampling_strategy == "batch_rebalance",
        "it distributes rows to ranks, not to pipelines. Use 'group_by_length'.",
    )
    for name in ("fp16_full_eval", "bf16_full_eval"):
        yield (
            name,
            getattr(args, name),
            "parameters in stages keep their dtype. Use bf16=True or fp16=True.",
        )
    yield (
        "eval_use_gather_object",
        args.eval_use_gather_object,
        "it would count the rows of a pipeline once per rank. Use tensors of equal size.",
    )
    yield (
        "accelerator_config.dispatch_batches=True",
        args.accelerator_config.dispatch_batches is True,
        "every rank of a pipeline reads its batches itself. Use None.",
    )
    yield (
        "neftune_noise_alpha",
        args.neftune_noise_alpha is not None,
        "its noise is added between modules, where ranks know only shapes. Remove it.",
    )
    yield (
        "use_liger_kernel",
        args.use_liger_kernel,
        "its fused losses are computed between modules, where ranks know only shapes. Remove it.",
    )
    yield (
        "debug='underflow_overflow'",
        DebugOption.UNDERFLOW_OVERFLOW in args.debug,
        "it checks all parameters on every rank. Look for the overflow in one process.",
    )
    yield (
        "save_on_each_node",
        args.save_on_each_node,
        "each stage writes its own part into one folder, which all machines must access. Remove it.",
    )
    yield (
        f"torch_compile_backend={args.torch_compile_backend!r}",
        args.torch_compile and args.torch_compile_backend != "inductor",
        "stages are compiled by 'inductor'. Remove it.",
    )
    yield (
        f"torch_compile_mode={args.torch_compile_mode!r}",
        args.torch_compile and args.torch_compile_mode is not None,
        "stages are compiled in the default mode. Remove it.",
    )
    yield (
        f"optim={str(getattr(args.optim, 'value', args.optim))!r}",
        args.optim in _FUSED_WITH_BACKWARD,
        "it steps in backward, before the gradients of all microbatches are complete. Use another optimizer.",
    )
