"""Checks that nothing depends on the shapes of parameters that will be divided."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


def check_earlier_uses(parameters: Mapping[str, Tensor]) -> None:
    """Checks the optimizers and wrappers of this process.

    Args:
        parameters: Parameters that will be divided, by name.

    Raises:
        ValueError: An optimizer already has state of a parameter, or DistributedDataParallel averages it.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    found = _first_use(gc.get_objects(), names)
    if found is not None:
        gc.collect()  # a deleted wrapper is in a reference cycle
        found = _first_use(gc.get_objects(), names)
    if found is not None:
        raise ValueError(f"[smdp] tensor_parallel: {found}")


def _first_use(objects: Iterable[object], names: Mapping[int, str]) -> str | None:
    # isinstance() would run code of objects that compute their class.
    for each in objects:
        kind = type(each)
        if issubclass(kind, Optimizer) and isinstance(each, Optimizer):
            for parameter, state in list(getattr(each, "state", {}).items()):
                if id(parameter) in names and any(_has_shape(value) for value in state.values()):
                    return (
                        f"a {kind.__name__} already has state of the whole parameter"
                        f" {names[id(parameter)]!r}. Divide the model before the first step, and load the"
                        " optimizer's state with smdp.torch.model_parallel.checkpoint."
                    )
        elif issubclass(kind, DistributedDataParallel) and isinstance(each, nn.Module):
            for parameter in each.parameters():
                if id(parameter) in names:
                    return (
                        f"parameter {names[id(parameter)]!r} is already in a {kind.__name__}. Divide the"
                        " model first, and then wrap it."
                    )
    return None


def _has_shape(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0
