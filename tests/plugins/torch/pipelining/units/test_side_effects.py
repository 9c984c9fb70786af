"""What a forward does beside its result, caches and counters in attributes, happens as in one process."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
from pipeline_models import WIDTH, Chain, Layer, assert_trains_as_one, made, rows, square_loss
from torch import Tensor, nn
from torch_spawn import run

import smdp
import smdp.torch


def sequences(*lengths: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randn(8, length, WIDTH, generator=generator),
            "y": torch.randn(8, length, 1, generator=generator),
        }
        for length in lengths
    ]


def table(length: int) -> Tensor:
    return torch.cos(torch.arange(float(length))[:, None] * torch.arange(WIDTH))


class BufferTable(Layer):
    """As rotary embeddings do it: a table that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0

    def forward(self, hidden: Tensor) -> Tensor:
        if hidden.shape[1] > self.longest:
            self.longest = hidden.shape[1]
            self.register_buffer("table", table(self.longest), persistent=False)
        return super().forward(hidden * self.table[: hidden.shape[1]])


class AttributeTable(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.longest, self.table = 0, None

    def forward(self, hidden: Tensor) -> Tensor:
        if hidden.shape[1] > self.longest:
            self.longest, self.table = hidden.shape[1], table(hidden.shape[1])
        assert self.table is not None
        return super().forward(hidden * self.table[: hidden.shape[1]])


class Shelf:
    def __init__(self) -> None:
        self.tables: dict[int, Tensor] = {}


class Tables(Layer):
    """A dict of tables in an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf, self.seen = Shelf(), list[int]()

    def forward(self, hidden: Tensor) -> Tensor:
        length = hidden.shape[1]
        if length not in self.seen:
            self.seen.append(length)
            self.shelf.tables[length] = table(length)
        return super().forward(hidden * self.shelf.tables[length])


class Counting(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(hidden) * 0.9**self.calls


shared_table = functools.lru_cache(table)


class SharedTable(Layer):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden * shared_table(hidden.shape[1]))


class Stateful(Chain):
    def __init__(self, layer: type[Layer]) -> None:
        super().__init__(4)
        self.layers = nn.ModuleList(layer() for _ in range(4))


def layers_with_state() -> None:
    steps = sequences(6, 6, 10, 4, 8)
    for layer in (BufferTable, AttributeTable, Tables, Counting):
        for example in (steps[0], None):
            pipe = assert_trains_as_one(functools.partial(Stateful, layer), steps, example_inputs=example)
    own = {name.split(".")[1] for name, _ in pipe.named_parameters() if name.startswith("layers.")}
    assert [layer.calls for layer in pipe.module.layers] == [20 * (str(place) in own) for place in range(4)]
    with pytest.raises((ValueError, smdp.SmdpError), match=r"a cache outside modules \(functools.lru_cache"):
        smdp.torch.pipeline(made(lambda: Stateful(SharedTable)), microbatches=4).train_step(
            steps[0], square_loss
        )


def test_state_in_modules_that_are_never_cut() -> None:
    run(layers_with_state, 2)


class LateBuffer(Chain):
    def __init__(self) -> None:
        super().__init__(4)
        self.register_buffer("time", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x * 0.9**self.time)
        self.time += 1
        return result


class LateNumber(Chain):
    """Says what it has seen in a dict of an attribute."""

    def __init__(self) -> None:
        super().__init__(4)
        self.seen = {"microbatches": 0}

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x * 0.9 ** self.seen["microbatches"])
        self.seen["microbatches"] += 1
        return result


class LateTensor(Chain):
    """Leaves for the loss function what it has computed from the batch."""

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        self.weight = x.square().mean()
        return result


class EarlyNumber(Chain):
    ends = 0

    def __init__(self) -> None:
        super().__init__(4)
        self.time = 0

    def forward(self, x: Tensor) -> Tensor:
        self.time += 1
        result = super().forward(x * 0.9**self.time)
        EarlyNumber.ends += 1
        return result


def models_with_state() -> None:
    for model in (LateBuffer, LateNumber):
        for example in (rows()[0], None):
            pipe = assert_trains_as_one(model, rows(3), example_inputs=example)
            state = pipe.module.time if model is LateBuffer else pipe.module.seen["microbatches"]
            assert state == 12
    EarlyNumber.ends = 0
    pipe = assert_trains_as_one(EarlyNumber, rows(3), example_inputs=None)
    assert pipe.module.time == 12
    # One process, and a rank that leaves before the end, in all microbatches but the recorded one.
    assert EarlyNumber.ends == 12 + (12 if dist.get_rank() == 1 else 1)

    models: list[nn.Module] = []

    def kept() -> nn.Module:
        models.append(LateTensor(4))
        return models[-1]

    def loss_fn(output: Tensor, part: dict[str, Tensor]) -> Tensor:
        assert models[-1].weight == part["x"].square().mean()
        return square_loss(output, part) * models[-1].weight.item()

    assert_trains_as_one(kept, rows(3), loss_fn)


def test_state_of_the_model_that_it_writes_at_the_end() -> None:
    run(models_with_state, 2)
