"""`smdp.torch.pipeline`: splits a model over ranks."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from smdp import pipeline as schedules
from smdp.partition import Trace, Unit, partition
from smdp.torch.model_parallel.agreement import together
from smdp.torch.model_parallel.delayed_initialization import materialize
from smdp.torch.model_parallel.layout import Layout
from smdp.torch.model_parallel.pipelined_module import PipelinedModule
from smdp.torch.model_parallel.program import Program
from smdp.torch.model_parallel.scout import users_outside_units
from smdp.torch.model_parallel.slicing import cut
from smdp.torch.model_parallel.splitting import Split, stages_of_units, users_of_weights
from smdp.torch.model_parallel.steps import Tables
from smdp.torch.model_parallel.tracing import trace, trace_by_parameters
from smdp.torch.model_parallel.units import find_units


def pipeline(
    model: nn.Module,
    stages: int = 2,
    microbatches: int = 8,
    schedule: str = "1f1b",
    example_inputs: Any = None,
    *,
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
            by their seconds, in the order in which they run. Default: by bytes of parameters, in the order in
            which they are registered.
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
    if isinstance(model, PipelinedModule):
        raise ValueError("[smdp] this model has been split by pipeline() already; use what that returned")
    if not isinstance(model, nn.Module):
        raise ValueError(f"[smdp] pipeline() got {type(model).__name__}; allowed: a torch.nn.Module")
    if isinstance(model, DistributedDataParallel):
        raise ValueError(
            f"[smdp] this model is wrapped in {type(model).__name__}; give pipeline() the model itself"
            " (model.module): it averages the gradients of its replicas"
        )
    _check_counts(stages=stages, microbatches=microbatches)
    if schedule not in schedules.SCHEDULES:
        near = difflib.get_close_matches(str(schedule), schedules.SCHEDULES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(
            f"[smdp] there is no schedule {schedule!r}{hint} Allowed: {', '.join(schedules.SCHEDULES)}"
        )
    if any(hasattr(parameter, "_smdp_weight") for parameter in model.parameters()):
        raise ValueError(
            "[smdp] this model belongs to a pipeline already: its other parameters are on other ranks. Build"
            " a new one."
        )
    for name, module in model.named_modules():
        if getattr(module, "gradient_checkpointing", False) is True:
            raise ValueError(
                f"[smdp] module {name!r} has gradient_checkpointing switched on, which pipelines do not have"
                " yet; call model.gradient_checkpointing_disable(), or save memory by more stages or a"
                " schedule with fewer microbatches in flight (v_half, v_min)"
            )
    info = schedules.schedule_info(schedule)
    virtual = virtual_stages or info.virtual_stages or info.usual_virtual_stages

    @functools.cache
    def tables(count: int) -> Tables:
        return Tables(
            schedules.generate(
                schedule,
                stages=stages,
                microbatches=count,
                virtual_stages=virtual,
                active_microbatches=active_microbatches,
            ),
            schedules.generate(
                "forward_only",
                stages=stages,
                microbatches=count,
                virtual_stages=virtual,
                placement=info.placement or "loop",
            ),
        )

    table = tables(microbatches).training
    layout = Layout(stages)
    units = find_units(model, table.stages)
    example = None
    if example_inputs is not None:
        example = Program(model).arguments(cut(example_inputs, microbatches)[0])
    # All ranks trace at once, so that times are those of training, with the others at work; rank 0's count.
    dist.barrier()
    traced = together(
        lambda: trace_by_parameters(model, units) if example is None else trace(model, units, *example)
    )[0]
    if pins:
        traced = dataclasses.replace(traced, units=tuple(_pinned(traced, pins, table.stages)))
    found = partition(
        traced,
        ranks=stages,
        virtual_stages=virtual,
        microbatches=microbatches,
        schedule=schedule,
        active_microbatches=active_microbatches or 0,
        memory_cap=memory_cap,
    )
    calls = stages_of_units(traced, found)
    if units == ("",):
        # A trace has no unit without a name.
        calls = {"": next(iter(calls.values()))}
    uses: dict[str, set[int]] = {}
    if example is not None:
        target = next((p.device for p in model.parameters() if not p.is_meta), torch.device(device or "cpu"))
        uses = users_outside_units(model, calls, *example, target)
    split = Split(traced, found, calls, users_of_weights(model, calls, uses))
    own = {stage for stage, rank in enumerate(table.rank_of) if rank == layout.stage_rank}
    if any(parameter.is_meta for parameter in model.parameters()):
        materialize(model, lambda name: bool(split.weights.get(name, frozenset()) & own), device)
    if seed is None:
        seed = together(torch.initial_seed)[0]
    return PipelinedModule(model, split, table, tables, layout, seed, is_compiled=compile)


def _check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"[smdp] {name} = {count!r} is not valid; allowed: an integer from 1")


def _pinned(traced: Trace, pins: Mapping[str, int], stages: int) -> list[Unit]:
    names = {unit.name.partition("#")[0] for unit in traced.units}
    modules = {name.rsplit(".", depth)[0] for name in names for depth in range(name.count(".") + 1)}
    for name, stage in pins.items():
        if not isinstance(stage, int) or not 0 <= stage < stages:
            raise ValueError(
                f"[smdp] pins puts {name!r} on stage {stage!r}; allowed: stages from 0 to {stages - 1}"
            )
        if name not in modules:
            near = difflib.get_close_matches(name, modules, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(
                f"[smdp] pins names {name!r}, which is no module that lies on a stage{hint} Allowed: "
                + ", ".join(sorted(names))
            )
    pinned: list[Unit] = []
    last: Unit | None = None
    for unit in traced.units:
        parts = unit.name.partition("#")[0].split(".")
        prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        pin = next((pins[prefix] for prefix in prefixes if prefix in pins), None)
        if pin is not None and last is not None and pin < (last.stage or 0):
            raise ValueError(
                f"[smdp] pins puts {unit.name!r} on stage {pin}, but {last.name!r}, which runs before it,"
                f" on stage {last.stage}; values only flow to later stages. A module that is called twice, or"
                " shares its weight, may lie on two stages: pin its neighbours instead."
            )
        unit = dataclasses.replace(unit, stage=pin)
        last = last if pin is None else unit
        pinned.append(unit)
    return pinned
