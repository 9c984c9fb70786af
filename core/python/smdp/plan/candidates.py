"""The settings that a search considers, and the reasons why some are impossible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

from smdp._shown import counted
from smdp.memory import Architecture
from smdp.pipeline import schedule_info
from smdp.plan.cluster import Cluster

# In the order of AWS's advice for its model parallel library: the cheapest is tried first.
SHARDINGS = ("none", "zero1", "zero2", "zero3")
CHECKPOINTINGS = ("none", "selective", "each", "group_2", "group_4", "contiguous")
# Numbers of virtual stages per rank to try in addition to the schedule's default.
SCHEDULES: dict[str, tuple[int, ...]] = {
    "1f1b": (),
    "smp_interleaved": (),
    "interleaved_1f1b": (4,),
    "zb_v": (),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One possible layout of a model. The fields are those of `smdp.memory.Setting`."""

    pipeline: int
    tensor: int
    data: int
    microbatches: int
    microbatch_size: int
    schedule: str = "1f1b"
    virtual_stages: int = 1
    active_microbatches: int = 0
    sharding: str = "none"
    sharding_degree: int = 0
    checkpointing: str = "none"
    sequence_parallel: bool = False
    offload_optimizer: bool = False

    @property
    def shards(self) -> str:
        """The sharding, and whether only the ranks of each host share it."""
        return f"{self.sharding} per host" if self.sharding_degree else self.sharding

    def use(self) -> str:
        """Returns the call that shards like this; empty if nothing is sharded."""
        if self.sharding == "zero1":
            scope = "host" if self.sharding_degree else "world"
            return f'smdp.torch.ShardedOptimizer(optimizer, model, scope="{scope}")'
        if self.sharding == "none":
            return ""
        keeps = ", reshard_after_forward=False" if self.sharding == "zero2" else ""
        if self.tensor > 1:
            # Ranks that share a model are adjacent; parameters are sharded over the others.
            names = 'mesh_dim_names=("data", "tensor")'
            keeps += f', mesh=init_device_mesh(device, ({self.data}, {self.tensor}), {names})["data"]'
        return f"torch.distributed.fsdp.fully_shard(model{keeps})"

    def division(self) -> str:
        """Returns the call that divides layers like this; empty if they stay whole."""
        if self.tensor == 1:
            return ""
        sequence = ", sequence_parallel=True" if self.sequence_parallel else ""
        return f"smdp.torch.tensor_parallel(model, {self.tensor}{sequence})"

    def features(self) -> dict[int, str]:
        """Returns the features that the layout uses, keyed by their position in the order of AWS's advice."""
        all_of_them = [
            (self.sharding != "none", self.shards),
            (self.checkpointing != "none", f"checkpointing={self.checkpointing}"),
            (self.tensor > 1, f"tensor={self.tensor}"),
            (self.sequence_parallel, "sequence_parallel"),
            (self.pipeline > 1, f"pipeline={self.pipeline}"),
            (self.virtual_stages > 1, self.schedule),
            (self.offload_optimizer, "offload_optimizer"),
        ]
        return {place: name for place, (is_used, name) in enumerate(all_of_them) if is_used}

    def describe(self) -> str:
        """Returns the layout as one line of text."""
        schedule = self.schedule if self.pipeline > 1 else "no pipeline"
        if self.virtual_stages > 1:
            schedule += f" x{self.virtual_stages}"
        if self.active_microbatches:
            schedule += f" ({self.active_microbatches} active)"
        parts = [
            f"pipeline {self.pipeline} x tensor {self.tensor} x data {self.data}",
            f"{counted(self.microbatches, 'microbatch')} of {self.microbatch_size}",
            schedule,
            f"sharding {self.shards}",
            f"checkpointing {self.checkpointing}",
        ]
        if self.sequence_parallel:
            parts.append("sequence parallel")
        if self.offload_optimizer:
            parts.append("optimizer in host memory")
        return ", ".join(parts)


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
    model: Architecture, cluster: Cluster, batch: int, sequence: int
) -> Iterator[Candidate | Impossible]:
    """Yields all settings for a global batch of `batch` samples, and the impossible ones with the reason.

    Args:
        model: The model.
        cluster: The machines.
        batch: Samples per step, over all ranks.
        sequence: Tokens per sample, unless the model fixes them.
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
                for sharding, degree in _shardings(pipeline, data, local_ranks(cluster, layout)):
                    for checkpointing in CHECKPOINTINGS:
                        for is_sequence_parallel in sequences:
                            for is_offloaded in (False, True):
                                yield Candidate(
                                    pipeline=pipeline,
                                    tensor=tensor,
                                    data=data,
                                    microbatches=microbatches,
                                    microbatch_size=batch // data // microbatches,
                                    schedule=schedule,
                                    virtual_stages=virtual,
                                    active_microbatches=active,
                                    sharding=sharding,
                                    sharding_degree=degree,
                                    checkpointing=checkpointing,
                                    sequence_parallel=is_sequence_parallel,
                                    offload_optimizer=is_offloaded,
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


def _shardings(pipeline: int, data: int, local: int) -> list[tuple[str, int]]:
    """Returns the shardings that make sense for these numbers of ranks, with how many ranks share."""
    if data == 1:
        return [("none", 0)]
    found = [(name, 0) for name in (SHARDINGS[:2] if pipeline > 1 else SHARDINGS)]
    if 1 < local < data and data % local == 0:
        found.insert(1, ("zero1", local))
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
