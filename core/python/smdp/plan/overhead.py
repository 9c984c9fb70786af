"""The time of a layer that does not depend on its size: starting operators, and the Python around them."""

from __future__ import annotations

from smdp.plan.candidate import Candidate
from smdp.plan.cluster import Cluster

# In times of a layer of a plain model, measured with layers so small that nothing else counts. Python sees
# each operator of a divided layer, besides the collectives, which are timed by their latency. A stage runs
# the model's program around its layers, and the actions of the schedule, once per microbatch.
_DIVIDED = 1.0
_STAGE = 4.0
# What smdp adds is in forward: backward runs in torch's engine.
_FORWARD = 1 / 3


def layer_overheads(cluster: Cluster, one: Candidate, layers: int) -> tuple[float, float]:
    """Returns the fixed seconds of a layer's forward and backward for one microbatch.

    Args:
        cluster: The machines.
        one: The layout.
        layers: The number of layers of the whole model, over which a stage's own overhead is spread.

    Example:
        >>> cluster = Cluster(layer_overhead=600e-6)
        >>> one = Candidate(pipeline=1, tensor=1, data=1, microbatches=1, microbatch_size=1)
        >>> [round(1e6 * seconds) for seconds in layer_overheads(cluster, one, 8)]
        [200, 400]
    """
    plain = cluster.layer_overhead
    forward = plain * _FORWARD
    if one.tensor > 1:
        forward += plain * _DIVIDED
    if one.pipeline > 1:
        forward += plain * _STAGE * one.pipeline * one.virtual_stages / layers
    return forward, plain * (1 - _FORWARD)


def with_overhead(cluster: Cluster, work: float, overhead: float) -> float:
    """Returns the seconds of work of which a fixed part is a processor's.

    A core does one after the other. A processor starts the operators of a device ahead, so that the longer
    of the two counts.
    """
    return work + overhead if cluster.is_cpu else max(work, overhead)
