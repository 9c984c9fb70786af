"""Which modules tensor parallelism replaces: contexts, marks, registered classes, and what it leaves."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch.model_parallel as smp


class Block(nn.Module):
    def __init__(self, width: int, scale: float = 2.0) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = scale

    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        return self.inner(x) * self.scale + shift


class DividedBlock(smp.nn.DistributedModule):
    """A substitute as scripts write it."""

    def __init__(self, width: int, factor: float, fused_bias_gelu: bool = False) -> None:
        super().__init__()
        self.inner = smp.nn.DistributedLinear(width, width)
        self.factor, self.is_fused = factor, fused_bias_gelu

    def forward(self, pair: tuple[Tensor, float]) -> tuple[Tensor]:
        return (self.inner(pair[0]) * self.factor + pair[1],)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        with smp.tensor_parallelism():
            self.block = Block(4, scale=3.0)
            self.odd = nn.Linear(5, 2)
            with smp.tensor_parallelism(enabled=False):
                self.left = nn.Linear(4, 4)
        self.words, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.words.weight
        smp.set_tensor_parallelism(self.words)
        smp.set_tensor_parallelism(self.head)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.left(self.first(x)), shift=1.0)


@smp.tensor_parallelism()
def decorated() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Conv1d(1, 1, 1))


def replaced_and_left() -> None:
    smp.init({"tensor_parallel_degree": 2, "ddp": True})
    smp.tp_register_with_module(
        Block,
        DividedBlock,
        init_hook=lambda width, scale=2.0: ((width,), {"factor": scale, "unknown": 1}),
        forward_hook=lambda x, shift=0.0: (((x, shift),), {}),
        return_hook=lambda found: found[0],
    )
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("smdp.torch.model_parallel").addHandler(handler)
    torch.manual_seed(smp.rank())
    model: Any = Model()
    smp.set_tensor_parallelism(model.block, fused_bias_gelu=True)
    kept = model.left.weight.detach().clone()
    wrapped = smp.DistributedModel(model)
    block = wrapped.module.block
    assert isinstance(block, DividedBlock) and block.is_fused and block.factor == 3.0
    assert {type(each) for each in (model.left, model.first, model.odd, model.head)} == {nn.Linear}
    assert type(model.words) is nn.Embedding
    assert torch.equal(model.left.weight, kept) or smp.rank() > 0
    if smp.rank() == 0:
        (line,) = lines
        assert "odd (in_features = 5 is not divisible by tensor_parallel_degree = 2)" in line
        assert "words (another module shares its weight)" in line and "head (another module" in line
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(smp.rank()))
    whole = wrapped.state_dict()
    hidden = model.left(model.first(x)) @ whole["block.inner.weight"].T + whole["block.inner.bias"]
    torch.testing.assert_close(wrapped(x), hidden * 3.0 + 1.0)
    # The first rank's values are everywhere, although the ranks have different seeds.
    told = smp.allgather(whole["block.inner.weight"], smp.WORLD)
    assert torch.equal(told[0], told[1])
    assert smp.utils.get_distribution_axis(block.inner.weight) == 1
    assert smp.utils.get_distribution_axis(block.inner.bias) is None
    smp.state.model = None
    sequential = smp.DistributedModel(decorated()).get_module()
    assert type(sequential[0]) is smp.nn.DistributedLinear and type(sequential[1]) is nn.Conv1d
    smp.shutdown()


def delayed() -> None:
    smp.init({"tensor_parallel_degree": 2, "ddp": True})
    torch.manual_seed(3)
    expected = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    torch.manual_seed(3)
    with smp.model_creation(tensor_parallelism=True):
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    made = smp.DistributedModel(model)
    assert model[1].weight.shape == (2, 4) and not model[1].weight.is_meta
    assert all(torch.equal(made.state_dict()[name], each) for name, each in expected.state_dict().items())
    smp.shutdown()


def test_replaced_and_left() -> None:
    run(replaced_and_left)


def test_delayed() -> None:
    run(delayed)


def test_contexts_of_threads_that_end_in_order() -> None:
    plain, has_entered, has_left = nn.Module.__init__, threading.Event(), threading.Event()

    def second() -> None:
        with smp.tensor_parallelism():
            has_entered.set()
            assert has_left.wait(10)

    thread = threading.Thread(target=second)
    with smp.tensor_parallelism():
        thread.start()
        assert has_entered.wait(10)
    has_left.set()
    thread.join(10)
    assert nn.Module.__init__ is plain


def test_wrong_use() -> None:
    with pytest.raises(ValueError, match="no keyword 'fused_sofmax'; did you mean 'fused_softmax'"):
        smp.set_tensor_parallelism(nn.Linear(2, 2), fused_sofmax=True)
    with pytest.raises(ValueError, match="got int; expected"):
        smp.set_tensor_parallelism(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a class derived from"):
        smp.tp_register(nn.Linear)
    with pytest.raises(ValueError, match="has not been called in this process"):
        smp.nn.DistributedLinear(2, 2)
