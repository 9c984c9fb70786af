"""Parameters that get their new values as soon as anything reads them."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from smdp.torch.forward_waits.awaited_parameter import AwaitedParameter
from smdp.torch.forward_waits.direct_reads import DirectReads
from smdp.torch.forward_waits.inert_hook import InertHook
from smdp.torch.forward_waits.pending_watch import Words
from smdp.torch.forward_waits.settling import Settling

# Modules that hold parameters for others, and are never called themselves.
_CONTAINERS = (nn.ParameterList, nn.ParameterDict)


class AwaitedParameters:
    """Makes reads of parameters wait for the new values of those parameters.

    Between a step and the next forward, reads wait in two ways: by the class of the parameters, and by a mode
    that sees the operations of this thread. In the forward, each module also waits for its own parameters
    before it runs. The mode sees the first forward as well: a model that reads parameters in a way that only
    the mode sees waits for all of them before later forwards. The parameters do not wait in compiled code,
    nor in a forward in eval mode or without gradients, where torch has faster paths for plain parameters:
    they all get their new values before.

    Args:
        model: The wrapped model.
        parameters: The parameters, by index.
        pending: The indices of the parameters without their new values, at any time.
        finish: Gives some of the pending parameters their new values.
        words: For messages.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[Parameter],
        pending: Collection[int],
        finish: Callable[[list[int]], None],
        words: Words,
    ) -> None:
        self._parameters = parameters
        self._pending = pending
        self._settling = Settling(len(parameters), pending, finish, words)
        self._awaited: set[int] = set()  # guarded by the lock of _settling
        self._has_forward = False  # whether a forward with awaited parameters has succeeded
        self._is_in_forward = False
        self._reads_directly = False
        self._before_modules: RemovableHandle | None = None
        self._index_of = {id(parameter): index for index, parameter in enumerate(parameters)}
        self._of_module = _own_parameters(model, self._index_of)
        begin = InertHook(self._begin_forward, model, is_compiled=False)
        end = InertHook(self._end_forward, takes_result=True, is_compiled=False)
        self._handles = [
            model.register_forward_pre_hook(begin, prepend=True),
            model.register_forward_hook(end, always_call=True),
        ]
        _watch_compiler()
        _users.add(self)

    def begin(self) -> None:
        """Makes every read of a parameter that is pending now finish it first."""
        _watch_compiler()
        others = [index for index in self._pending if type(self._parameters[index]) is not Parameter]
        self._settling.settle(others)
        if _compiles or not _reads.open(self):
            self.settle()
            return
        with self._settling.lock:
            for index in self._pending:
                parameter = self._parameters[index]
                parameter.smdp_awaits = self
                parameter.__class__ = AwaitedParameter
                self._awaited.add(index)

    def settle(self, indices: Iterable[int] | None = None) -> None:
        """Brings parameters up to date, by default all of them.

        Raises:
            RuntimeError: An earlier error has kept parts of the model from their new values.
        """
        self._settling.settle(indices)
        self.release()

    def release(self) -> None:
        """Makes parameters with their new values plain parameters again."""
        with self._settling.lock:
            for index in [index for index in self._awaited if index not in self._pending]:
                self._awaited.remove(index)
                parameter = self._parameters[index]
                parameter.__class__ = Parameter
                del parameter.smdp_awaits
            if not self._awaited:
                _reads.close(self)

    def remove_hooks(self) -> None:
        """Ends the waits. The hooks would keep alive what finishes parameters."""
        for handle in self._handles:
            handle.remove()
        _reads.close(self)

    def finish_all(self) -> None:
        """Brings all awaited parameters up to date."""
        if self._awaited:
            self.settle()

    def _begin_forward(self, model: nn.Module) -> None:
        if not self._awaited:
            return
        if self._reads_directly or not (model.training and torch.is_grad_enabled()):
            self.settle()
            return
        if self._has_forward:
            _reads.close(self)
        self._is_in_forward = True
        if self._before_modules is None:
            self._before_modules = register_module_forward_pre_hook(self._before_module)

    def _before_module(self, module: nn.Module, _: Any) -> None:
        if self._awaited and (mine := self._of_module.get(id(module))):
            self.settle(mine)

    def _end_forward(self, result: object) -> None:
        if self._before_modules is not None:
            self._before_modules.remove()
            self._before_modules = None
        was_in_forward, self._is_in_forward = self._is_in_forward, False
        if was_in_forward and result is not None:  # None after an error
            self._has_forward = True
            self.finish_all()

    def read(self, parameter: Parameter, *, is_direct: bool) -> None:
        """Brings a parameter that is read up to date."""
        self._reads_directly |= is_direct and self._is_in_forward
        self.settle((self._index_of[id(parameter)],))


def _own_parameters(model: nn.Module, index_of: Mapping[int, int]) -> dict[int, list[int]]:
    """Returns the indices of the parameters that a module uses itself, by the id of the module."""
    found = {}
    for module in model.modules():
        # The modules in a script are not called by Python.
        is_script = isinstance(module, torch.jit.ScriptModule)
        own = [*module.parameters(recurse=is_script)]
        for child in module.children():
            if isinstance(child, _CONTAINERS):
                own += child.parameters()
        if mine := [index_of[id(one)] for one in own if id(one) in index_of]:
            found[id(module)] = mine
    return found


_users: weakref.WeakSet[AwaitedParameters] = weakref.WeakSet()
_compiles = False  # whether this process has compiled anything


def _watch_compiler() -> None:
    global _compiles
    handler = torch._dynamo.callback_handler
    if _begin_compile not in handler.start_callbacks:  # at first, and after torch.compiler.reset()
        handler.register_start_callback(_begin_compile)
        _compiles |= bool(torch._dynamo.utils.counters["frames"])


def _begin_compile(_: object) -> None:
    """Compiled code expects plain parameters."""
    global _compiles
    _compiles = True
    _finish_all()


def _finish_all() -> None:
    for user in list(_users):
        user.finish_all()


_reads = DirectReads(_finish_all)


def _before_fork() -> None:
    """Gets all new values, which a child could not await."""
    with contextlib.suppress(Exception):  # those who read the parameters get the error
        _finish_all()


os.register_at_fork(before=_before_fork)
