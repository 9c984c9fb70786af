"""Parameters that get their new values as soon as anything reads them."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._pytree import tree_leaves

# What an awaited parameter answers without its new values: everything that does not depend on them.
_KEPT_BY_UPDATES = frozenset(
    [
        *(
            getattr(Tensor, name).__get__
            for name in (
                "_base",
                "_version",
                "device",
                "dtype",
                "grad",
                "grad_fn",
                "is_cpu",
                "is_cuda",
                "is_leaf",
                "is_meta",
                "is_sparse",
                "itemsize",
                "layout",
                "nbytes",
                "ndim",
                "requires_grad",
                "retains_grad",
                "shape",
            )
        ),
        Tensor.grad.__set__,
        Tensor.grad.__delete__,
        Tensor.requires_grad.__set__,
        Tensor.__len__,
        Tensor.dim,
        Tensor.element_size,
        Tensor.is_contiguous,
        Tensor.is_floating_point,
        Tensor.nelement,
        Tensor.numel,
        Tensor.register_hook,
        Tensor.register_post_accumulate_grad_hook,
        Tensor.requires_grad_,
        Tensor.size,
        Tensor.storage_offset,
        Tensor.stride,
    ]
)


class _AwaitedParameter(Parameter):
    """The class of a parameter while its new values are awaited. Any read of its values gets the new ones."""

    _smdp_finish: Callable[[], None]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Awaits the parameters among the arguments of a function that reads values, and calls it."""
        if func not in _KEPT_BY_UPDATES:
            for one in tree_leaves((args, kwargs)):
                if type(one) is _AwaitedParameter:
                    one._smdp_finish()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: Any) -> Parameter:
        """Copies the new values. torch's own method would copy the class."""
        self._smdp_finish()
        return Parameter.__deepcopy__(self, memo)


class AwaitedParameters:
    """Makes reads of parameters wait for the new values of those parameters.

    Each awaited parameter gets a class of torch's `__torch_function__` protocol, so every function of torch
    that reads it in Python comes here first, on any thread. A function of a C++ extension does not, and
    neither does a view of the parameter.

    Args:
        parameters: The parameters, by index.
        pending: The indices of the parameters without their new values, at any time.
        finish: Gives some of the pending parameters their new values, and calls `release()`.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        pending: Collection[int],
        finish: Callable[[Iterable[int] | None], None],
    ) -> None:
        self._parameters = parameters
        self._pending = pending
        self._finish = finish
        self._awaited: set[int] = set()
        _users.add(self)

    def begin(self) -> None:
        """Makes reads of the pending parameters wait.

        While compiled code is used, all parameters get their new values at once: compiled code expects
        plain parameters.
        """
        _watch_compiler()
        others = [index for index in self._pending if type(self._parameters[index]) is not Parameter]
        if others or _compiles:
            self._finish(None if _compiles else others)
        for index in self._pending:
            parameter = self._parameters[index]
            parameter._smdp_finish = partial(self._finish, (index,))
            parameter.__class__ = _AwaitedParameter
            self._awaited.add(index)

    def release(self) -> None:
        """Makes parameters with their new values plain parameters again."""
        for index in [index for index in self._awaited if index not in self._pending]:
            self._awaited.remove(index)
            parameter = self._parameters[index]
            parameter.__class__ = Parameter
            del parameter._smdp_finish

    def finish_all(self) -> None:
        """Gives all pending parameters their new values."""
        if self._awaited:
            self._finish(None)


_users: weakref.WeakSet[AwaitedParameters] = weakref.WeakSet()
_compiles = False  # whether this process has compiled anything


def _watch_compiler() -> None:
    handler = torch._dynamo.callback_handler
    if _begin_compile not in handler.start_callbacks:  # torch.compiler.reset() removes it
        handler.register_start_callback(_begin_compile)


def _begin_compile(_: object) -> None:
    global _compiles
    _compiles = True
    _finish_all()


def _finish_all() -> None:
    for user in list(_users):
        user.finish_all()


def _before_fork() -> None:
    """Gets all new values, which a child could not await."""
    with contextlib.suppress(Exception):  # those who read the parameters get the error
        _finish_all()


os.register_at_fork(before=_before_fork)
