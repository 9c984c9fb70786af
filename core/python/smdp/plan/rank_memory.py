"""What a rank holds at its peak: the estimate's kinds, and what ranks on CPU cores add to them.

On cores there is no device whose margin covers the libraries, and memory is counted in the process:

- A backward over the only microbatch frees activations as it makes gradients, which `zero_grad()` has freed
  before. The peak has the larger of both instead of their sum.
- Libraries keep buffers from their first use on: packed operands of matrix products, the group's shared
  memory, modules that are imported late. Measured with torch 2.13 by tests/benchmarks/plan_accuracy.py.
- A rank with a sharded optimizer sums the means of its shard beside the gradients.
- Gradients are reduced in chunks of shared memory instead of fusion buffers (SMDP_CHUNK_BYTES).
"""

from __future__ import annotations

from smdp import memory
from smdp.plan.candidate import Candidate
from smdp.plan.cluster import Cluster

# Bytes of the libraries; a pipeline also records and replays its program.
RUNTIME = 26e6
PIPELINE_RUNTIME = 14e6
# Of a buffer on cores; two are in use.
_CHUNK = 2 << 20


def bucket_bytes(cluster: Cluster) -> int:
    """Returns the bytes of a fusion buffer, as `smdp.memory.Setting` has them."""
    return _CHUNK if cluster.is_cpu else memory.Setting().bucket_bytes


def kinds(estimate: memory.Estimate, one: Candidate, cluster: Cluster) -> list[dict[str, float]]:
    """Returns the bytes of each pipeline rank by kind, which add up to what it holds at its peak.

    The kinds are `smdp.memory.KINDS` and, on cores, "runtime".

    Args:
        estimate: The estimate of the layout.
        one: The layout.
        cluster: The machines.
    """
    found = [{kind: getattr(stage, kind) for kind in memory.KINDS} for stage in estimate.stages]
    if not cluster.is_cpu:
        return found
    for stage in found:
        means = stage["gradients"] / (one.sharding_degree or one.data) if one.sharding == "zero1" else 0.0
        if one.pipeline == 1 and one.microbatches == 1:
            freed = stage["activations"] + stage["embedding"] + stage["logits"]
            stage["gradients"] -= min(stage["gradients"], freed)
        stage["gradients"] += means
        stage["runtime"] = RUNTIME + (PIPELINE_RUNTIME if one.pipeline > 1 else 0.0)
    return found


def peak(estimate: memory.Estimate, one: Candidate, cluster: Cluster) -> float:
    """Returns the bytes of the fullest rank."""
    return max(sum(stage.values()) for stage in kinds(estimate, one, cluster))
