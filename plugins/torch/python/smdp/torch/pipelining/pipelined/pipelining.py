"""`smdp.torch.pipeline`: splits a model over ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from smdp.partition import Trace
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.pipelining.engine.program import LossFunction, Program, loss_of
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.pipelining.pipelined.split_over_ranks import Placed, SplitOptions, split_over_ranks
from smdp.torch.pipelining.tensors.slicing import cut
from smdp.torch.pipelining.units.pinning import pinned
from smdp.torch.pipelining.units.wording import Wording

# By names of classes, which need not be imported to see that nobody has wrapped the model in them.
_WRAPPERS = {
    "DistributedDataParallel": "(model.module): it averages the gradients of its replicas",
    "DataParallel": "(model.module): it averages the gradients of its replicas",
    "FullyShardedDataParallel": "(model.module): each rank keeps its own stages' parameters only",
    "FSDPModule": "as it was before fully_shard(): each rank keeps its own stages' parameters only",
    "OptimizedModule": "(model._orig_mod)",
    "AveragedModel": "(model.module), and average what it returns",
}


def pipeline(
    model: nn.Module,
    stages: int = 2,
    microbatches: int = 8,
    schedule: str = "1f1b",
    example_inputs: Any = None,
    *,
    loss_fn: LossFunction | None = None,
    virtual_stages: int | None = None,
    active_microbatches: int | None = None,
    pins: Mapping[str, int] | None = None,
    memory_cap: float = 0.0,
    device: torch.device | str | None = None,
    seed: int | None = None,
    compile: bool = False,
) -> PipelinedModule:
    """Split a model over ranks; each keeps the parameters of its own stages only.

    Every rank of the job calls it with the same model. A world of k x `stages` ranks holds k data-parallel
    replicas of the pipeline, whose gradients are averaged.

    Limits of the model's code between modules with parameters, and of the loss function: the shape of a
    result may not depend on values (`output[mask]`; multiply by the mask instead); a part of an earlier
    stage's value may not be changed in place (`early[:, 0] += x`; all of it may); a buffer of a module
    without parameters may be updated in place, not assigned. What breaks these is refused by name. Tensors
    that the loss function keeps are placeholders on other ranks: keep `.item()`, or return them beside the
    loss.

    Args:
        model: Any module; its code is not changed. Built as usual, on the meta device, or within
            `delayed_initialization()`: then it never exists whole anywhere.
        stages: Ranks of one pipeline.
        microbatches: Into how many a batch is cut.
        schedule: One that `smdp.pipeline.generate` knows.
        example_inputs: A batch as train_step() will get. Its first microbatch is traced: modules are weighed
            by their seconds, or by their operations where these are not sure, in the order in which they
            run. Default: by bytes of parameters, in the order in which they are registered.
        loss_fn: That of train_step(), called once with what the first microbatch of `example_inputs` gives:
            its time counts when the model is cut. A loss that the model computes itself counts anyway.
        virtual_stages: Per rank. Default: the schedule's usual number.
        active_microbatches: Most in flight under "smp_interleaved". Default: stages + 2.
        pins: Virtual stage of modules, by name; what is not named goes where the step is shortest.
        memory_cap: Bytes per rank for parameters, gradients, Adam's state in fp32 and activations; 0: none.
        device: Where this rank computes, for a model on the meta device. Default: the CPU.
        seed: Of dropout, the same on all ranks. Default: rank 0's `torch.initial_seed()`.
        compile: Let `torch.compile` make this rank's modules; weight gradients then come with the inputs'.

    Returns:
        A module with this rank's parameters, under their names in the model, final from now on.

    Raises:
        ValueError: An argument is wrong, or the model cannot be split so; with a fix.

    Example:
        >>> pipe = smdp.torch.pipeline(model, stages=2, example_inputs=batch)  # doctest: +SKIP
        >>> optimizer = torch.optim.AdamW(pipe.parameters())  # doctest: +SKIP
        >>> loss = pipe.train_step(batch, loss_fn)  # doctest: +SKIP
    """
    _check_counts(stages=stages, microbatches=microbatches)
    options = SplitOptions(
        stages=stages,
        microbatches=microbatches,
        schedule=schedule,
        virtual_stages=virtual_stages,
        active_microbatches=active_microbatches,
        memory_cap=memory_cap,
        device=device,
        seed=seed,
        is_compiled=compile,
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
    """Does what pipeline() does, also for APIs that are built on it and have words of their own.

    Args:
        model: See pipeline().
        options: How it is split, and the words of messages.
        example_inputs: See pipeline().
        pins: See pipeline().
        loss_fn: See pipeline().

    Raises:
        ValueError: See pipeline().
    """
    check_model(model, options.wording)
    options.check()
    example = weighed_loss = None
    if example_inputs is not None:
        program, part = Program(model), cut(example_inputs, options.microbatches)[0]
        program.check(part)
        example = program.arguments(part)
        if loss_fn is not None:
            weighed_loss = functools.partial(_loss_of_part, loss_of(loss_fn), part)
    stages = options.stages * options.stages_per_rank
    assign = functools.partial(_placed, pins=pins, stages=stages) if pins else None
    mesh = ParallelMesh.of_world(pp=options.stages)
    return split_over_ranks(model, mesh, options, example, assign, loss_fn=weighed_loss)


def _placed(traced: Trace, pins: Mapping[str, int], stages: int) -> Placed:
    return Placed(pinned(traced, pins, stages))


def _loss_of_part(loss: Callable[[Any, Any], Any], part: Any, output: Any) -> Any:
    return loss(output, part)


def check_model(model: Any, wording: Wording) -> None:
    """Refuse what cannot be split.

    Args:
        model: What the user gave.
        wording: Of the API that the user wrote.

    Raises:
        ValueError: It is no module, wrapped, or split already.
    """
    if isinstance(model, PipelinedModule):
        raise ValueError("[smdp] this model has been split already; use what pipeline() returned")
    if not isinstance(model, nn.Module):
        raise ValueError(f"[smdp] {wording.split} got {type(model).__name__}; allowed: a torch.nn.Module")
    for wrapper, fix in _WRAPPERS.items():
        if any(kind.__name__ == wrapper for kind in type(model).__mro__):
            more = f"; {wording.compiled}" if wrapper == "OptimizedModule" else ""
            raise ValueError(
                f"[smdp] this model is wrapped in {wrapper}; give {wording.split} the model itself"
                f" {fix}{more}"
            )
    if any(hasattr(parameter, "_smdp_weight") for parameter in model.parameters()):
        raise ValueError(
            "[smdp] this model belongs to a pipeline already: its other parameters are on other ranks. Build"
            " a new one."
        )


def _check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"[smdp] {name} = {count!r} is not valid; allowed: an integer from 1")
