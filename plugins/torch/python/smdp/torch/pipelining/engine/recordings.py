"""Steps that were recorded: later ones of the same signature follow their plans."""

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

# Of ever new lengths of sequences only so many are remembered.
_MOST = 256
# Steps in a row that had to be recorded, after which the log says why training is slow.
_MANY = 8

_log = logging.getLogger(__name__)


class Recording:
    """What a first step of a signature has found: a plan, and the row that executes it.

    Attributes:
        plan: Grows while it is recorded.
        row: This rank's actions.
        is_in_lockstep: The row says where microbatches go on after host reads.
        timeline: Of the trace; None without one.
        end: The last operation that this rank needs of a forward.
        has_backward: It is a training step with a loss.
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
        is_teller: This rank logs.
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
        """Returns what steps have in common that follow one plan.

        Args:
            parts: The microbatches.
            identity: What calls the program of a microbatch as this step does.
            modes: Of the caller.
            is_training: With gradients.
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
        """Returns the recording of a signature; a new one where there is none."""
        return self._known.get(signature) or Recording()

    def keep(self, signature: Any, recording: Recording) -> None:
        """Keeps the recording of a step that has run, and logs where each step has to be recorded."""
        is_new = signature not in self._known
        self._known[signature] = recording
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        self._in_a_row = self._in_a_row + 1 if is_new else 0
        if self._in_a_row == _MANY and self._is_teller:
            _log.warning(
                "[smdp] each of the last %d steps got arguments of other shapes, or other numbers, and was"
                " recorded, which takes several times as long as a step; give a number that changes in every"
                " step as a tensor, torch.tensor(x), and pad sequences to a few lengths",
                _MANY,
            )


def code_of(function: Any) -> object:
    """Returns what is the same for a function that is made anew in every step, with all that it wraps."""
    found = []
    while function is not None:
        is_partial = isinstance(function, functools.partial)
        found.append(getattr(function, "__code__", type(function)))
        function = function.func if is_partial else getattr(function, "__wrapped__", None)
    return tuple(found)


def _switches(module: nn.Module) -> tuple[float | None, ...]:
    """Returns which of its numbers are 0 or 1: dropout with 0 gives its input, with 1 it draws nothing."""
    # An integer counts something, unless it is nn.Dropout's p.
    kinds = (float, int) if isinstance(module, _DropoutNd) else (float,)
    numbers = [item for item in vars(module).values() if type(item) in kinds]
    return tuple(number if number in (0, 1) else None for number in numbers)
