"""Finds the best partition of a traced model."""

from __future__ import annotations

from collections.abc import Sequence

from smdp._arguments import flag, integer, number, text
from smdp._core import Partition as Partition
from smdp._core import PartitionStage as PartitionStage
from smdp._core import partition_units, state_bytes
from smdp._shown import shown
from smdp.partition.trace import ELEMENT_BYTES, Trace

# SMP's default for optimize="speed"; for "memory", it is 0.8.
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
    """Cuts a model into `ranks` x `virtual_stages` contiguous stages, for the shortest step within the cap.

    Args:
        trace: Units in execution order, with the times and bytes of one microbatch.
        ranks: Number of pipeline ranks.
        virtual_stages: Virtual stages per rank.
        microbatches: Microbatches per step.
        schedule: Name of a schedule of `smdp.pipeline.generate`.
        active_microbatches: For smp_interleaved: the most microbatches in flight. 0 means ranks + 2.
        algorithm: "pipeline" minimizes the step time. "sum" minimizes the sum of all stages' seconds, the
            hops, and `microbatches - 1` times the slowest stage, exactly. "bottleneck" minimizes the slowest
            stage first. "smp" is the algorithm of SageMaker's library, which works on the tree of modules and
            ignores cut sizes and caps.
        memory_cap: The most bytes of states and activations per rank, for instance a device's memory times a
            margin. 0 means no limit.
        precision: Determines the states per parameter; see `smdp.memory.state_bytes`.
        sharding: How data-parallel ranks share the states; see `smdp.memory.state_bytes`.
        sharding_degree: Number of data-parallel ranks that share the states.
        memory_weight: Weight of balancing bytes rather than seconds, 0 to 1. Default: 0.2 for "smp", 0 for
            the others.
        is_tied_together: Whether units that share parameters must be on the same stage. Otherwise, every
            additional stage costs a copy of the parameters and the reduction of their gradient.
        latency: Seconds of one transfer between stages.
        bandwidth: Bytes per second of a link. 0 means that transfers take only the latency.
        rank_of: Rank of each stage, instead of `virtual_stages`. Requires that every unit is pinned to a
            stage.

    Raises:
        ValueError: A value is invalid, or no partition fits. The message has the value's name and what is
            allowed, or the smallest cap or nearest number of ranks that would work.
        TypeError: `trace` is not a Trace, or a value has the wrong type.
    """
    if not isinstance(trace, Trace):
        raise TypeError(f"[smdp] trace = {shown(trace)} is not valid; allowed: an smdp.partition.Trace")
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
