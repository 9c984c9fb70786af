"""A forward on placeholders only, which finds the stages that use each parameter before the split."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from smdp.torch.pipelining.ghosts.ghosts import Ghosts
from smdp.torch.pipelining.interpreter.interpreter import Interpreter
from smdp.torch.pipelining.interpreter.plan import Plan
from smdp.torch.pipelining.tensors.random_streams import KeptState, RandomStream
from smdp.torch.pipelining.tensors.values import Value, Weight, mark_weight, unmark_weight
from smdp.torch.pipelining.units.current_microbatch import running
from smdp.torch.pipelining.units.kept_buffers import kept_buffers
from smdp.torch.pipelining.units.side_effects import without_side_effects
from smdp.torch.pipelining.units.splitting import make_units
from smdp.torch.pipelining.units.unit_call import Unit
from smdp.torch.pipelining.units.wording import Wording


class _Unknown(BaseException):
    """Ends the dry run at a point where the program needs the contents of a value."""


class _Users:
    """A set of a weight's stages that contains any stage, and records each stage that is looked up."""

    def __init__(self, users: set[int]) -> None:
        self._users = users

    def __contains__(self, stage: object) -> bool:
        assert isinstance(stage, int)
        self._users.add(stage)
        return True


class _Elsewhere:
    """The execution context of a rank without stages."""

    own: frozenset[int] = frozenset()
    postpones = False

    def __init__(self, wording: Wording) -> None:
        self.wording = wording

    def enter(self, stage: int) -> None:
        raise AssertionError

    def saving(self, stage: int) -> AbstractContextManager[Any]:
        """Changes nothing."""
        return contextlib.nullcontext()

    def computing(self, stage: int) -> AbstractContextManager[Any]:
        raise AssertionError

    def watch(self) -> None:
        pass

    def export(self, value: Value, tensor: Tensor) -> None:
        raise AssertionError

    def note_returned(self, value: Value, tensor: Tensor) -> None:
        raise AssertionError

    def send(self, value: Value, tensor: Tensor, stage: int) -> None:
        raise AssertionError

    def bring(self, value: Value, stage: int) -> Tensor:
        raise AssertionError

    def fetch(self, value: Value, tensor: Tensor) -> Tensor:
        raise _Unknown

    def describe(self, unit: Unit, stage: int, result: Any) -> Any:
        raise _Unknown


def users_outside_units(
    model: nn.Module,
    stages: Mapping[str, tuple[int, ...]],
    args: Any,
    kwargs: Any,
    device: torch.device,
    wording: Wording,
) -> dict[str, set[int]]:
    """Returns the virtual stages that use each parameter outside the units, by its first name.

    The model's forward runs on placeholders until it ends, or reads a value on the host.

    Args:
        model: The model, with its parameters or on the meta device.
        stages: The stages of each call of each unit.
        args: Positional arguments of the model's forward, for one microbatch.
        kwargs: Its keyword arguments.
        device: The device on which the model will compute.
        wording: Names of the API that the user called, for messages.
    """
    users: dict[str, set[int]] = defaultdict(set)
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        mark_weight(parameter, Weight(name, _Users(users[name])))
    units = make_units(model, stages)
    interpreter = Interpreter(Plan(), _Elsewhere(wording), Ghosts(device), RandomStream(0, 0, 0), 0)
    try:
        with (
            KeptState(),
            kept_buffers(model),
            without_side_effects(model),
            running(),
            torch.enable_grad(),
            interpreter,
            contextlib.suppress(_Unknown),
        ):
            interpreter.position.enter_model()
            model(*args, **kwargs)
    finally:
        for unit in units:
            unit.restore()
        for parameter in parameters.values():
            unmark_weight(parameter)
    return {name: found for name, found in users.items() if found}
