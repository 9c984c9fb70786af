"""Optimizers that update whole tensors: each tensor has one owner. The bits are those without sharding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import Net, backward, deep, differences, train, values
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch_spawn import run

from smdp.torch import DistributedDataParallel, ShardedOptimizer
from smdp.torch.sharding.loaded_state import check_loaded
from smdp.torch.sharding.master_parameters import MasterParameters
from smdp.torch.sharding.one_dtype import check_dtypes
from smdp.torch.sharding.whole_tensors import ways_to_shard


class Matrices(nn.Module):
    """Is like Net, but has only matrices, which Muon needs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(300, 120)
        self.layers = nn.Sequential(*(nn.Linear(120, 120, bias=False) for _ in range(4)))
        self.never = nn.Linear(120, 120, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.layers(self.embedding(tokens))) @ self.embedding.weight.T


class Scaled(Optimizer):
    """Divides each gradient by its norm in some groups, as LAMB does, or by that of all gradients."""

    def __init__(self, parameters: Any, kind: str = "tensor", lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "kind": kind})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            grads = [one.grad for one in group["params"] if one.grad is not None]
            total = sum(float(grad.square().sum()) for grad in grads) ** 0.5
            for one in group["params"]:
                if one.grad is None:
                    continue
                norm = {"tensor": one.grad.norm(), "all": total, "element": 1.0}[group["kind"]]
                state = self.state[one]
                state["seen"] = state.get("seen", torch.zeros_like(one)) + one.grad
                one.data.add_(state["seen"] / norm, alpha=-group["lr"])


def mixed(model: nn.Module) -> Optimizer:
    parameters = list(model.parameters())
    return Scaled([{"params": parameters[::2]}, {"params": parameters[1::2], "kind": "element", "lr": 0.01}])


OPTIMIZERS: dict[str, Any] = {
    "Muon": (Matrices, lambda model: torch.optim.Muon(model.parameters(), lr=0.02)),
    "Adafactor": (Net, lambda model: torch.optim.Adafactor(model.parameters(), lr=0.01)),
    "mixed": (Net, mixed),
}


def pair(name: str, scope: str) -> list[tuple[DistributedDataParallel, Optimizer]]:
    net, optimizer = OPTIMIZERS[name]
    made: list[tuple[DistributedDataParallel, Optimizer]] = []
    for is_sharded in (False, True):
        torch.manual_seed(0)
        model = DistributedDataParallel(net(), find_unused_parameters=True)
        plain = optimizer(model)
        made.append((model, ShardedOptimizer(plain, model, scope) if is_sharded else plain))
    return made


def trains_to_the_same_bits(scope: str = "world", steps: int = 20) -> None:
    for name in OPTIMIZERS:
        (expected, plain), (model, optimizer) = pair(name, scope)
        train(expected, plain, range(steps))
        train(model, optimizer, range(steps))
        assert differences(values(model), values(expected)) == 0.0, name
        assert differences(values(model), values(pair(name, scope)[0][0])) > 0.0, name


def on_one_host() -> None:
    trains_to_the_same_bits()
    state_moves_to_an_unsharded_run_and_back()
    tensors_have_one_owner()
    refuses()


def on_hosts() -> None:
    trains_to_the_same_bits("world", 8)
    trains_to_the_same_bits("host", 8)


def state_moves_to_an_unsharded_run_and_back() -> None:
    (plain_model, plain), (model, optimizer) = pair("Adafactor", "world")
    assert isinstance(optimizer, ShardedOptimizer)
    train(model, optimizer, range(4))
    optimizer.consolidate(to=0)
    box: list[Any] = [optimizer.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    plain_model.load_state_dict(model.state_dict())
    plain.load_state_dict(box[0])
    _, (again, other) = pair("Adafactor", "world")
    again.load_state_dict(plain_model.state_dict())
    other.load_state_dict(plain.state_dict())
    for each, its in ((plain_model, plain), (again, other), (model, optimizer)):
        its.zero_grad()
        train(each, its, range(4, 8))
    for each in (plain_model, again):
        assert differences(values(each), values(model)) == 0.0


def tensors_have_one_owner() -> None:
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(400, 400, bias=False) for _ in range(12))))
    optimizer = ShardedOptimizer(torch.optim.Muon(model.parameters()), model)
    model(torch.ones(2, 400)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    own = [state["momentum_buffer"] for state in optimizer.inner.state.values()]
    assert [tuple(one.shape) for one in own] == [(400, 400)] * (12 // dist.get_world_size())


def rule(kind: str) -> Callable[[Tensor], Tensor]:
    is_meant: dict[str, Callable[[Tensor], bool]] = {
        "convolutions": lambda grad: grad.dim() > 3,
        "scalars": lambda grad: grad.dim() == 0,
        "large": lambda grad: grad.dim() > 1 and min(grad.shape) >= 32,
        "long": lambda grad: grad.numel() >= 4096,
        "none": lambda grad: False,
    }
    return lambda grad: grad / (1 + grad.norm()) if is_meant[kind](grad) else grad


class Ruled(Optimizer):
    """Normalizes the gradients of some shapes only."""

    def __init__(self, parameters: Any, kind: str) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.rule = rule(kind)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for one in self.param_groups[0]["params"]:
            one.sub_(self.rule(one.grad), alpha=0.1)


def test_rules_for_some_shapes_are_found() -> None:
    parameters = [Parameter(torch.ones(shape)) for shape in ((), (3,), (2, 3), (2, 2, 3, 3))]
    for kind in ("convolutions", "scalars", "large", "long", "none"):
        optimizer = Ruled(parameters, kind)
        assert ways_to_shard(optimizer, optimizer.param_groups).is_whole == (kind != "none"), kind


def test_a_scalar_is_checked_like_other_parameters() -> None:
    parameters = [Parameter(torch.ones(shape)) for shape in ((), (3,), (2, 3))]
    for optimizer in (torch.optim.AdamW(parameters), torch.optim.Adafactor(parameters)):
        for one in parameters:
            one.grad = torch.ones_like(one)
        optimizer.step()
        check_loaded(optimizer, optimizer.state_dict(), lambda one: str(one.shape))


def test_a_group_of_several_dtypes_is_refused_where_they_matter() -> None:
    parameters = [Parameter(torch.ones(4, 4, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    for ordered in (parameters, parameters[::-1]):
        optimizer: Optimizer = torch.optim.Adafactor(ordered)
        with pytest.raises(ValueError, match="Create Adafactor with one group per dtype"):
            check_dtypes(optimizer, optimizer.param_groups, lambda one: one.dtype)
    check_dtypes(optimizer, optimizer.param_groups, MasterParameters(torch.float32).dtype_of)
    optimizer = torch.optim.AdamW(parameters)
    check_dtypes(optimizer, optimizer.param_groups, lambda one: one.dtype)


def refuses() -> None:
    model = DistributedDataParallel(deep())
    before = values(model)
    for wrong, words in (
        (torch.optim.LBFGS(model.parameters()), "LBFGS cannot be divided .* nor by tensors, because it can"),
        (Scaled(model.parameters(), "all"), "neither by elements, .* depends on the other tensors"),
    ):
        with pytest.raises(ValueError, match=words):
            ShardedOptimizer(wrong, model)
    assert differences(values(model), before) == 0.0
    parameters = list(model.parameters())
    optimizer = ShardedOptimizer(Scaled(parameters[1:], "element"), model)
    with pytest.raises(ValueError, match=r"parameter '0\.weight' as a whole"):
        optimizer.add_param_group({"params": parameters[:1], "kind": "tensor"})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": parameters[:1]})
    backward(model)
    optimizer.step()


@pytest.mark.parametrize("size", [2, 3])
def test_whole_tensors_train_to_the_same_bits(size: int) -> None:
    run(on_one_host, size)


def test_two_hosts_train_to_the_same_bits() -> None:
    run(on_hosts, 4, hosts=[0, 0, 1, 1])
