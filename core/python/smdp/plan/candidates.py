"""All settings that a search looks at, and why some are none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smdp.memory import Architecture
from smdp.plan.cluster import Cluster

# In the order of AWS's advice for its model parallel library: what costs least is tried first.
SHARDINGS = ("none", "zero1", "zero3")
CHECKPOINTINGS = ("none", "selective", "each", "group_2", "group_4", "contiguous")
# Name and virtual stages per rank.
SCHEDULES = (
    ("1f1b", 1),
    ("smp_interleaved", 1),
    ("interleaved_1f1b", 2),
    ("interleaved_1f1b", 4),
    ("zb_v", 2),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One way to lay a model out. Fields are those of `smdp.memory.Setting`."""

    pipeline: int
    tensor: int
    data: int
    microbatches: int
    microbatch_size: int
    schedule: str = "1f1b"
    virtual_stages: int = 1
    active_microbatches: int = 0
    sharding: str = "none"
    checkpointing: str = "none"
    sequence_parallel: bool = False
    offload_optimizer: bool = False

    def features(self) -> list[str]:
        """What of the library it uses, cheapest first."""
        used = []
        if self.sharding != "none":
            used.append(self.sharding)
        if self.checkpointing != "none":
            used.append(f"checkpointing={self.checkpointing}")
        if self.tensor > 1:
            used.append(f"tensor={self.tensor}")
        if self.sequence_parallel:
            used.append("sequence_parallel")
        if self.pipeline > 1:
            used.append(f"pipeline={self.pipeline}")
        if self.virtual_stages > 1 or self.schedule not in ("1f1b", "smp_interleaved"):
            used.append(self.schedule)
        if self.offload_optimizer:
            used.append("offload_optimizer")
        return used

    def describe(self) -> str:
        """Give it on one line."""
        schedule = self.schedule if self.pipeline > 1 else "no pipeline"
        if self.virtual_stages > 1:
            schedule += f" x{self.virtual_stages}"
        if self.active_microbatches:
            schedule += f" ({self.active_microbatches} active)"
        parts = [
            f"pipeline {self.pipeline} x tensor {self.tensor} x data {self.data}",
            f"{self.microbatches} microbatches of {self.microbatch_size}",
            schedule,
            f"sharding {self.sharding}",
            f"checkpointing {self.checkpointing}",
        ]
        if self.sequence_parallel:
            parts.append("sequence parallel")
        if self.offload_optimizer:
            parts.append("optimizer in host memory")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Impossible:
    """A part of the space that no candidate comes from."""

    what: str
    why: str


def layouts(model: Architecture, cluster: Cluster) -> Iterator[tuple[int, int, int] | Impossible]:
    """Give (pipeline, tensor, data) that use all ranks; those that break a rule as Impossible."""
    count = sum(run.count for run in model.layers)
    heads = min(run.heads for run in model.layers)
    for tensor in _divisors(cluster.ranks):
        if tensor & (tensor - 1):
            continue  # only powers of two are looked at
        what = f"tensor {tensor}"
        if tensor > cluster.ranks_per_host:
            yield Impossible(
                what, f"tensor parallelism stays inside a host, which has {cluster.ranks_per_host} ranks"
            )
            continue
        if heads % tensor:
            yield Impossible(what, f"it must divide the {heads} attention heads")
            continue
        for pipeline in _divisors(cluster.ranks // tensor):
            if pipeline > count:
                yield Impossible(f"{what}, pipeline {pipeline}", f"there are only {count} layers to divide")
                continue
            yield pipeline, tensor, cluster.ranks // tensor // pipeline


def candidates(model: Architecture, cluster: Cluster, batch: int) -> Iterator[Candidate | Impossible]:
    """Give all settings for a global batch of so many samples."""
    count = sum(run.count for run in model.layers)
    for layout in layouts(model, cluster):
        if isinstance(layout, Impossible):
            yield layout
            continue
        pipeline, tensor, data = layout
        if batch % data:
            yield Impossible(
                f"pipeline {pipeline} x tensor {tensor} x data {data}",
                f"a batch of {batch} cannot be divided by {data} ranks",
            )
            continue
        for microbatches in _divisors(batch // data):
            for schedule, virtual, active in _schedules(pipeline, microbatches, count):
                for sharding in SHARDINGS:
                    if (sharding != "none" and data == 1) or (sharding == "zero3" and pipeline > 1):
                        continue  # nobody to share with; or parameters gathered for every microbatch
                    for checkpointing in CHECKPOINTINGS:
                        for is_sequence_parallel in (False, True) if tensor > 1 else (False,):
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
                                    checkpointing=checkpointing,
                                    sequence_parallel=is_sequence_parallel,
                                    offload_optimizer=is_offloaded,
                                )


def _schedules(pipeline: int, microbatches: int, layers: int) -> Iterator[tuple[str, int, int]]:
    if pipeline == 1:
        yield "1f1b", 1, 0
        return
    for schedule, virtual in SCHEDULES:
        if pipeline * virtual > layers:
            continue
        if schedule == "interleaved_1f1b" and microbatches % pipeline:
            continue
        if schedule == "smp_interleaved":
            # Fewer active microbatches than stages keep less, and wait more.
            for active in sorted({2, pipeline // 2, pipeline} - {0, 1}):
                if active <= microbatches and active <= pipeline:
                    yield schedule, 1, active
            continue
        yield schedule, virtual, 0


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
