"""Calls of units from within other modes of torch, and from within other units."""

from __future__ import annotations

from typing import Any

import torch
from pipeline_models import WIDTH, Chain, Layer, assert_trains_as_one
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch_spawn import run


class Halving(TorchFunctionMode):
    """Halves what linear layers give."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return 0.5 * result if func is functional.linear else result


class InModes(Chain):
    def forward(self, x: Tensor) -> Tensor:
        # No tensor of smdp's own may be made on it.
        with torch.device("meta"), Halving():
            return super().forward(x)


class Around(nn.Module):
    """Calls a module that the model calls, too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.inner(x))  # type: ignore[no-any-return]


class Shared(Chain):
    def __init__(self) -> None:
        super().__init__(4)
        self.first = Layer()
        self.layers.append(Around(self.first))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.first(x))


def modes() -> None:
    assert_trains_as_one(InModes)


def shared() -> None:
    # Each stage that uses a weight adds up its own gradients first.
    assert_trains_as_one(Shared, within=1e-6)


def test_modes_around_units_stay_on_inside_them() -> None:
    run(modes, 2)


def test_a_unit_that_is_also_a_part_of_another_one() -> None:
    run(shared, 2)
