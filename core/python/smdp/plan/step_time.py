"""Step time by formula: computation, exposed communication, and the pipeline's bubble.

p is the number of pipeline stages. Assumptions: tensor-parallel collectives do not overlap with computation;
the reduction of gradients overlaps with the last microbatch's backward, except on cores, which both need;
groups on the same hosts share the links equally. Activations are offloaded beside computation, so only what
takes longer counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from smdp._core import all_reduce_seconds, transfer_seconds
from smdp.memory import Architecture, Estimate, StateBytes, parameters, state_bytes
from smdp.plan.candidate import Candidate
from smdp.plan.candidates import local_ranks
from smdp.plan.cluster import Cluster
from smdp.plan.cores import step_on_cores
from smdp.plan.overhead import layer_overheads, with_overhead
from smdp.plan.work import Work


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of a step and its components, in seconds.

    Attributes:
        total: Time of the step.
        forward: Forward of a microbatch on the slowest stage, including its tensor-parallel collectives.
        backward: Backward of a microbatch on that stage, including recomputation by checkpointing.
        hop: One transfer between stages.
        reduction: The exposed time of reducing gradients and, if they are sharded, gathering parameters over
            the data-parallel ranks.
        update: The optimizer's step, without the gathering of parameters.
        offload: The exposed time of writing activations and optimizer states to a disk and reading them back.
        bubble: The idle fraction of a rank's time.
    """

    total: float
    forward: float
    backward: float
    hop: float
    reduction: float
    update: float
    offload: float
    bubble: float

    @property
    def beside_pipeline(self) -> float:
        """What comes on top of the pipeline's time: reduction, update and offloading."""
        return self.reduction + self.update + self.offload


class Clock:
    """Computes step times of one model on one cluster."""

    def __init__(
        self, model: Architecture, cluster: Cluster, work: Work, sequence: int, precision: str
    ) -> None:
        self._cluster = cluster
        self._work = work
        self._tokens = model.sequence or sequence
        self._hidden = model.hidden
        self._has_vocabulary = model.vocabulary > 0
        self._layers = sum(run.count for run in model.layers)
        self._parameters = parameters(model)
        self._states: StateBytes = state_bytes(precision, "none", 1)
        self._wire = 4.0 if precision == "fp32" else 2.0
        self._speed = cluster.speed(precision)

    def layer_times(self, one: Candidate) -> tuple[float, float]:
        """Returns the seconds of a layer's forward and backward for one microbatch."""
        speed = self._speed * one.tensor
        work = self._work.layer * one.microbatch_size / speed
        in_forward, in_backward = layer_overheads(self._cluster, one, self._layers)
        forward = with_overhead(self._cluster, work, in_forward)
        backward = with_overhead(self._cluster, 2 * work, in_backward)
        # Two all-reduces in forward and two in backward. Sequence parallelism replaces each by a
        # reduce-scatter and an all-gather, with the same bytes in total. In backward it gathers two inputs
        # once more.
        collectives = 2 * self._all_reduce(one)
        if one.sequence_parallel:
            backward += collectives / 2
        if one.checkpointing == "selective":
            backward += self._work.scores * one.microbatch_size / speed
        elif one.checkpointing != "none":
            backward += forward + collectives
        return forward + collectives, backward + collectives

    def head_times(self, one: Candidate) -> tuple[float, float]:
        """Returns the seconds of the logits' forward and backward for one microbatch."""
        speed = self._speed * one.tensor
        forward = self._work.head * one.microbatch_size / speed
        if not self._has_vocabulary:
            return forward, 2 * forward
        # The gradient of the logits' input is summed; sequence parallelism gathers this input.
        whole = self._all_reduce(one)
        return forward + (whole / 2 if one.sequence_parallel else 0.0), 2 * forward + whole

    def embedding_times(self, one: Candidate) -> tuple[float, float]:
        """Returns the seconds of summing the embedding's rows, and of gathering their gradient."""
        if not self._has_vocabulary:
            return 0.0, 0.0
        whole = self._all_reduce(one)
        return whole, whole / 2 if one.sequence_parallel else 0.0

    def hop(self, one: Candidate) -> float:
        """Returns the seconds of one transfer between stages."""
        if one.pipeline == 1:
            return 0.0
        size = self._wire * self._tokens * one.microbatch_size * self._hidden
        if one.sequence_parallel:
            size /= one.tensor
        stays = one.pipeline * one.tensor <= self._cluster.ranks_per_host
        share = self._cluster.link / min(one.tensor, self._cluster.ranks_per_host)
        rate = self._cluster.interconnect if stays else share
        return transfer_seconds(size, latency=self._cluster.latency, bandwidth=rate)

    def step(self, one: Candidate, estimate: Estimate | None = None) -> StepTime:
        """Returns the time of a whole step by closed forms; smdp.pipeline.simulate computes it exactly.

        Args:
            one: The layout.
            estimate: Its memory, by which updates and offloading are timed. None: they take no time.
        """
        layers = -(-self._layers // one.pipeline)
        forward, backward = self.layer_times(one)
        head_forward, head_backward = self.head_times(one)
        ends_forward, ends_backward = self.embedding_times(one)
        if one.pipeline > 1:
            # The first stage, which has no logits.
            ends_forward = ends_backward = 0.0
        stage_forward = layers * forward + head_forward + ends_forward
        stage_backward = layers * backward + head_backward + ends_backward
        both = stage_forward + stage_backward
        hop = self.hop(one)
        fill = one.pipeline - 1
        if one.schedule == "zb_v":
            # With enough microbatches, (p - 1) forwards of a virtual stage; with one, all stages in turn.
            # In between, this interpolates; the best candidates are simulated exactly.
            enough = min(1.0, (one.microbatches - 1) / max(1, 2 * fill))
            waiting = fill * (enough * stage_forward / 2 + (1 - enough) * both)
        elif one.schedule == "smp_interleaved" and one.active_microbatches < one.pipeline:
            # At most `active` microbatches are in flight: each of m / active rounds runs through all stages.
            rounds = one.microbatches / one.active_microbatches
            waiting = rounds * (one.pipeline - one.active_microbatches) * both + fill * both
        else:
            waiting = fill * both / one.virtual_stages
        hops = 2 * fill * one.virtual_stages * hop
        # 1F1B waits for 2 (p - 1) / p hops in every microbatch of its steady state.
        if one.schedule in ("1f1b", "smp_interleaved") and one.pipeline > 1:
            hops += 2 * fill / one.pipeline * one.microbatches * hop
        busy = one.microbatches * both
        pipeline = busy + waiting + hops
        if self._cluster.is_cpu:
            # The work of the average rank: the stages share the cores.
            mean = self._layers * (forward + backward) + head_forward + head_backward
            mean = one.microbatches * (mean / one.pipeline + ends_forward + ends_backward)
            pipeline = self.on_cores(pipeline, 1 - min(1.0, mean / pipeline))
        hidden_behind = 0.0 if self._cluster.is_cpu else stage_backward
        reduction = self._reduction(one, hidden_behind) * self._cluster.slowdown
        update = self._update(one, estimate)
        offload = self._offload(one, estimate, pipeline)
        total = pipeline + reduction + update + offload
        bubble = max(0.0, 1 - busy / total)
        return StepTime(total, stage_forward, stage_backward, hop, reduction, update, offload, bubble)

    def on_cores(self, seconds: float, bubble: float) -> float:
        """Returns the time of a pipeline whose ranks share the cores of their host, if they do.

        Args:
            seconds: The time with a core for each rank.
            bubble: The fraction of it for which ranks wait.
        """
        if not self._cluster.is_cpu:
            return seconds
        ranks, cores = self._cluster.ranks_per_host, self._cluster.cores_per_host
        return step_on_cores(seconds, bubble, ranks=ranks, cores=cores)

    def _update(self, one: Candidate, estimate: Estimate | None) -> float:
        """Returns the seconds in which the fullest rank, or all ranks of a host, update their parameters."""
        if estimate is None or not self._cluster.memory_bandwidth:
            return 0.0
        largest = max(self._updated_bytes(one, estimate))
        mean = sum(self._updated_bytes(one, estimate)) / one.pipeline * self._cluster.slowdown
        return max(largest, mean) / self._cluster.memory_bandwidth

    def _updated_bytes(self, one: Candidate, estimate: Estimate) -> list[float]:
        """Returns the bytes of parameters, gradients and states that a rank of each stage updates."""
        degree = one.sharding_degree or one.data
        divisor = degree if one.sharding in ("zero1", "zero2", "zero3") else 1
        whole = degree if one.sharding == "zero3" else 1
        return [
            stage.parameters * whole / self._states.parameters * self._states.sum / divisor
            for stage in estimate.stages
        ]

    def _offload(self, one: Candidate, estimate: Estimate | None, beside: float) -> float:
        """Returns the exposed seconds of writing to a host's disk, which its ranks share, and reading back.

        Activations go out beside the pipeline's computation. Optimizer states are read ahead, but nothing
        else runs in the update.
        """
        if estimate is None:
            return 0.0
        seconds = 0.0
        per_byte = 2 * self._cluster.ranks_per_host / self._cluster.disk
        states = self._optimizer_bytes(one, estimate) if one.offload_optimizer else [0.0] * one.pipeline
        if one.offload_activations:
            moved = max(
                (stage.host - of_states + stage.activations) / max(1.0, stage.in_flight)
                for stage, of_states in zip(estimate.stages, states, strict=True)
                if stage.host > of_states or stage is estimate.stages[0]
            )
            seconds += max(0.0, one.microbatches * moved * per_byte - beside)
        return seconds + max(states) * per_byte

    def _optimizer_bytes(self, one: Candidate, estimate: Estimate) -> list[float]:
        """Returns the bytes of optimizer states of a rank of each stage."""
        share = self._states.optimizer / self._states.sum
        return [size * share for size in self._updated_bytes(one, estimate)]

    def _all_reduce(self, one: Candidate) -> float:
        """Returns the seconds of summing a microbatch's activations over the tensor-parallel ranks."""
        if one.tensor == 1:
            return 0.0
        size = self._wire * self._tokens * one.microbatch_size * self._hidden
        return all_reduce_seconds(
            size, one.tensor, latency=self._cluster.latency, bandwidth=self._cluster.interconnect
        )

    def _reduction(self, one: Candidate, hidden_behind: float) -> float:
        if one.data == 1:
            return 0.0
        own = self._parameters / (one.pipeline * one.tensor)
        gradients = self._over_data(self._states.wire * own, one)
        if one.sharding == "zero3":
            # Half an all-reduce of gradients, and a gather of parameters in each forward and each backward.
            gathers = self._over_data(self._states.parameters * own, one) * one.microbatches
            return max(0.0, gradients / 2 + gathers - one.microbatches * hidden_behind)
        if one.sharding_degree:
            # Gradients are reduced as without sharding, and parameters return inside the hosts.
            gather = self._inside(self._states.parameters * own, one) / 2
            return max(0.0, gradients - hidden_behind) + gather
        if one.sharding in ("zero1", "zero2"):
            # The reduce-scatter of gradients overlaps with backward, for zero2 with that of every microbatch.
            # The gather of parameters does not overlap with anything.
            times = one.microbatches if one.sharding == "zero2" else 1
            gather = self._over_data(self._states.parameters * own, one) / 2
            return times * max(0.0, gradients / 2 - hidden_behind) + gather
        return max(0.0, gradients - hidden_behind)

    def _over_data(self, size: float, one: Candidate) -> float:
        """Returns the seconds of an all-reduce over the data-parallel ranks, inside hosts and between them.

        A host has `local` ranks of each data-parallel group, and ranks_per_host / local groups share its
        link. Over M hosts, each sends 2 (M - 1) / M of its bytes.
        """
        local = self._local(one)
        groups = self._cluster.ranks_per_host // local
        return self._inside(size, one) + all_reduce_seconds(
            size * groups, one.data // local, latency=self._cluster.latency, bandwidth=self._cluster.link
        )

    def _inside(self, size: float, one: Candidate) -> float:
        """Returns the seconds of an all-reduce over the data-parallel ranks of a host."""
        return all_reduce_seconds(
            size,
            self._local(one),
            latency=self._cluster.latency,
            bandwidth=self._cluster.interconnect,
        )

    def _local(self, one: Candidate) -> int:
        return local_ranks(self._cluster, (one.pipeline, one.tensor, one.data))
