"""The state shared by all microbatches of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from smdp.torch.offload.stage_activations import StageActivations
from smdp.torch.pipelining.engine.coroutines import CoroutinePool
from smdp.torch.pipelining.ghosts.ghosts import Ghosts
from smdp.torch.pipelining.interpreter.plan import Plan
from smdp.torch.pipelining.tensors.modes import Modes
from smdp.torch.pipelining.transfers.transfers import Channel
from smdp.torch.pipelining.units.wording import Wording


@dataclass(slots=True)
class Step:
    """One step.

    Attributes:
        plan: The plan for the batch's signature.
        program: The function called with each microbatch, which calls the model.
        rank_of: The rank, within the pipeline, of each virtual stage.
        rank: The rank of this process within the pipeline.
        own: The virtual stages of this rank.
        values: The channel for values and gradients.
        reads: The channel for values that the host reads.
        ghosts: Runs operations on placeholders.
        coroutines: The threads on which programs run.
        modes: The caller's torch modes, such as autocast.
        glue: Modules outside units, which run on all ranks.
        needs_grad: Whether this is a training step.
        postpones: Whether the schedule computes weight gradients separately.
        seed: Seed for random numbers.
        number: Index of the step.
        microbatches: Number of microbatches in the step.
        first_place: Index of the first microbatch among all that have ever run.
        saved: What the stages have saved for backward; None: autograd keeps it.
        has_begun: Whether a stage of this rank has begun, or the rank has waited for another rank's stage.
        wording: Names of the API that the user called, for messages.
        first: Index of the first microbatch among those of all data-parallel replicas.
        turn: The microbatch whose code after the model may run. Microbatches take turns, so that this code
            never interleaves.
        reading: Number of microbatches that wait for a host read.
    """

    plan: Plan
    program: Callable[[Any], Any]
    rank_of: list[int]
    rank: int
    own: frozenset[int]
    values: Channel
    reads: Channel
    ghosts: Ghosts
    coroutines: CoroutinePool
    modes: Modes
    glue: Sequence[nn.Module]
    needs_grad: bool
    postpones: bool
    seed: int
    number: int
    microbatches: int
    first_place: int
    first: int
    wording: Wording
    saved: StageActivations | None = None
    has_begun: bool = False
    turn: int = 0
    reading: int = 0

    def is_mine(self, stage: int) -> bool:
        """Returns whether this rank holds a virtual stage."""
        return stage in self.own

    def others(self) -> list[int]:
        """Returns the other ranks of the pipeline."""
        return [rank for rank in sorted(set(self.rank_of)) if rank != self.rank]
