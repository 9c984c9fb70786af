"""What scripts do to the parameters, groups and state of a sharded optimizer."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import (
    Maker,
    Pair,
    adamw,
    backward,
    collected,
    deep,
    differ,
    differences,
    linear,
    pair,
    sgd,
    values,
)
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch_spawn import run

from smdp.torch import DistributedDataParallel, ShardedOptimizer


class Scalars(nn.Module):
    """Has parameters of one element, in one and in no dimension, and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)
        self.factor = Parameter(torch.tensor(1.5))
        self.offset = Parameter(torch.ones(1))
        self.nothing = Parameter(torch.empty(0, 5, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs) * self.factor + self.offset + self.nothing.sum().float()


def parameters_are_replaced() -> None:
    def copies(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()

    def vectors(model: nn.Module) -> None:
        flat = nn.utils.parameters_to_vector(model.parameters()).clone()
        nn.utils.vector_to_parameters(flat, model.parameters())

    large = nn.Linear(8, 400_000, bias=False)  # in a buffer of its own
    for make in (linear, deep, lambda: copy.deepcopy(large)):
        for replace in (copies, vectors, nn.Module.share_memory):
            both = pair(make, adamw)
            for model, _ in both:
                replace(model)
            assert differ(both, 2) == 0.0
    model, optimizer = pair(lambda: nn.Linear(8, 8), adamw)[1]
    backward(model)
    dist.barrier()  # a failed step may reach another rank while it is still in backward
    model.module.weight.data = model.module.weight.data.t()
    with pytest.raises(RuntimeError, match=r"'weight' was .* strides \[8, 1\].* strides \[1, 8\]"):
        optimizer.step()
    # A graph that was recorded before a step must not be used after it.
    model, optimizer = pair(deep, adamw)[1]
    with model.no_sync():
        old = model(torch.ones(4, 8)).sum()
    backward(model)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        old.backward()


def schedulers_are_made_before() -> None:
    models = []
    for is_sharded in (False, True):
        torch.manual_seed(0)
        model = DistributedDataParallel(deep())
        optimizer = sgd(model.parameters())
        group = optimizer.param_groups[0]
        calls: list[int] = []
        optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append(1))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        if is_sharded:
            optimizer = ShardedOptimizer(optimizer, model)
            assert calls == []
        for step in range(4):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            scheduler.step()
        assert len(calls) == 4
        assert optimizer.param_groups[0] is group
        models.append(values(model))
    assert differences(*models) == 0.0


def state_has_the_shapes_of_torch() -> None:
    makers: list[Maker] = [adamw, torch.optim.NAdam, torch.optim.ASGD, torch.optim.Rprop]
    for maker in makers:
        both = pair(Scalars, maker)
        assert differ(both) == 0.0
        (_, plain), (model, optimizer) = both
        found, expected = collected(optimizer), plain.state_dict()
        assert found["state"].keys() == expected["state"].keys() - {2}  # no rank owns a part of it
        for number, state in found["state"].items():
            for key, value in expected["state"][number].items():
                assert torch.equal(torch.as_tensor(state[key]), torch.as_tensor(value)), (maker, key)
        before = len(optimizer.inner.state)  # type: ignore[attr-defined]
        assert all(one not in optimizer.state for one in model.parameters())
        assert len(optimizer.inner.state) == before  # type: ignore[attr-defined]
        optimizer.load_state_dict(copy.deepcopy(expected))
        assert differ(both) == 0.0
    # torch casts a loaded state to the dtype of the parameter.
    both = pair(lambda: nn.Linear(8, 1).bfloat16(), adamw)
    differ(both)
    state = both[0][1].state_dict()
    for entry in state["state"].values():
        entry.update(exp_avg=entry["exp_avg"].float(), exp_avg_sq=entry["exp_avg_sq"].float())
    for _, optimizer in both:
        optimizer.load_state_dict(copy.deepcopy(state))
    assert differ(both) == 0.0
    sharded = both[1][1]
    state["state"][0]["exp_avg"] = torch.ones(5)
    with pytest.raises(ValueError, match=r"'exp_avg' has shape \(5,\)"):
        sharded.load_state_dict(state)
    collected(sharded)
    sharded.param_groups[0]["lr"] = 0.5
    if dist.get_rank() == 0:
        assert sharded.state_dict()["param_groups"][0]["lr"] == 0.5
    # The rank of consolidate() is a global one.
    group = dist.new_group([1])
    if dist.get_rank() == 1:
        model = DistributedDataParallel(linear(), process_group=group)
        alone = ShardedOptimizer(adamw(model.parameters()), model)
        backward(model)
        alone.step()
        with pytest.raises(ValueError, match=r"consolidate\(to=0\): the ranks .* are 1\."):
            alone.consolidate(to=0)
        alone.consolidate(to=1)
        assert alone.state_dict()["state"]


class Counting(Optimizer):
    """Divides gradients by the number of the step, which it keeps in one of several places."""

    def __init__(self, parameters: Any, place: str) -> None:
        super().__init__(parameters, {"counts": [0]})
        self.place = place
        self.count = torch.zeros(())
        self.steps = [0]
        self.own = Own()

    def counted(self) -> float:
        """Counts one more step."""
        if self.place == "tensor":
            return float(self.count.add_(1))
        if self.place == "object":
            self.own.steps += 1
            return self.own.steps
        if self.place == "state":
            found = self.state["all"]
            found["steps"] = found.get("steps", 0) + 1
            return float(found["steps"])
        counts = self.steps if self.place == "list" else self.param_groups[0]["counts"]
        counts[0] += 1
        return float(counts[0])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        count = self.counted()
        for one in self.param_groups[0]["params"]:
            if one.grad is not None:
                one.sub_(one.grad / count, alpha=0.1)


class Own:
    steps = 0


class Grouped(Optimizer):
    """Counts the steps of each group that has gradients, and not those before a given one."""

    def __init__(self, parameters: Any, first: int = 0) -> None:
        super().__init__(parameters, {"step": 0})
        self.first = first

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            present = [one for one in group["params"] if one.grad is not None]
            for one in present:
                state = self.state[one]
                state["step"] = state.get("step", 0) + 1
                if one is present[0] and state["step"] > self.first:
                    group["step"] += 1
                one.sub_(one.grad / (1 + group["step"]), alpha=0.1)


def small_buffers(optimizer: Callable[[nn.Module], Optimizer]) -> Pair:
    made: Pair = []
    for is_sharded in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 1, bias=False), *(nn.Linear(1, 1) for _ in range(6)))
        model = DistributedDataParallel(net, bucket_cap_mb=1e-5)
        plain = optimizer(model.module)
        made.append((model, ShardedOptimizer(plain, model) if is_sharded else plain))
    return made


def steps_are_counted_once() -> None:
    for place in ("tensor", "list", "state", "group", "object"):
        both = small_buffers(lambda net, place=place: Counting(net.parameters(), place))
        sharded = both[1][1]
        assert isinstance(sharded, ShardedOptimizer)
        assert isinstance(sharded.inner, Counting)
        assert sharded.layout.size > 2
        assert differ(both) == 0.0, place
        assert sharded.inner.counted() == 4, place
    model = DistributedDataParallel(linear())
    counting = Counting(model.parameters(), "list")
    counting.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"attribute 'lock' of Counting cannot be copied \(TypeError"):
        ShardedOptimizer(counting, model)


def groups_are_counted_where_they_are_owned() -> None:
    both = small_buffers(lambda net: Grouped([*net[0].parameters(), *net[1].parameters()]))
    assert differ(both, 2) == 0.0
    for model, optimizer in both:
        optimizer.add_param_group({"params": list(model.module[2:].parameters())})
    assert differ(both) == 0.0
    assert [group["step"] for group in collected(both[1][1])["param_groups"]] == [5, 3]
    # No rank has pieces of the first parameters of a group alone.
    alone = small_buffers(lambda net: Grouped([{"params": [one]} for one in net.parameters()]))
    assert differ(alone) == 0.0
    assert {group["step"] for group in collected(alone[1][1])["param_groups"]} == {3}
    late = small_buffers(lambda net: Grouped(net.parameters(), first=1))
    with pytest.raises(RuntimeError, match="Grouped has changed the option 'step'"):
        differ(late)


def test_scripts_change_parameters_groups_and_state() -> None:
    run(changes_what_it_owns)


def changes_what_it_owns() -> None:
    parameters_are_replaced()
    schedulers_are_made_before()
    state_has_the_shapes_of_torch()
    steps_are_counted_once()
    groups_are_counted_where_they_are_owned()
