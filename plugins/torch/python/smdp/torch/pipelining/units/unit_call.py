"""A module that is never cut: calling it during a step goes through the interpreter."""

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
    """Takes the place of a module's forward.

    Args:
        name: Dotted path of the module.
        module: The module; its `forward` becomes this object's.
        stages: Virtual stage of each of its calls in one forward of the model.

    Attributes:
        plain: The module's own forward.
        original: The same, or what compile() made of it.
    """

    def __init__(self, name: str, module: nn.Module, stages: tuple[int, ...]) -> None:
        self.name = name
        self.module = module
        self.plain: Callable[..., Any] = module.forward
        self.original = self.plain
        self._stages = stages
        self._was_own = vars(module).get("forward")
        # An attribute of the instance: the class, and with it isinstance() and other modules, stay as is.
        module.forward = self._forward

    def stage_of(self, call: int, wording: Wording) -> int:
        """Give the stage of a call.

        Raises:
            ValueError: The split knows of fewer calls.
        """
        if call >= len(self._stages):
            raise ValueError(
                f"[smdp] module {self.name!r} is called {call + 1} times in one forward, the split knows of"
                f" {len(self._stages)}. {wording.traced}, so that the split follows the model's path."
            )
        return self._stages[call]

    def compile(self) -> None:
        """Let `torch.compile` make the calls that compute; placeholders need none."""
        self.original = torch.compile(self.plain)

    def restore(self) -> None:
        """Give the module its own forward back."""
        vars(self.module).pop("forward", None)
        if self._was_own is not None:
            self.module.forward = self._was_own

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if not is_running():
            return self.original(*args, **kwargs)
        # As with any mode, the interpreter is off while it carries out the call.
        above: list[Any] = []
        call_unit = mode = None
        while call_unit is None:
            if not _len_torch_function_stack():  # a part of another unit as well, which is being carried out
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
    """Run a unit's own forward under the modes of torch that are around its call, the outermost first."""
    _push(modes)
    try:
        yield
    finally:
        for _ in modes:
            _pop_mode()


def _push(modes: Sequence[Any]) -> None:
    for mode in modes:
        _push_mode(mode)
