"""One layout of a model, and how it is named."""

from __future__ import annotations

from dataclasses import dataclass

from smdp._shown import counted

# In the order of AWS's advice for its model parallel library: the cheapest is tried first.
SHARDINGS = ("none", "zero1", "zero2", "zero3")
CHECKPOINTINGS = ("none", "selective", "each", "group_2", "group_4", "contiguous")


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
    precision: str = "bf16"
    sharding: str = "none"
    sharding_degree: int = 0
    checkpointing: str = "none"
    sequence_parallel: bool = False
    offload_activations: bool = False
    offload_optimizer: bool = False

    @property
    def shards(self) -> str:
        """The sharding, and whether only the ranks of each host share it."""
        return f"{self.sharding} per host" if self.sharding_degree else self.sharding

    def features(self) -> dict[int, str]:
        """Returns the features that the layout uses, keyed by their position in the order of AWS's advice."""
        all_of_them = [
            (self.sharding != "none", self.shards),
            (self.checkpointing != "none", f"checkpointing={self.checkpointing}"),
            (self.tensor > 1, f"tensor={self.tensor}"),
            (self.sequence_parallel, "sequence_parallel"),
            (self.pipeline > 1, f"pipeline={self.pipeline}"),
            (self.virtual_stages > 1, self.schedule),
            (self.offload_activations, "offload_activations"),
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
            self.precision,
        ]
        if self.sequence_parallel:
            parts.append("sequence parallel")
        if self.offload_activations:
            parts.append("activations offloaded")
        if self.offload_optimizer:
            parts.append("optimizer offloaded")
        return ", ".join(parts)
