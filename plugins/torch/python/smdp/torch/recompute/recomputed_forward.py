"""The forward of a module whose activations are recomputed."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from smdp.torch.recompute.changed_buffers import ChangedBuffers
from smdp.torch.recompute.recomputed_group import is_running_again
from smdp.torch.recompute.rules import Rule, units_follow

_log = logging.getLogger(__name__)
# Caches of keys and values in transformers: running a layer again would extend them again.
_CACHE = "Cache"
_told: set[str] = set()


class RecomputedForward:
    """Replaces the forward of a module; hooks of the module run once, around it.

    Args:
        name: The name of the module.
        module: The module.
        rule: Runs its calls.

    Attributes:
        name: The name of the module.
        rule: Runs its calls.
    """

    def __init__(self, name: str, module: nn.Module, rule: Rule) -> None:
        self.name = name
        self.rule = rule
        self._module = module
        self._own: Callable[..., Any] | None = vars(module).get("forward")
        self._compiled: Callable[..., Any] | None = None
        self._buffers = ChangedBuffers(module)

    @property
    def plain(self) -> Callable[..., Any]:
        """The module's own forward."""
        # Looked up in each call, because the class of a module may be replaced, and a bound method cannot be
        # pickled in an attribute of this name.
        return self._own or MethodType(type(self._module).forward, self._module)

    @plain.setter
    def plain(self, forward: Callable[..., Any]) -> None:
        self._own = forward

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.plain)

    def compile(self) -> None:
        """Compiles the module's own forward; the recomputation around it cannot be compiled."""
        self._compiled = torch.compile(self.plain)

    def restore(self) -> None:
        """Restores the module's own forward."""
        if self._own is None:
            del self._module.forward
        else:
            self._module.forward = self._own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module's forward so that backward recomputes its activations."""
        if torch.compiler.is_compiling():
            # The compiler of a whole model knows torch's checkpoints, which it turns into parts of its graph.
            return checkpoint(self.plain, *args, use_reentrant=False, **kwargs)
        return self._run(*args, **kwargs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            args, kwargs = self._without_caches(args, kwargs)
        return run_by(self.rule, self.name, self._call, args, kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        call = self.plain
        if self._compiled is not None and not _are_predicted((args, kwargs)):
            call = self._compiled
        if is_running_again():
            with self._buffers.kept():
                return call(*args, **kwargs)
        with self._buffers.watched():
            return call(*args, **kwargs)

    def _without_caches(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        caches = [name for name, item in kwargs.items() if _is_cache(item)]
        if not caches and not any(map(_is_cache, args)):
            return args, kwargs
        kind = type(self._module).__name__
        if kind not in _told:
            _told.add(kind)
            _log.warning(
                "[smdp] %s is recomputed in backward, so it gets no cache of keys and values in training;"
                " pass use_cache=False",
                kind,
            )
        kwargs = {**kwargs, **dict.fromkeys(caches)}
        if kwargs.get("use_cache"):
            kwargs["use_cache"] = False
        return tuple(None if _is_cache(item) else item for item in args), kwargs


def run_by(rule: Rule, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Runs a call by a rule.

    Between the units of a pipeline, the units in the call follow the rule, and the code around them never
    runs again.
    """
    if not torch.is_grad_enabled():
        return call(*args, **kwargs)
    if _is_between_units():
        with units_follow(rule):
            return call(*args, **kwargs)
    return rule.run(name, call, args, kwargs)


def recompute(name: str, module: nn.Module, rule: Rule) -> None:
    """Makes a module's calls follow a rule, instead of the one that they followed before."""
    forward = module.forward
    if isinstance(forward, RecomputedForward):
        forward.rule = rule
    else:
        module.forward = RecomputedForward(name, module, rule)


def wrap_forward(module: nn.Module, method: str, wrap: Callable[[Callable[..., Any]], Any]) -> None:
    """Replaces a method of a module by a wrapped one, within its recomputation if there is one."""
    found = getattr(module, method)
    if isinstance(found, RecomputedForward):
        found.plain = wrap(found.plain)
    else:
        setattr(module, method, wrap(found))


def _is_between_units() -> bool:
    """Returns whether the interpreter of a pipelined model executes the calls, so this is not in a unit."""
    return any(hasattr(mode, "call_unit") for mode in _get_current_function_mode_stack())


def _are_predicted(arguments: Any) -> bool:
    """Returns whether a call computes nothing, and should not be compiled for such arguments."""
    return any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(arguments))


def _is_cache(item: Any) -> bool:
    return any(kind.__name__ == _CACHE for kind in type(item).__mro__)
