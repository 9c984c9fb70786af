"""A unit: a module that is never cut, whose calls go through the interpreter during a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import _len_torch_function_stack, _pop_mode, _push_mode

from smdp.torch.pipelining.units.current_microbatch import is_running
from smdp.torch.pipelining.units.wording import Wording


class Unit:
    """Replaces the forward of a module.

    Args:
        name: Dotted path of the module.
        module: The module; its `forward` becomes a method of this object.
        stages: The virtual stage of each of its calls in one forward of the model.

    Attributes:
        plain: The module's own forward.
        original: The same function, or its compiled form after compile().
    """

    def __init__(self, name: str, module: nn.Module, stages: tuple[int, ...]) -> None:
        self.name = name
        self.module = module
        self.plain: Callable[..., Any] = module.forward
        self.original = self.plain
        self._stages = stages
        self._was_own = vars(module).get("forward")
        # Set on the instance, which does not affect the class, isinstance() or other modules.
        module.forward = self._forward

    def stage_of(self, call: int, wording: Wording) -> int:
        """Returns the stage of a call.

        Raises:
            ValueError: The split has fewer calls of this module.
        """
        if call >= len(self._stages):
            raise ValueError(
                f"[smdp] module {self.name!r} is called {call + 1} times in one forward, but"
                f" {len(self._stages)} times in the split. {wording.traced}, so that the split follows the"
                " order of calls in the model."
            )
        return self._stages[call]

    def compile(self) -> None:
        """Compiles the calls that compute with `torch.compile`; calls on placeholders are not compiled."""
        within = [vars(part).get("forward") for part in self.module.modules() if part is not self.module]
        for forward in (self.plain, *within):
            if hasattr(forward, "compile"):  # recomputation, which compiles the forward that it runs
                forward.compile()
        if not hasattr(self.plain, "compile"):
            self.original = torch.compile(self.plain)

    def restore(self) -> None:
        """Restores the module's own forward."""
        vars(self.module).pop("forward", None)
        if self._was_own is not None:
            self.module.forward = self._was_own

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if not is_running():
            return self.original(*args, **kwargs)
        # Like any torch mode, the interpreter is off while it handles the call.
        above: list[Any] = []
        call_unit = mode = None
        while call_unit is None:
            if not _len_torch_function_stack():  # called inside another unit, which is running
                _push(above)
                return self.original(*args, **kwargs)
            mode = _pop_mode()
            call_unit = getattr(mode, "call_unit", None)
            if call_unit is None:
                above.insert(0, mode)
        try:
            return call_unit(self, args, kwargs, above)
        finally:
            _push_mode(mode)
            if above:
                _push(above)


@contextlib.contextmanager
def under(modes: Sequence[Any]) -> Iterator[None]:
    """Runs a unit's own forward under the torch modes that surround its call, outermost first."""
    _push(modes)
    try:
        yield
    finally:
        for _ in modes:
            _pop_mode()


def _push(modes: Sequence[Any]) -> None:
    for mode in modes:
        _push_mode(mode)
