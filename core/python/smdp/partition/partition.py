"""The best cut of a traced model."""

from __future__ import annotations

from collections.abc import Sequence

from smdp._arguments import flag, integer, number, text
from smdp._core import Partition as Partition
from smdp._core import PartitionStage as PartitionStage
from smdp._core import partition_units, state_bytes
from smdp._shown import shown
from smdp.partition.trace import ELEMENT_BYTES, Trace

# SMP's default, for optimize="speed"; 0.8 is that for "memory".
_SMP_MEMORY_WEIGHT = 0.2


def partition(
    trace: Trace,
    *,
    ranks: int,
    virtual_stages: int = 1,
    microbatches: int = 1,
    schedule: str = "1f1b",
    active_microbatches: int = 0,
    algorithm: str = "pipeline",
    memory_cap: float = 0.0,
    precision: str = "fp32",
    sharding: str = "none",
    sharding_degree: int = 1,
    memory_weight: float | None = None,
    is_tied_together: bool = False,
    latency: float = 0.0,
    bandwidth: float = 0.0,
    rank_of: Sequence[int] | None = None,
) -> Partition:
    """Cut a model into `ranks` x `virtual_stages` contiguous stages, for the shortest step within the cap.

    Args:
        trace: Units in execution order, with the times and bytes of one microbatch.
        ranks: Of the pipeline.
        virtual_stages: Per rank.
        microbatches: Of a step.
        schedule: One that `smdp.pipeline.generate` knows.
        active_microbatches: Of smp_interleaved; 0: ranks + 2.
        algorithm: "pipeline": the shortest step; "sum": the smallest sum of all stages' seconds, hops and
            `microbatches - 1` times the slowest stage, exactly; "bottleneck": the fastest slowest stage
            first; "smp": that of SageMaker's library, over the tree of modules, which looks at neither cuts
            nor caps.
        memory_cap: Bytes of states and activations per rank; 0: none. A device's memory times a margin.
        precision: What states there are per parameter; see `smdp.memory.state_bytes`.
        sharding: How they are shared by data-parallel ranks; see there.
        sharding_degree: By how many.
        memory_weight: 0 to 1: how far balance of bytes counts instead of balance of seconds. Default: 0, and
            0.2 for "smp".
        is_tied_together: Units that share parameters must lie on one stage; otherwise a copy and the
            reduction of its gradient are the price of every further stage.
        latency: Seconds of one transfer between stages.
        bandwidth: Bytes per second of a link; 0: transfers take the latency alone.
        rank_of: Rank of each stage, in place of `virtual_stages`, where every unit has its stage.

    Raises:
        ValueError: A value is wrong, with its name and what is allowed; or no cut fits, with the smallest
            cap, or the nearest number of ranks, that would do.
        TypeError: There is no trace, or a value is of another type.
    """
    if not isinstance(trace, Trace):
        raise TypeError(f"[smdp] trace = {shown(trace)} is not valid; allowed: a smdp.partition.Trace")
    index = {unit.name: place for place, unit in enumerate(trace.units)}
    units = [
        (
            unit.name,
            unit.forward,
            unit.backward_input,
            unit.backward_weight,
            float(unit.parameter_bytes),
            float(unit.activation_bytes),
            float(unit.cut_bytes),
            -1 if unit.stage is None else unit.stage,
        )
        for unit in trace.units
    ]
    tied = [(float(group.bytes), sorted(index[name] for name in group.units)) for group in trace.tied]
    if memory_weight is None:
        memory_weight = _SMP_MEMORY_WEIGHT if algorithm == "smp" else 0.0
    states = state_bytes(
        text("precision", precision),
        text("sharding", sharding),
        integer("sharding_degree", sharding_degree),
    ).sum
    return partition_units(
        units,
        tied,
        ranks=integer("ranks", ranks),
        virtual_stages=integer("virtual_stages", virtual_stages),
        rank_of=[integer(f"rank_of[{place}]", rank) for place, rank in enumerate(rank_of or ())],
        microbatches=integer("microbatches", microbatches),
        schedule=text("schedule", schedule),
        active_microbatches=integer("active_microbatches", active_microbatches),
        algorithm=text("algorithm", algorithm),
        memory_cap=number("memory_cap", memory_cap),
        state_factor=states / ELEMENT_BYTES[trace.parameter_dtype],
        memory_weight=number("memory_weight", memory_weight),
        is_tied_together=flag("is_tied_together", is_tied_together),
        latency=number("latency", latency),
        bandwidth=number("bandwidth", bandwidth),
    )
