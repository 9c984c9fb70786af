"""What a step takes, by formula: computation, exposed communication and the pipeline's bubble.

p is the number of pipeline stages. Assumptions: tensor-parallel collectives are not hidden; the reduction of
gradients hides behind the last microbatch's backward; activations travel in 2 bytes; groups whose ranks lie
on the same hosts have equal shares of the links.
"""

from __future__ import annotations

from dataclasses import dataclass

from smdp._core import all_reduce_seconds, transfer_seconds
from smdp.memory import Architecture, StateBytes, parameters, state_bytes
from smdp.plan.candidates import Candidate
from smdp.plan.cluster import Cluster
from smdp.plan.work import Work

_WIRE_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step, and what they are made of.

    Attributes:
        total: Of the step.
        forward: Of a microbatch on the slowest stage, its tensor-parallel collectives included.
        backward: The same; what checkpointing computes again included.
        hop: Of one transfer between stages.
        reduction: Of gradients and, where they are sharded, parameters over the data-parallel ranks, as far
            as it is exposed.
        bubble: Idle part of a rank's time.
    """

    total: float
    forward: float
    backward: float
    hop: float
    reduction: float
    bubble: float


class Clock:
    """Tells step times of one model on one cluster."""

    def __init__(
        self, model: Architecture, cluster: Cluster, work: Work, sequence: int, precision: str
    ) -> None:
        self._cluster = cluster
        self._work = work
        self._tokens = model.sequence or sequence
        self._hidden = model.hidden
        self._layers = sum(run.count for run in model.layers)
        self._parameters = parameters(model)
        self._states: StateBytes = state_bytes(precision, "none", 1)

    def layer_times(self, one: Candidate) -> tuple[float, float]:
        """Give the seconds of a layer's forward and backward, for one microbatch."""
        speed = self._cluster.flops * self._cluster.efficiency * one.tensor
        forward = self._work.layer * one.microbatch_size / speed
        backward = 2 * forward
        collectives = 0.0
        if one.tensor > 1:
            # Two all-reduces in forward, two in backward; with sequence parallelism the same bytes in halves.
            size = _WIRE_BYTES * self._tokens * one.microbatch_size * self._hidden
            collectives = 2 * all_reduce_seconds(
                size, one.tensor, latency=self._cluster.latency, bandwidth=self._cluster.interconnect
            )
        if one.checkpointing == "selective":
            backward += self._work.scores * one.microbatch_size / speed
        elif one.checkpointing != "none":
            backward += forward + collectives
        return forward + collectives, backward + collectives

    def head_times(self, one: Candidate) -> tuple[float, float]:
        """Give the seconds of the logits' forward and backward, for one microbatch."""
        speed = self._cluster.flops * self._cluster.efficiency * one.tensor
        forward = self._work.head * one.microbatch_size / speed
        return forward, 2 * forward

    def hop(self, one: Candidate) -> float:
        """Give the seconds of one transfer between stages."""
        if one.pipeline == 1:
            return 0.0
        size = _WIRE_BYTES * self._tokens * one.microbatch_size * self._hidden
        if one.sequence_parallel:
            size /= one.tensor
        stays = one.pipeline * one.tensor <= self._cluster.ranks_per_host
        share = self._cluster.link / min(one.tensor, self._cluster.ranks_per_host)
        rate = self._cluster.interconnect if stays else share
        return transfer_seconds(size, latency=self._cluster.latency, bandwidth=rate)

    def step(self, one: Candidate) -> StepTime:
        """Give the time of a whole step, by closed forms; smdp.pipeline.simulate tells it exactly."""
        layers = -(-self._layers // one.pipeline)
        forward, backward = self.layer_times(one)
        head_forward, head_backward = self.head_times(one)
        stage_forward = layers * forward + head_forward
        stage_backward = layers * backward + head_backward
        both = stage_forward + stage_backward
        hop = self.hop(one)
        fill = one.pipeline - 1
        if one.schedule == "zb_v":
            # (p - 1) forwards of a virtual stage where there are enough microbatches, else up to all stages
            # in turn; between the two the simulation of the best candidates has to tell.
            enough = min(1.0, (one.microbatches - 1) / max(1, 2 * fill))
            waiting = fill * (enough * stage_forward / 2 + (1 - enough) * both)
        elif one.schedule == "smp_interleaved" and one.active_microbatches < one.pipeline:
            # No more than `active` are under way: each of m / active rounds runs through all stages.
            rounds = one.microbatches / one.active_microbatches
            waiting = rounds * (one.pipeline - one.active_microbatches) * both + fill * both
        else:
            waiting = fill * both / one.virtual_stages
        hops = 2 * fill * one.virtual_stages * hop
        # 1F1B waits for 2 (p - 1) / p hops in every microbatch of its steady state.
        if one.schedule in ("1f1b", "smp_interleaved") and one.pipeline > 1:
            hops += 2 * fill / one.pipeline * one.microbatches * hop
        busy = one.microbatches * both
        reduction = self._reduction(one, stage_backward)
        total = busy + waiting + hops + reduction
        return StepTime(total, stage_forward, stage_backward, hop, reduction, 1 - busy / total)

    def _reduction(self, one: Candidate, hidden_behind: float) -> float:
        if one.data == 1:
            return 0.0
        own = self._parameters / (one.pipeline * one.tensor)
        gradients = self._over_data(self._states.wire * own, one)
        if one.sharding == "zero3":
            # Half an all-reduce of gradients; parameters are gathered for forward and for backward of each.
            gathers = self._over_data(self._states.parameters * own, one) * one.microbatches
            return max(0.0, gradients / 2 + gathers - one.microbatches * hidden_behind)
        if one.sharding in ("zero1", "zero2"):
            # Gradients are scattered behind backward, by zero2 behind that of every microbatch; parameters
            # come back with nothing to hide behind.
            times = one.microbatches if one.sharding == "zero2" else 1
            gather = self._over_data(self._states.parameters * own, one) / 2
            return times * max(0.0, gradients / 2 - hidden_behind) + gather
        return max(0.0, gradients - hidden_behind)

    def _over_data(self, size: float, one: Candidate) -> float:
        """Seconds of an all-reduce over the data-parallel ranks, inside hosts first, then between them.

        Model-parallel ranks lie next to each other, so that a host has `local` ranks of each group, and
        ranks_per_host / local groups share its link: 2 (M - 1) / M of the bytes each, over M hosts.
        """
        local = max(1, min(one.data, self._cluster.ranks_per_host // (one.pipeline * one.tensor)))
        groups = self._cluster.ranks_per_host // local
        latency = self._cluster.latency
        inside = all_reduce_seconds(size, local, latency=latency, bandwidth=self._cluster.interconnect)
        return inside + all_reduce_seconds(
            size * groups, one.data // local, latency=latency, bandwidth=self._cluster.link
        )
