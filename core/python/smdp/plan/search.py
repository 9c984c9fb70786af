"""The search for settings that fit and are fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from smdp import memory, pipeline
from smdp._shown import shown
from smdp.plan.candidate import CHECKPOINTINGS, Candidate
from smdp.plan.candidates import Impossible, candidates
from smdp.plan.cluster import Cluster
from smdp.plan.rank_memory import bucket_bytes, kinds, peak
from smdp.plan.rules import refusal
from smdp.plan.step_time import Clock, StepTime
from smdp.plan.work import work_of

# A setting with fewer features is preferred if its step is at most this fraction longer than the fastest.
TOLERANCE = 0.05
# Schedules with more computations are not simulated; their closed forms are used instead.
_MOST_CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate that fits, with its memory and step time.

    Attributes:
        candidate: The setting.
        estimate: Bytes of every pipeline rank, by kind.
        step: Step time by closed forms.
        peak: Bytes that the fullest rank holds.
        simulation: Simulation of the schedule; None if it was not simulated.
        simulated: Its time on the cores of the hosts.
        seconds: Step time from the simulation if there is one, otherwise by closed forms.
    """

    candidate: Candidate
    estimate: memory.Estimate
    step: StepTime
    peak: float
    simulation: pipeline.Simulation | None = None
    simulated: float = 0.0

    @property
    def seconds(self) -> float:
        """The step time in seconds."""
        if self.simulation is None:
            return self.step.total
        return self.simulated + self.step.beside_pipeline

    @property
    def bubble(self) -> float:
        """The idle fraction of the pipeline's time."""
        return self.step.bubble if self.simulation is None else self.simulation.bubble


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that does not fit or is not possible, with the reason."""

    what: str
    why: str
    option: Option | None = None


@dataclass(slots=True)
class Plan:
    """The result of a search.

    Attributes:
        options: The settings that fit: the recommended one, then the simulated ones by step time, then the
            others by the step time of their closed forms.
        unusable: The settings that would fit, but that smdp does not run, each with the reason.
        rejected: The settings that do not fit.
        nearest: The rejected setting with the smallest peak memory; None if any setting fits.
    """

    cluster: Cluster
    batch: int
    sequence: int
    flash_attention: bool = False
    offload: str = ""
    options: list[Option] = field(default_factory=list)
    unusable: list[Rejected] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    nearest: Option | None = None


def plan(
    model: memory.Architecture,
    cluster: Cluster,
    *,
    batch: int,
    sequence: int,
    precision: str | Sequence[str] = "bf16",
    flash_attention: bool = False,
    offload: str = "",
    simulated: int = 12,
) -> Plan:
    """Searches over pipeline, tensor, sharding, checkpointing, microbatches, schedule and offloading.

    Of the settings that fit, that smdp runs, and that are within TOLERANCE of the fastest, it recommends the
    one with the fewest features.

    Args:
        model: The model, from `smdp.memory.read_config`.
        cluster: The machines, of which all ranks are used.
        batch: Samples per step, over all ranks.
        sequence: Tokens per sample.
        precision: Precision as in `smdp.memory.state_bytes`, or several to try.
        flash_attention: Whether to assume that attention does not store its scores.
        offload: Where to consider activations and optimizer states: "host", "disk:" and a folder, or "" for
            nowhere else than in the device's memory.
        simulated: How many of the fastest settings to simulate, and how many of the simplest ones that are
            almost as fast.

    Raises:
        ValueError: A value is invalid. The message names it and what is allowed.
    """
    _check("batch", batch)
    _check("sequence", sequence)
    if not model.layers:
        raise ValueError("[smdp] the model has no layers to divide")
    if offload and offload != "host" and not offload.removeprefix("disk:").startswith("/"):
        raise ValueError(
            f"[smdp] offload = {shown(offload, 120)} is not valid; allowed: 'host', or 'disk:' and a"
            " folder on a local disk, such as 'disk:/scratch'"
        )
    found = Plan(cluster, batch, sequence, flash_attention, offload)
    clocks: dict[str, Clock] = {}
    for name in [precision] if isinstance(precision, str) else precision:
        # Reports errors in the model or the sequence length, which would affect every candidate.
        memory.estimate(model, sequence=sequence, precision=name)
        is_first = not clocks
        clocks[name] = Clock(model, cluster, work_of(model, sequence), sequence, name)
        for one in candidates(model, cluster, batch, sequence, precision=name, offload=offload):
            if not isinstance(one, Impossible):
                _judge(found, one, model, clocks[name])
            elif is_first:  # the reasons do not depend on the precision
                found.rejected.append(Rejected(one.what, one.why))
    if found.options or found.unusable:
        found.nearest = None
    if found.options:
        _rank(found, clocks, model, simulated)
    return found


def _judge(found: Plan, one: Candidate, model: memory.Architecture, clock: Clock) -> None:
    """Adds a candidate to the options, or to those that do not run or do not fit."""
    setting = memory.Setting(
        microbatch_size=one.microbatch_size,
        microbatches=one.microbatches,
        sequence=found.sequence,
        pipeline=one.pipeline,
        virtual_stages=one.virtual_stages,
        tensor=one.tensor,
        data=one.data,
        sequence_parallel=one.sequence_parallel,
        schedule=one.schedule,
        active_microbatches=one.active_microbatches,
        precision=one.precision,
        sharding=one.sharding,
        sharding_degree=one.sharding_degree,
        checkpointing=one.checkpointing,
        flash_attention=found.flash_attention,
        offload_activations=one.offload_activations,
        offload_optimizer=one.offload_optimizer,
        bucket_bytes=bucket_bytes(found.cluster),
    )
    try:
        estimate = memory.estimate(model, setting)
    except ValueError as error:
        found.rejected.append(Rejected(one.describe(), str(error).removeprefix("[smdp] ")))
        return
    option = Option(one, estimate, clock.step(one, estimate), peak(estimate, one, found.cluster))
    if option.peak > found.cluster.usable_memory:
        found.rejected.append(Rejected(one.describe(), _too_much(option, found.cluster), option))
        if found.nearest is None or option.peak < found.nearest.peak:
            found.nearest = option
    elif (why := refusal(one, found.cluster, found.offload)) is not None:
        found.unusable.append(Rejected(one.describe(), why, option))
    else:
        found.options.append(option)


def _check(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**24:
        raise ValueError(
            f"[smdp] {name} = {shown(value, 120)} is not valid; allowed: an integer from 1 to 16777216"
        )


def _too_much(option: Option, cluster: Cluster) -> str:
    stages = kinds(option.estimate, option.candidate, cluster)
    totals = [sum(stage.values()) for stage in stages]
    place = totals.index(max(totals))
    kind, size = max(stages[place].items(), key=lambda item: item[1])
    return (
        f"stage {place} needs {totals[place] / 1e9:.1f} GB of {cluster.usable_memory / 1e9:.1f};"
        f" the largest part is {kind}, {size / 1e9:.1f} GB"
    )


def _rank(found: Plan, clocks: dict[str, Clock], model: memory.Architecture, simulated: int) -> None:
    found.options.sort(key=lambda option: (option.step.total, _simplicity(option)))
    fastest = [
        _simulated(option, clocks[option.candidate.precision], model) for option in found.options[:simulated]
    ]
    # The rest may contain simpler settings that are as fast, within the tolerance.
    limit = min(option.seconds for option in fastest) * (1 + TOLERANCE)
    near = (option for option in found.options[simulated:] if option.step.total <= limit)
    fastest += [
        _simulated(option, clocks[option.candidate.precision], model)
        for option in sorted(near, key=_simplicity)[:simulated]
    ]
    chosen = {id(option.candidate) for option in fastest}
    others = [option for option in found.options if id(option.candidate) not in chosen]
    limit = min(option.seconds for option in fastest) * (1 + TOLERANCE)
    best = min((option for option in fastest if option.seconds <= limit), key=_simplicity)
    fastest.sort(key=lambda option: option.seconds)
    found.options = [best, *(option for option in fastest if option is not best), *others]


def _simplicity(option: Option) -> tuple[int, int, int, float]:
    """Returns the sort key by AWS's advice: last feature, number of features, their amount, step time."""
    one = option.candidate
    features = one.features()
    amount = CHECKPOINTINGS.index(one.checkpointing) + one.tensor + one.pipeline
    return max(features, default=-1), len(features), amount, option.seconds


def _simulated(option: Option, clock: Clock, model: memory.Architecture) -> Option:
    """Returns the option with its schedule simulated, with uneven stages and the head on the last one."""
    one = option.candidate
    stages = one.pipeline * one.virtual_stages
    if stages * one.microbatches > _MOST_CELLS:
        return option
    times = stage_times(one, clock, sum(run.count for run in model.layers))
    schedule = pipeline.generate(
        one.schedule,
        stages=one.pipeline,
        microbatches=one.microbatches,
        virtual_stages=one.virtual_stages,
        active_microbatches=one.active_microbatches or None,
        **times,
    )
    simulation = pipeline.simulate(schedule, **times)
    seconds = clock.on_cores(simulation.makespan, simulation.bubble)
    return Option(one, option.estimate, option.step, option.peak, simulation, seconds)


def stage_times(one: Candidate, clock: Clock, layers: int) -> dict[str, Any]:
    """Returns the times per virtual stage as arguments of `smdp.pipeline.simulate`."""
    stages = one.pipeline * one.virtual_stages
    forward, backward = clock.layer_times(one)
    head_forward, head_backward = clock.head_times(one)
    sizes = memory.even_stages(layers, stages)
    own_forward = [size * forward for size in sizes]
    own_backward = [size * backward for size in sizes]
    own_forward[-1] += head_forward
    own_backward[-1] += head_backward
    embedding_forward, embedding_backward = clock.embedding_times(one)
    own_forward[0] += embedding_forward
    own_backward[0] += embedding_backward
    return {
        "forward": own_forward,
        "backward_input": [seconds / 2 for seconds in own_backward],
        "backward_weight": [seconds / 2 for seconds in own_backward],
        "hop": clock.hop(one),
    }
