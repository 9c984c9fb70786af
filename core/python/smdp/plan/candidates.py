"""The settings that a search considers, and the reasons why some are impossible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

from smdp._shown import counted
from smdp.memory import Architecture
from smdp.pipeline import schedule_info
from smdp.plan.candidate import CHECKPOINTINGS, SHARDINGS, Candidate
from smdp.plan.cluster import Cluster

# Numbers of virtual stages per rank to try in addition to the schedule's default.
SCHEDULES: dict[str, tuple[int, ...]] = {
    "1f1b": (),
    "smp_interleaved": (),
    "interleaved_1f1b": (4,),
    "zb_v": (),
}


@dataclass(frozen=True, slots=True)
class Impossible:
    """A part of the search space without candidates, and the reason."""

    what: str
    why: str


def layouts(model: Architecture, cluster: Cluster) -> Iterator[tuple[int, int, int] | Impossible]:
    """Yields every (pipeline, tensor, data) that uses all ranks, or Impossible if it breaks a rule."""
    count = sum(run.count for run in model.layers)
    for tensor in _divisors(cluster.ranks):
        what = f"tensor {tensor}"
        problem = _problem_of_tensor(model, cluster, tensor)
        if problem is not None:
            yield Impossible(what, problem)
            continue
        for pipeline in _divisors(cluster.ranks // tensor):
            if pipeline > count:
                yield Impossible(f"{what}, pipeline {pipeline}", f"there are only {count} layers to divide")
                continue
            yield pipeline, tensor, cluster.ranks // tensor // pipeline


def _problem_of_tensor(model: Architecture, cluster: Cluster, tensor: int) -> str | None:
    """Returns why layers cannot be divided over this many ranks, which are adjacent, or None."""
    if tensor > cluster.ranks_per_host:
        local = counted(cluster.ranks_per_host, "rank")
        return f"tensor parallelism must stay within a host, which has {local}"
    if cluster.ranks_per_host % tensor:
        return f"tensor must divide the {counted(cluster.ranks_per_host, 'rank')} of a host"
    for run in model.layers:
        if run.heads % tensor:
            return f"tensor must divide the {run.heads} attention heads"
        keys = run.key_value_heads
        if keys % tensor and tensor % keys:
            return f"tensor must divide the {keys} key-value heads, or be a multiple of them"
        for width in (run.ffn, run.shared_ffn):
            if width % tensor:
                return f"tensor must divide the inner width of {width}"
    return None


def _problem_of_sequence(model: Architecture, sequence: int, tensor: int) -> str | None:
    """Returns why sequences cannot be divided over this many ranks, or None."""
    tokens = model.sequence or sequence
    if tokens % tensor:
        return f"a sequence of {counted(tokens, 'token')} cannot be divided evenly among them"
    if any(run.experts or run.has_cross_attention for run in model.layers):
        return "routers of experts and cross-attention work on whole sequences"
    return None


def candidates(
    model: Architecture,
    cluster: Cluster,
    batch: int,
    sequence: int,
    *,
    precision: str = "bf16",
    offload: str = "",
) -> Iterator[Candidate | Impossible]:
    """Yields all settings for a global batch of `batch` samples, and the impossible ones with the reason.

    Args:
        model: The model.
        cluster: The machines.
        batch: Samples per step, over all ranks.
        sequence: Tokens per sample, unless the model fixes them.
        precision: Precision as in `smdp.memory.state_bytes`.
        offload: Where activations and optimizer states may go: "host", "disk:" and a folder, or "" for
            nowhere.
    """
    count = sum(run.count for run in model.layers)
    for layout in layouts(model, cluster):
        if isinstance(layout, Impossible):
            yield layout
            continue
        pipeline, tensor, data = layout
        if batch % data:
            yield Impossible(
                f"pipeline {pipeline} x tensor {tensor} x data {data}",
                f"a batch of {batch} cannot be divided evenly among {counted(data, 'rank')}",
            )
            continue
        if pipeline > 1:
            yield Impossible(
                f"pipeline {pipeline} x tensor {tensor} x data {data}, sharding zero2 or zero3",
                "a pipeline would reduce gradients, and gather parameters, for every microbatch",
            )
        sequences = [False]
        if tensor > 1:
            problem = _problem_of_sequence(model, sequence, tensor)
            if problem is None:
                sequences.append(True)
            else:
                what = f"pipeline {pipeline} x tensor {tensor} x data {data}, sequence parallel"
                yield Impossible(what, problem)
        for microbatches in _divisors(batch // data):
            if pipeline > 1 and microbatches % pipeline:
                yield Impossible(
                    f"pipeline {pipeline} x tensor {tensor} x data {data}, interleaved_1f1b",
                    f"{counted(microbatches, 'microbatch')} cannot be divided evenly among"
                    f" {counted(pipeline, 'stage')}",
                )
            for schedule, virtual, active in _schedules(pipeline, microbatches, count):
                for sharding, degree in _shardings(pipeline, data, local_ranks(cluster, layout), offload):
                    for checkpointing in CHECKPOINTINGS:
                        for is_sequence_parallel in sequences:
                            for activations, optimizer in _offloads(offload, sharding):
                                yield Candidate(
                                    pipeline=pipeline,
                                    tensor=tensor,
                                    data=data,
                                    microbatches=microbatches,
                                    microbatch_size=batch // data // microbatches,
                                    schedule=schedule,
                                    virtual_stages=virtual,
                                    active_microbatches=active,
                                    precision=precision,
                                    sharding=sharding,
                                    sharding_degree=degree,
                                    checkpointing=checkpointing,
                                    sequence_parallel=is_sequence_parallel,
                                    offload_activations=activations,
                                    offload_optimizer=optimizer,
                                )


def local_ranks(cluster: Cluster, layout: tuple[int, int, int]) -> int:
    """Returns how many ranks of each data-parallel group a host has.

    Model-parallel ranks are adjacent.

    Args:
        cluster: The machines.
        layout: Pipeline, tensor and data.
    """
    pipeline, tensor, data = layout
    return max(1, min(data, cluster.ranks_per_host // (pipeline * tensor)))


def _shardings(pipeline: int, data: int, local: int, offload: str) -> list[tuple[str, int]]:
    """Returns the shardings that make sense for these numbers of ranks, with how many ranks share."""
    if data == 1:
        # A ShardedOptimizer can offload the state of a rank that has no one to share it with.
        return [("none", 0), *([("zero1", 0)] if offload else [])]
    found = [(name, 0) for name in (SHARDINGS[:2] if pipeline > 1 else SHARDINGS)]
    if 1 < local < data and data % local == 0:
        found.insert(1, ("zero1", local))
        if pipeline == 1:
            found.append(("zero3", local))
    return found


def _offloads(offload: str, sharding: str) -> list[tuple[bool, bool]]:
    """Returns whether activations, and optimizer states, may be offloaded; both False comes first."""
    if not offload:
        return [(False, False)]
    found = [(False, False), (True, False)]
    # Optimizer states are offloaded by a ShardedOptimizer, to a disk.
    if sharding == "zero1" and offload.startswith("disk:"):
        found.extend([(activations, True) for activations, _ in found])
    return found


def _schedules(pipeline: int, microbatches: int, layers: int) -> Iterator[tuple[str, int, int]]:
    if pipeline == 1:
        yield "1f1b", 1, 0
        return
    pairs = [
        (schedule, virtual)
        for schedule, more in SCHEDULES.items()
        for virtual in (schedule_info(schedule).usual_virtual_stages, *more)
    ]
    for schedule, virtual in pairs:
        if pipeline * virtual > layers:
            continue
        if schedule == "interleaved_1f1b" and microbatches % pipeline:
            continue
        if schedule == "smp_interleaved":
            # Fewer active microbatches than stages need less memory but increase idle time.
            for active in sorted({2, pipeline // 2, pipeline} - {0, 1}):
                if active <= microbatches and active <= pipeline:
                    yield schedule, virtual, active
            continue
        yield schedule, virtual, 0


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
