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
    """Measures each torch function that runs between units on tensors derived from parameters.

    Functions that use only the batch run on every rank wherever the model is cut, so they are not measured.

    Args:
        stems_from_parameters: Returns whether a tensor is derived from parameters, and therefore has a
            gradient.
        measure: Measures a call of a function with its arguments and returns its kind, or raises.

    Attributes:
        call: Index of the unit's call that the operations follow.
        is_paused: Whether a unit is running.
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
        """Returns the kinds of operations from the start of a unit's call to the start of the next one."""
        return self._kinds[call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs a function once for its result, and then several times to measure it."""
        kwargs = kwargs or {}
        if self.is_paused:
            return func(*args, **kwargs)
        name = name_of(func)
        inputs = tensors_in((args, kwargs))
        is_counted = (
            func not in METADATA
            and name not in READS
            and any(map(self._stems_from_parameters, inputs))
            # In-place changes must happen once; inputs with a gradient are copied for the measurement.
            and not (is_in_place(name) and not self._stems_from_parameters(inputs[0]))
            and kwargs.get("out") is None
        )
        result = func(*args, **kwargs)
        if is_counted and tensors_in(result):
            try:
                kind = self._measure(func, args, kwargs)
            except (RuntimeError, NotImplementedError, TypeError):
                return result  # for example, a gradient of a gradient cannot be computed twice
            self._kinds[self.call].append(kind)
        return result
