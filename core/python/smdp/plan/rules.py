"""What does not run, although it may fit: the combinations that smdp's functions refuse."""

from __future__ import annotations

from smdp.plan.candidate import Candidate
from smdp.plan.cluster import Cluster

# Precisions that a script can choose: fp32 as it is, the others by MixedPrecision or by torch.autocast.
_TRAINED = ("fp32", "bf16", "fp16", "amp")


def refusal(one: Candidate, cluster: Cluster) -> str | None:
    """Returns why a layout does not run on these machines, or None if it does."""
    for is_refused, why in (
        (
            one.sharding == "zero1" and not cluster.is_cpu,
            "ShardedOptimizer needs a model on the CPU",
        ),
        (
            one.sharding in ("zero2", "zero3") and one.pipeline > 1,
            "parameters cannot be sharded in a pipeline",
        ),
        (
            one.sharding == "zero2" and cluster.is_cpu,
            "no function shards gradients and keeps parameters whole on CPUs",
        ),
        (
            one.sharding == "zero2" and one.precision == "fp16",
            "fully_shard does not scale the loss",
        ),
        (
            one.sequence_parallel and one.pipeline > 1,
            "pipeline() has no sequence parallelism",
        ),
        (
            one.precision == "amp" and one.pipeline > 1,
            "pipeline() trains in the model's own data type, or with MixedPrecision",
        ),
        (
            one.precision not in _TRAINED,
            f"no function of smdp trains with {one.precision}; it is for estimates only",
        ),
    ):
        if is_refused:
            return why
    return None
