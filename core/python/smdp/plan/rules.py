"""What does not run, although it may fit: the combinations that smdp's functions refuse."""

from __future__ import annotations

from smdp.plan.candidate import Candidate
from smdp.plan.cluster import Cluster

# Precisions that a script can choose: fp32 as it is, the others by MixedPrecision or by torch.autocast.
_TRAINED = ("fp32", "bf16", "fp16", "amp")


def refusal(one: Candidate, cluster: Cluster, offload: str = "") -> str | None:
    """Returns why a layout does not run on these machines, or None if it does.

    Args:
        one: The layout.
        cluster: The machines.
        offload: Where it offloads to: "host", or "disk:" and a folder.
    """
    is_sharded = one.sharding in ("zero2", "zero3")
    for is_refused, why in (
        (
            one.sharding == "zero1" and not cluster.is_cpu,
            "ShardedOptimizer needs a model on the CPU",
        ),
        (
            is_sharded and one.pipeline > 1,
            "ShardedDataParallel shards the parameters of whole models, not of stages",
        ),
        (
            is_sharded and one.precision == "fp16",
            "ShardedDataParallel does not scale losses; use bf16",
        ),
        (
            one.offload_activations and offload == "host" and cluster.is_cpu,
            'offload="host" moves tensors of GPUs; use a disk',
        ),
        (
            one.offload_activations and offload != "host" and not cluster.is_cpu,
            "tensors of GPUs move to host memory only",
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
