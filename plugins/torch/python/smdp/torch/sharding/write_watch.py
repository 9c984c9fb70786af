"""Watches writes to shared parameters outside of optimizer steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

from torch import nn
from torch.nn import Parameter

from smdp.torch.forward_waits.inert_hook import InertHook


class WriteWatch:
    """Warns once if a script has changed parameters that other ranks of the host use as well.

    It does not warn about `load_state_dict()` of the model, which all ranks call with the same values. That
    call waits until the other ranks do not use the old values any more.

    Args:
        module: The model.
        parameters: The parameters, by index.
        names: Their names, for messages.
        await_host: Waits for the other ranks of the host.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: Sequence[Parameter],
        names: Sequence[str],
        await_host: Callable[[], None],
    ) -> None:
        self._parameters = parameters
        self._names = names
        self._known = [each._version for each in parameters]
        self._has_warned = False
        index_of = {id(each): index for index, each in enumerate(parameters)}
        for part in module.modules():
            own = [index_of[id(each)] for each in part.parameters(recurse=False) if id(each) in index_of]
            if own:
                part.register_load_state_dict_pre_hook(InertHook(await_host))
                part.register_load_state_dict_post_hook(InertHook(self.accept, own))

    def accept(self, indices: Iterable[int]) -> None:
        """Notes that these parameters were changed as they should."""
        for index in indices:
            self._known[index] = self._parameters[index]._version

    def check(self) -> None:
        """Warns about other changes since then. Must be called before a step."""
        if self._has_warned:
            return
        for index, parameter in enumerate(self._parameters):
            if parameter._version != self._known[index]:
                self._has_warned = True
                warnings.warn(
                    f"[smdp] the script has changed parameter {self._names[index]!r} outside of step(). With"
                    " share_parameters=True the ranks of a host have one copy, so a write of one rank is seen"
                    " by all, and mul_() on each rank is applied several times. Compute the new values on all"
                    " ranks, call torch.distributed.barrier(), and then copy_() them. Otherwise leave out"
                    " share_parameters.",
                    stacklevel=3,
                )
                return
