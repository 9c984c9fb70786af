"""Measures a model's operations between units, and those of a loss function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from smdp.torch.pipelining.tensors.containers import tensors_in
from smdp.torch.pipelining.tensors.functions import METADATA, READS, is_in_place, name_of


class GlueCosts(TorchFunctionMode):
    """Measures each function of torch that runs between units on what stems from parameters.

    What touches the batch alone runs on every rank, whatever the cut, and is left out.

    Args:
        stems_from_parameters: Tells for which tensors there is a gradient.
        measure: Measures a function called with these arguments and returns its kind, or raises.

    Attributes:
        call: Number of the unit's call that the operations come after.
        is_paused: Within a unit.
    """

    def __init__(
        self,
        stems_from_parameters: Callable[[Tensor], bool],
        measure: Callable[[Callable[..., Any], Any, Any], str],
    ) -> None:
        super().__init__()
        self.call = 0
        self.is_paused = False
        self._stems_from_parameters = stems_from_parameters
        self._measure = measure
        self._kinds: dict[int, list[str]] = defaultdict(list)

    def after(self, call: int) -> list[str]:
        """Returns the kinds of what ran between the beginning of a unit's call and that of the next."""
        return self._kinds[call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function as it is, and then some times for the clock."""
        kwargs = kwargs or {}
        if self.is_paused:
            return func(*args, **kwargs)
        name = name_of(func)
        inputs = tensors_in((args, kwargs))
        is_counted = (
            func not in METADATA
            and name not in READS
            and any(map(self._stems_from_parameters, inputs))
            # What it changes is changed once; inputs with a gradient are copied.
            and not (is_in_place(name) and not self._stems_from_parameters(inputs[0]))
            and kwargs.get("out") is None
        )
        result = func(*args, **kwargs)
        if is_counted and tensors_in(result):
            try:
                kind = self._measure(func, args, kwargs)
            except (RuntimeError, NotImplementedError, TypeError):
                return result  # a gradient of a gradient, say, cannot be had twice
            self._kinds[self.call].append(kind)
        return result
