"""`smdp.torch.pipeline()`, which splits a model over ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from smdp.partition import Trace
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.offload.offload_activations import is_offloaded
from smdp.torch.pipelining.engine.program import LossFunction, Program, loss_of
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.pipelining.pipelined.split_over_ranks import (
    Placed,
    SplitOptions,
    split_over_ranks,
    store_of,
)
from smdp.torch.pipelining.tensors.slicing import cut
from smdp.torch.pipelining.units.pinning import pinned
from smdp.torch.pipelining.units.wording import Wording
from smdp.torch.recompute.budget_rule import is_budgeted
from smdp.torch.recompute.checkpoint_activations import rows_to_recompute
from smdp.torch.recompute.policies import read_policy
from smdp.torch.tensor_parallelism.divided_model import axis_of_model, join_mesh
from smdp.torch.tensor_parallelism.tensor_parallel import agreed_plan, divide_model

# By class name, so that a wrapper's package need not be imported to recognize it.
_WRAPPERS = {
    "DistributedDataParallel": "model.module; gradients of replicas are averaged in any case",
    "DataParallel": "model.module; gradients of replicas are averaged in any case",
    "FullyShardedDataParallel": "model.module; each rank keeps only the parameters of its own stages",
    "ShardedDataParallel": "the model before it was wrapped; ShardedOptimizer shards the states of replicas",
    "FSDPModule": "the model before fully_shard(); each rank keeps only the parameters of its own stages",
    "OptimizedModule": "model._orig_mod",
    "AveragedModel": "model.module; average the module that is returned instead",
}


def pipeline(
    model: nn.Module,
    stages: int = 2,
    microbatches: int = 8,
    schedule: str = "1f1b",
    example_inputs: Any = None,
    *,
    tensor: int = 1,
    loss_fn: LossFunction | None = None,
    virtual_stages: int | None = None,
    active_microbatches: int | None = None,
    pins: Mapping[str, int] | None = None,
    memory_cap: float = 0.0,
    device: torch.device | str | None = None,
    seed: int | None = None,
    compile: bool = False,
    recompute: Any = None,
    offload: str | None = None,
    horizon: int = 4,
) -> PipelinedModule:
    """Splits a model over ranks; each rank keeps only the parameters of its own stages.

    Every rank of the job must call it with the same model. A job with k x `stages` x `tensor` ranks has k
    data-parallel replicas of the pipeline, whose gradients are averaged.

    The loss function, and the model's code between modules that have parameters, have these limits:

    - The shape of a result must not depend on values. Instead of `output[mask]`, multiply by the mask.
    - Part of a value from an earlier stage must not be changed in place, as by `early[:, 0] += x`. Changing
      all of it works.
    - A buffer of a module without parameters may be updated in place, but not assigned.

    Code that breaks a limit raises an error that names the operation. Tensors that the loss function stores
    are placeholders on other ranks: store `.item()`, or return the tensors together with the loss.

    Args:
        model: The module to split; its code is not changed. It may be built as usual, on the meta device, or
            within `delayed_initialization()`. In the last two cases no rank ever holds the whole model.
        stages: Number of ranks in one pipeline.
        microbatches: Number of microbatches that a batch is cut into.
        schedule: Name of a schedule that `smdp.pipeline.generate` accepts.
        example_inputs: A batch like those passed to train_step(). Its first microbatch is traced to weigh
            modules by their time, or by their operations where timings are uncertain, in the order in which
            they run. Default: modules are weighed by bytes of parameters, in the order in which they are
            registered.
        tensor: Number of ranks over which the layers of each stage are divided; see `tensor_parallel()`. A
            model that has been divided before keeps its number of ranks.
        loss_fn: The loss function of train_step(). It is called once on the output for the first microbatch
            of `example_inputs`, so that its time counts in the split. The time of a loss that the model
            itself computes always counts.
        virtual_stages: Virtual stages per rank. Default: the usual number for the schedule.
        active_microbatches: Most microbatches in flight with "smp_interleaved". Default: stages + 2.
        pins: Maps module names to virtual stages. Other modules are placed so that the step is shortest.
        memory_cap: Bytes per rank for parameters, gradients, Adam's fp32 state and activations. 0: no limit.
        device: The device of this rank, for a model on the meta device. Default: the CPU.
        seed: Seed for dropout, the same on all ranks. Default: rank 0's `torch.initial_seed()`.
        compile: Whether to compile this rank's modules with `torch.compile`. Weight gradients are then
            computed together with input gradients.
        recompute: What the blocks of each stage recompute in backward: a policy of checkpoint_activations().
            A budget counts per rank, for all microbatches in flight. Default: nothing.
        offload: Where the tensors that backward needs go between forward and backward, as actions of the
            schedule: "disk:/DIRECTORY" for models on the CPU, "host" for models on a GPU; see
            `offload_activations()`. Default: they stay in memory.
        horizon: How many tasks of this rank before its backward a microbatch's tensors return. Those of
            microbatches whose backward comes sooner stay in memory.

    Returns:
        A module that holds this rank's parameters under their names in the model. They cannot be replaced
        from now on.

    Raises:
        ValueError: An argument is wrong, or the model cannot be split; the message suggests a fix.

    Example:
        >>> pipe = smdp.torch.pipeline(model, stages=2, example_inputs=batch)  # doctest: +SKIP
        >>> optimizer = torch.optim.AdamW(pipe.parameters())  # doctest: +SKIP
        >>> loss = pipe.train_step(batch, loss_fn)  # doctest: +SKIP
    """
    _check_counts(stages=stages, microbatches=microbatches, tensor=tensor)
    options = SplitOptions(
        stages=stages,
        tensor=tensor,
        microbatches=microbatches,
        schedule=schedule,
        virtual_stages=virtual_stages,
        active_microbatches=active_microbatches,
        memory_cap=memory_cap,
        device=device,
        seed=seed,
        is_compiled=compile,
        recompute=None if recompute is None else read_policy(recompute, "recompute"),
        offload=offload,
        horizon=horizon,
    )
    return pipeline_of(model, options, example_inputs, pins=pins, loss_fn=loss_fn)


def pipeline_of(
    model: nn.Module,
    options: SplitOptions,
    example_inputs: Any,
    *,
    pins: Mapping[str, int] | None = None,
    loss_fn: LossFunction | None = None,
) -> PipelinedModule:
    """Splits a model as pipeline() does, on behalf of another API with its own wording of messages.

    Args:
        model: See pipeline().
        options: How the model is split, and the wording of messages.
        example_inputs: See pipeline().
        pins: See pipeline().
        loss_fn: See pipeline().

    Raises:
        ValueError: See pipeline().
    """
    check_model(model, options.wording)
    options.check()
    if options.recompute is not None:
        rows_to_recompute(model)
    example = weighed_loss = None
    if example_inputs is not None:
        program, part = Program(model), cut(example_inputs, options.microbatches)[0]
        program.check(part)
        example = program.arguments(part)
        if loss_fn is not None:
            weighed_loss = functools.partial(_loss_of_part, loss_of(loss_fn), part)
    stages = options.stages * options.stages_per_rank
    assign = functools.partial(_placed, pins=pins, stages=stages) if pins else None
    axis = axis_of_model(model)
    tensor = axis.size if axis is not None else options.tensor
    if options.tensor not in (1, tensor):
        raise ValueError(
            f"[smdp] this model has been divided over {tensor} ranks, but tensor = {options.tensor}. Leave"
            " out `tensor`, or pass a model that has not been divided."
        )
    mesh = ParallelMesh.of_world(pp=options.stages, tp=tensor)
    store_of(options, model)  # before the model is changed
    if axis is not None:
        join_mesh(model, mesh)
    elif tensor > 1:
        divide_model(model, agreed_plan(model, tensor, "auto"), mesh)
    return split_over_ranks(model, mesh, options, example, assign, loss_fn=weighed_loss)


def _placed(traced: Trace, pins: Mapping[str, int], stages: int) -> Placed:
    return Placed(pinned(traced, pins, stages))


def _loss_of_part(loss: Callable[[Any, Any], Any], part: Any, output: Any) -> Any:
    return loss(output, part)


def check_model(model: Any, wording: Wording) -> None:
    """Raises an error if a model cannot be split.

    Args:
        model: The argument that the user passed.
        wording: Names of the API that the user called, for messages.

    Raises:
        ValueError: The argument is not a module, or the model is wrapped or has been split already.
    """
    if isinstance(model, PipelinedModule):
        raise ValueError("[smdp] this model has already been split; use the module that pipeline() returned")
    if not isinstance(model, nn.Module):
        raise ValueError(f"[smdp] {wording.split} got {type(model).__name__}; expected a torch.nn.Module")
    for wrapper, fix in _WRAPPERS.items():
        if any(kind.__name__ == wrapper for kind in type(model).__mro__):
            more = f"; {wording.compiled}" if wrapper == "OptimizedModule" else ""
            raise ValueError(
                f"[smdp] this model is wrapped in {wrapper}; pass the model itself to"
                f" {wording.split}: {fix}{more}"
            )
    if is_offloaded(model):
        raise ValueError(
            f"[smdp] offload_activations() was called for this model, which {wording.split} would not follow;"
            " pass a model without it, and offload and horizon to smdp.torch.pipeline()"
        )
    if any(hasattr(parameter, "_smdp_weight") for parameter in model.parameters()):
        raise ValueError(
            "[smdp] this model already belongs to a pipeline, and other ranks hold the rest of its"
            " parameters; build a new model"
        )
    if is_budgeted(model.modules()):
        raise ValueError(
            "[smdp] checkpoint_activations() has given this model a budget, which a pipeline divides over its"
            " microbatches in flight; pass it as pipeline(..., recompute=...) instead"
        )


def _check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"[smdp] {name} = {count!r} is not valid; allowed: an integer of at least 1")
