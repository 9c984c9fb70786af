"""Recorded steps, whose plans later steps with the same signature follow."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from smdp.torch.pipelining.engine.actions import Action
from smdp.torch.pipelining.engine.timeline import Timeline
from smdp.torch.pipelining.interpreter.plan import Plan
from smdp.torch.pipelining.tensors.containers import describe
from smdp.torch.pipelining.tensors.modes import Modes

# If sequence lengths keep changing, the oldest recordings beyond this number are dropped.
_MOST = 256
# After this many consecutive steps that had to be recorded, a warning explains why training is slow.
_MANY = 8

_log = logging.getLogger(__name__)


class Recording:
    """The result of recording the first step of a signature: a plan, and the row that executes it.

    Attributes:
        plan: The plan, which grows while it is recorded.
        row: The actions of this rank.
        is_in_lockstep: Whether the row contains the places where microbatches resume after host reads.
        timeline: Writes the step to the trace; None without a trace.
        end: The last operation of a forward that this rank needs.
        has_backward: Whether this is a training step with a loss.
    """

    def __init__(self) -> None:
        self.plan = Plan()
        self.row: list[Action] = []
        self.is_in_lockstep = False
        self.timeline: Timeline | None = None
        self.end = 1 << 30
        self.has_backward = False


class Recordings:
    """The recordings of a model's steps, by their signatures.

    Args:
        model: The whole model.
        glue: Modules outside units.
        is_teller: Whether this rank logs warnings.
    """

    def __init__(self, model: nn.Module, glue: Sequence[nn.Module], *, is_teller: bool) -> None:
        self._model = model
        self._glue = glue
        self._is_teller = is_teller
        self._known: dict[Any, Recording] = {}
        self._in_a_row = 0

    def __bool__(self) -> bool:
        return bool(self._known)

    def signature(self, parts: Sequence[Any], identity: object, modes: Modes, *, is_training: bool) -> Any:
        """Returns a key that is equal for all steps that can follow the same plan.

        Args:
            parts: The microbatches.
            identity: The user's function that the program runs; see code_of().
            modes: The caller's torch modes.
            is_training: Whether gradients are computed.
        """
        return (
            len(parts),
            describe(parts[0]),
            is_training,
            tuple(module.training for module in self._model.modules()),
            modes.key(),
            code_of(identity),
            tuple(parameter.requires_grad for parameter in self._model.parameters()),
            tuple(_switches(module) for module in self._glue),
        )

    def find(self, signature: Any) -> Recording:
        """Returns the recording of a signature, or a new one if there is none."""
        return self._known.get(signature) or Recording()

    def keep(self, signature: Any, recording: Recording) -> None:
        """Keeps the recording of a completed step, and warns if many steps in a row had to be recorded."""
        is_new = signature not in self._known
        self._known[signature] = recording
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        self._in_a_row = self._in_a_row + 1 if is_new else 0
        if self._in_a_row == _MANY and self._is_teller:
            _log.warning(
                "[smdp] each of the last %d steps had arguments of new shapes, or new numbers, and was"
                " recorded, which takes several times as long as a step; pass a number that changes in"
                " every step as a tensor, torch.tensor(x), and pad sequences to a few lengths",
                _MANY,
            )


def code_of(function: Any) -> object:
    """Returns a key of a function and all that it wraps, which stays equal if they are created anew."""
    found = []
    while function is not None:
        is_partial = isinstance(function, functools.partial)
        found.append(getattr(function, "__code__", type(function)))
        function = function.func if is_partial else getattr(function, "__wrapped__", None)
    return tuple(found)


def _switches(module: nn.Module) -> tuple[float | None, ...]:
    """Returns which numbers of a module are 0 or 1: with these probabilities dropout draws nothing."""
    # Integers are usually counters, except for nn.Dropout's p.
    kinds = (float, int) if isinstance(module, _DropoutNd) else (float,)
    numbers = [item for item in vars(module).values() if type(item) in kinds]
    return tuple(number if number in (0, 1) else None for number in numbers)
