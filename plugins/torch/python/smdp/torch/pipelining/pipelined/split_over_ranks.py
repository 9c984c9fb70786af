"""Traces a model, cuts it into stages, and keeps each rank's own stages."""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from smdp import pipeline as schedules
from smdp.partition import Partition, Trace, partition, stage_lines
from smdp.partition.steady import Cutter, steady_partition
from smdp.torch.initialization.delayed_initialization import materialize
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.offload.offload_activations import check_horizon
from smdp.torch.offload.saved_tensors import Store
from smdp.torch.offload.stores import store_for
from smdp.torch.offload.target import target_of
from smdp.torch.pipelining.analysis.sampled_trace import pooled
from smdp.torch.pipelining.analysis.tracing import trace
from smdp.torch.pipelining.analysis.unit_traces import trace_by_parameters
from smdp.torch.pipelining.engine.actions import most_in_flight
from smdp.torch.pipelining.engine.handlers import ActionHandler
from smdp.torch.pipelining.engine.lockstep import Lockstep
from smdp.torch.pipelining.engine.offload_actions import OffloadActions
from smdp.torch.pipelining.engine.steps import Tables
from smdp.torch.pipelining.interpreter.dry_run import users_outside_units
from smdp.torch.pipelining.pipelined.grouped_cut import GroupedCut
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.pipelining.units.splitting import Split, stages_of_units, users_of_weights
from smdp.torch.pipelining.units.units import find_rows, find_units
from smdp.torch.pipelining.units.wording import PIPELINE, Wording
from smdp.torch.recompute.checkpoint_activations import rows_in_units, set_policy
from smdp.torch.recompute.policies import Policy

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placed:
    """A trace whose units may have assigned virtual stages.

    Attributes:
        trace: The trace; units without a stage may be placed on any stage.
        rank_of: The rank of each virtual stage. None: the schedule's own placement.
    """

    trace: Trace
    rank_of: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """Options of a split. The fields not listed here are arguments of `smdp.torch.pipeline()`.

    Attributes:
        memory_weight: From 0 (minimize the time of a step) to 1 (balance the bytes of the stages).
        is_in_lockstep: Whether host reads resume at fixed places of the schedule; see `engine/lockstep.py`.
        wording: Names of the API that the user called, for messages.
    """

    stages: int
    microbatches: int
    schedule: str
    tensor: int = 1
    virtual_stages: int | None = None
    active_microbatches: int | None = None
    memory_cap: float = 0.0
    memory_weight: float = 0.0
    device: torch.device | str | None = None
    seed: int | None = None
    is_compiled: bool = False
    is_in_lockstep: bool = False
    recompute: Policy | None = None
    offload: str | None = None
    horizon: int = 4
    wording: Wording = PIPELINE

    def check(self) -> None:
        """Checks that the schedule exists.

        Raises:
            ValueError: It does not; the message names the most similar schedule.
        """
        if self.schedule not in schedules.SCHEDULES:
            near = difflib.get_close_matches(str(self.schedule), schedules.SCHEDULES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(
                f"[smdp] there is no schedule {self.schedule!r}{hint} Available schedules:"
                f" {', '.join(schedules.SCHEDULES)}"
            )

    @property
    def stages_per_rank(self) -> int:
        """Number of virtual stages per rank."""
        info = schedules.schedule_info(self.schedule)
        return self.virtual_stages or info.virtual_stages or info.usual_virtual_stages

    def partition(self, traced: Trace, rank_of: Sequence[int] | None = None) -> Partition:
        """Returns the partition of a trace with the shortest step.

        Args:
            traced: The trace to partition.
            rank_of: The rank of each virtual stage. None: the schedule's own placement.
        """
        return partition(
            traced,
            ranks=self.stages,
            virtual_stages=self.stages_per_rank if rank_of is None else 1,
            rank_of=rank_of,
            microbatches=self.microbatches,
            schedule=self.schedule,
            active_microbatches=self.active_microbatches or 0,
            memory_cap=self.memory_cap,
            memory_weight=self.memory_weight,
        )

    def tables(self, microbatches: int, found: Partition, ranks: Sequence[int] | None) -> Tables:
        """Returns the schedules of a step for the stages of a partition.

        Args:
            microbatches: Number of microbatches in the step.
            found: The stages with their times and bytes.
            ranks: The rank of each stage. None: the schedule's own placement.
        """
        rank_of = [stage.rank for stage in found.stages]
        is_loop = rank_of == [stage % self.stages for stage in range(len(rank_of))]
        held = [stage.activation_bytes for stage in found.stages]
        make = functools.partial(
            schedules.generate,
            stages=self.stages,
            microbatches=microbatches,
            virtual_stages=self.stages_per_rank if ranks is None else 1,
            rank_of=ranks,
        )
        training = make(
            found.schedule,
            active_microbatches=self.active_microbatches,
            forward=[stage.forward for stage in found.stages],
            backward_input=[stage.backward_input for stage in found.stages],
            backward_weight=[stage.backward_weight for stage in found.stages],
            # Activation bytes are unknown if modules were weighed by their parameters.
            activation_bytes=held if any(held) else 1.0,
            memory_cap=found.activation_cap or None,
        )
        if training.rank_of != rank_of:  # "auto" chose another placement for this number of microbatches
            training = make("looped_bfs" if is_loop else "zb_v")
        own = "loop" if is_loop else "v"
        evaluation = make("forward_only", placement=own if ranks is None else None)
        return Tables(training, evaluation)


def split_over_ranks(
    model: nn.Module,
    mesh: ParallelMesh,
    options: SplitOptions,
    example: tuple[tuple[Any, ...], dict[str, Any]] | None,
    assign: Callable[[Trace], Placed] | None = None,
    must_be_cut: Callable[[nn.Module], bool] | None = None,
    loss_fn: Callable[[Any], Any] | None = None,
) -> PipelinedModule:
    """Splits a model. Every rank of the job must call this.

    Args:
        model: The model, the same on all ranks.
        mesh: The ranks and groups, with as many stages as the options request.
        options: How the model is split.
        example: Positional and keyword arguments of the model's forward for one microbatch, which is traced.
            None: modules are weighed by the bytes of their parameters.
        assign: Assigns stages to units of the trace; the partitioner places the rest. None: it places all.
        must_be_cut: Returns whether a module's parts, instead of the whole module, become units.
        loss_fn: Called on the model's output for `example`; its time counts for the last units.

    Raises:
        ValueError: The model cannot be split; the message suggests a fix.
    """
    store = store_of(options, model)
    mesh.make_for_steps("pp", "tp", "rdp", "mp", "dp")
    # If modules are assigned to ranks by hand, the number of stages follows from the assignment.
    least = options.stages * (options.stages_per_rank if must_be_cut is None else 1)
    units = find_units(model, least, must_be_cut)
    policy = options.recompute
    rows = () if policy is None else rows_in_units(find_rows(model), units)
    if policy is not None and not policy.is_budget:
        set_policy(model, rows, policy)
    # All ranks trace at the same time, so that timings include the load of the other ranks, as in training.
    dist.barrier()
    if example is None:
        traced = on_every_rank(lambda: trace_by_parameters(model, units))[0]
        placed = Placed(traced) if assign is None else assign(traced)
        traced = placed.trace
        found = options.partition(traced, placed.rank_of)
        _log_cut(
            traced, found, "Modules are weighed by their parameters because there are no example inputs."
        )
    else:
        sampled = pooled(on_every_rank(lambda: trace(model, units, *example, loss_fn=loss_fn)))
        placed = Placed(sampled.shape) if assign is None else assign(sampled.shape)
        sampled = replace(sampled, shape=placed.trace)
        measured = sampled.by_time()
        cut: Cutter = functools.partial(options.partition, rank_of=placed.rank_of)
        if policy is not None and policy.is_grouped:
            cut = GroupedCut(cut, sampled.joined, rows, policy.size)
        steady = steady_partition(measured, sampled.by_work(), cut)
        traced, found = measured.trace, steady.partition
        _log_cut(traced, found, steady.reason)
    tables = functools.cache(functools.partial(options.tables, found=found, ranks=placed.rank_of))
    table = tables(options.microbatches).training
    calls = stages_of_units(traced, found)
    if units == ("",):
        # A trace has no units with an empty name.
        calls = {"": next(iter(calls.values()))}
    uses: dict[str, set[int]] = {}
    if example is not None:
        target = _device_of(model, options)
        if any(buffer.is_meta for buffer in model.buffers()):
            # Code between units uses buffers, such as those of a rotary embedding, on every rank.
            real = {name for name, parameter in model.named_parameters() if not parameter.is_meta}
            materialize(model, real.__contains__, options.device)
        uses = users_outside_units(model, calls, *example, target, options.wording)
    split = Split(traced, found, calls, users_of_weights(model, calls, uses))
    own = {stage for stage, rank in enumerate(table.rank_of) if rank == mesh.stage_rank}
    if any(parameter.is_meta for parameter in model.parameters()):
        materialize(model, lambda name: bool(split.weights.get(name, frozenset()) & own), options.device)
    if policy is not None and policy.is_budget:
        own_units = {name for name, stages in calls.items() if own & set(stages)}
        in_flight = most_in_flight(table.rows[mesh.stage_rank]) / options.stages_per_rank
        set_policy(model, rows_in_units(rows, own_units), policy, argument="recompute", in_flight=in_flight)
    features: list[ActionHandler] = []
    # Layers have collectives, which ranks of one stage must run in the same order.
    if options.is_in_lockstep or mesh.placement.tensor > 1:
        features.append(Lockstep())
    if store is not None:
        features.append(OffloadActions(store, options.horizon, len(table.rank_of), model))
    seed = on_every_rank(torch.initial_seed)[0] if options.seed is None else options.seed
    return PipelinedModule(
        model,
        split,
        table,
        tables,
        mesh,
        seed,
        is_compiled=options.is_compiled,
        wording=options.wording,
        features=features,
    )


def store_of(options: SplitOptions, model: nn.Module) -> Store | None:
    """Returns where the saved tensors of this rank's stages go; None: they stay in memory. Collective.

    Raises:
        ValueError: The place cannot be used, or the ranks have passed different options.
        RuntimeError: It cannot be used on another rank.
    """
    stores: list[Store] = []

    def found() -> tuple[bool, int]:
        if options.offload is not None:
            check_horizon(options.horizon)
            stores.append(store_for(target_of(options.offload), _device_of(model, options)))
        return bool(stores), options.horizon

    each = on_every_rank(found)
    if len(set(each)) > 1:
        rank = next(rank for rank, one in enumerate(each) if one != each[0])
        raise ValueError(
            f"[smdp] rank 0 passed horizon = {each[0][1]} {_with(each[0])} offload, and rank {rank} horizon ="
            f" {each[rank][1]} {_with(each[rank])} offload; pass the same on all ranks"
        )
    return stores[0] if stores else None


def _with(passed: tuple[bool, int]) -> str:
    return "with" if passed[0] else "without"


def _device_of(model: nn.Module, options: SplitOptions) -> torch.device:
    real = (one.device for one in model.parameters() if not one.is_meta)
    return next(real, torch.device(options.device or "cpu"))


def _log_cut(traced: Trace, found: Partition, reason: str) -> None:
    if dist.get_rank() == 0:
        for line in (*stage_lines(traced, found), reason):
            if line:
                _log.info("[smdp] cut of %s: %s", traced.name, line)
