"""What all microbatches of a step share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

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
        plan: Of the batch's signature.
        program: Called with a microbatch; calls the model in turn.
        rank_of: Rank, within the pipeline, of each virtual stage.
        rank: This process's.
        own: Its virtual stages.
        values: Where values and gradients travel.
        reads: Where values travel that the host reads.
        ghosts: Runs operations on placeholders.
        coroutines: Threads.
        modes: Of the caller.
        glue: Modules outside units, which run on all ranks.
        needs_grad: It is a training step.
        postpones: The schedule has weight gradients apart.
        seed: Of random numbers.
        number: Counts steps.
        microbatches: How many the step has.
        first_place: Of its first microbatch among all that have ever run.
        has_begun: A stage of this rank has begun, or the rank waits for another's.
        wording: Of the API that the user wrote.
        first: Number of the first microbatch among those of all data-parallel replicas.
        turn: The microbatch whose code after the model may run: that of two is never mixed.
        reading: How many microbatches wait for a value that the host reads.
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
    has_begun: bool = False
    turn: int = 0
    reading: int = 0

    def is_mine(self, stage: int) -> bool:
        """Tell whether this rank holds a virtual stage."""
        return stage in self.own

    def others(self) -> list[int]:
        """Give the other ranks of the pipeline."""
        return [rank for rank in sorted(set(self.rank_of)) if rank != self.rank]
