"""Gives parameters their new values right before the forwards that read them."""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp import _world
from smdp.torch.forward_waits.inert_hook import InertHook
from smdp.torch.forward_waits.pending_watch import PendingWatch, Words
from smdp.torch.forward_waits.settling import Settling

_log = logging.getLogger(__name__)

# Containers that are never called themselves.
_COLLECTIONS = (nn.ModuleList, nn.ModuleDict)


class ForwardWaits:
    """Calls a function before forwards that read parameters which do not have their new values yet.

    Before the forward of each unit, the parameters of the unit are finished; before the forward of the whole
    model, those outside all units are. `state_dict()` and `load_state_dict()` finish all parameters first.
    If finishing fails, parts of the model are old and others are new, so every later use raises an error.

    Args:
        root: The module that holds the parameters.
        parameters: The parameters, by index.
        pending: The indices of the parameters without their new values, at any time.
        finish: Gives some of the pending parameters their new values.
        words: For messages.
        units: Modules whose parameters are finished together.
    """

    def __init__(
        self,
        root: nn.Module,
        parameters: Sequence[Parameter],
        pending: Collection[int],
        finish: Callable[[list[int]], None],
        words: Words,
        units: Sequence[nn.Module],
    ) -> None:
        self._parameters = parameters
        self._pending = pending
        self._settling = Settling(len(parameters), pending, finish, words)
        self._names = {id(parameter): name for name, parameter in root.named_parameters()}
        # Watches forwards with pending parameters, until one with gradients enabled has succeeded.
        self._watch: PendingWatch | None = PendingWatch(self.name_of_pending, words)
        self._hook(root, units)

    def settle(self, indices: Iterable[int] | None = None) -> None:
        """Brings parameters up to date.

        Args:
            indices: Which ones; None: all.

        Raises:
            RuntimeError: An earlier error has kept parts of the model from their new values.
        """
        self._settling.settle(indices)

    def settle_before_saving(self, parts: Iterable[nn.Module | Optimizer]) -> None:
        """Makes `state_dict()` and `load_state_dict()` of modules and optimizers settle first."""
        for part in parts:
            part.register_state_dict_pre_hook(InertHook(self.settle))
            part.register_load_state_dict_pre_hook(InertHook(self.settle))

    def name_of_pending(self, tensor: Tensor) -> str | None:
        """Returns the name of a parameter without its new values, and None for any other tensor."""
        if any(self._parameters[index] is tensor for index in self._pending):
            return self._names.get(id(tensor))
        return None

    def _hook(self, root: nn.Module, units: Sequence[nn.Module]) -> None:
        index_of = {id(parameter): index for index, parameter in enumerate(self._parameters)}

        def indices(module: nn.Module) -> list[int]:
            return [index_of[id(one)] for one in module.parameters() if id(one) in index_of]

        chosen = {id(unit) for unit in units}
        taken = {index for unit in units for index in indices(unit)}
        for module in root.modules():  # units, and modules that are called outside them
            holds_units = any(id(one) in chosen for one in module.modules() if one is not module)
            mine = indices(module)
            if holds_units and id(module) not in chosen:
                mine = [index for index in mine if index not in taken]
            if mine:
                module.register_forward_pre_hook(InertHook(self.settle, mine), prepend=True)
        root.register_forward_pre_hook(InertHook(self._begin_forward), prepend=True)
        root.register_forward_hook(InertHook(self._end_forward, takes_result=True), always_call=True)
        # Code compiled for a model of the same class without hooks would be used again, without the hooks.
        torch.compiler.reset()

    def _begin_forward(self) -> None:
        if self._watch is not None and self._pending:
            self._watch.open()

    def _end_forward(self, result: object) -> None:
        if self._watch is not None and self._watch.is_open:
            self._watch.close()
            # The result is None after an error.
            if result is not None and torch.is_grad_enabled():
                self._watch = None


def default_units(root: nn.Module) -> list[nn.Module]:
    """Returns the elements of the model's outermost ModuleLists, ModuleDicts and Sequentials."""
    if isinstance(root, nn.Sequential):
        return list(root)
    units = []
    for child in root.children():
        is_unit = isinstance(root, _COLLECTIONS) and not isinstance(child, _COLLECTIONS)
        units += [child] if is_unit else default_units(child)
    return units


class Ending(Protocol):
    """Has operations under way, for which other ranks may wait."""

    def end(self) -> None:
        """Waits for the operations."""


def end_at_exit(owner: Ending) -> None:
    """Ends the operations of an object when the interpreter exits, because other ranks may wait for them."""
    atexit.register(_end, weakref.ref(owner))


def _end(owner: weakref.ref[Ending]) -> None:
    found = owner()
    if found is None or _world.why_it_ends():  # after an error the other ranks must learn of it at once
        return
    try:
        found.end()
    except Exception as error:  # noqa: BLE001 - the interpreter is exiting
        _log.warning("%s The last optimizer step was not carried out.", error)
