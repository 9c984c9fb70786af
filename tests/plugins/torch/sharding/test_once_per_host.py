"""Parameters that exist once per host train like those of each rank, and are protected from surprises."""

from __future__ import annotations

import copy
import gc
import io
import os
import resource
import signal
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from sharded_models import (
    OPTIMIZERS,
    Maker,
    Net,
    adamw,
    backward,
    deep,
    differences,
    loss_of,
    sgd,
    train,
    values,
)
from torch import nn
from torch.optim import Optimizer
from torch_spawn import run

import smdp
from smdp.torch import DistributedDataParallel, ShardedOptimizer

Made = tuple[DistributedDataParallel, Optimizer]


def shared(
    make: type[nn.Module] = Net, optimizer: Maker = adamw, scope: str = "world", share: bool = True
) -> Made:
    torch.manual_seed(0)
    model = DistributedDataParallel(make())
    return model, ShardedOptimizer(optimizer(model.parameters()), model, scope, share_parameters=share)


def expect_same_bits(scope: str, names: list[str], steps: int) -> None:
    for name in names:
        (expected, one), (model, other) = (
            shared(Net, OPTIMIZERS[name], scope, share) for share in (False, True)
        )
        train(expected, one, range(steps))
        train(model, other, range(steps))
        assert differences(values(model), values(expected)) == 0.0, name


class Large(nn.Module):
    """Has a parameter that is alone in its fusion buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(400_000, 8))
        self.norm = nn.BatchNorm1d(8)
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.norm(inputs) @ self.weight[:500].T + self.bias.sum()


def memory_is_common() -> None:
    model, optimizer = shared(Large)
    backward(model)
    optimizer.step()
    dist.barrier()
    for parameter in model.parameters():
        if dist.get_rank() == 0:
            parameter.data.fill_(7)
        dist.barrier()
        assert bool((parameter == 7).all())
        dist.barrier()
    # Copies and saved files have their own.
    copied = copy.deepcopy(model.module)
    file = io.BytesIO()
    torch.save(model.module.state_dict(), file)
    torch.save(model.module.bias, file)
    assert file.tell() < 1.1 * sum(one.nbytes for one in model.parameters()) + 10_000
    dist.barrier()
    if dist.get_rank() == 0:
        model.module.weight.data.zero_()
    dist.barrier()
    assert bool((copied.weight == 7).all())
    assert bool((model.module.weight == 0).all())
    dist.barrier()
    # It is let go with the optimizer, and other optimizers write to memory of this rank.
    module, before = model.module, mapped()
    for parameter in module.parameters():
        parameter.grad = None
    del model, optimizer, parameter
    gc.collect()
    assert before - mapped() > 400_000 * 8 * 4
    dist.barrier()
    module.weight.data.fill_(dist.get_rank())
    dist.barrier()
    assert bool((module.weight == dist.get_rank()).all())


def mapped() -> int:
    """Returns the bytes of shared memory that this process maps."""
    ends = [
        line.split()[0].split("-")
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "memfd:" in line
    ]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ends)


def scripts_write() -> None:
    (expected, one), (model, other) = (shared(deep, adamw, "world", share) for share in (False, True))

    def step_both(number: int) -> None:
        for each, its in ((expected, one), (model, other)):
            its.zero_grad()
            backward(each, number)
            its.step()
        assert differences(values(model), values(expected)) == 0.0, number

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step_both(0)
        saved = copy.deepcopy(expected.state_dict())
        step_both(1)
        for each in (expected, model):
            each.load_state_dict(saved)
        step_both(2)
        for each in (expected, model):
            for parameter in each.parameters():
                parameter.data = 0.5 * parameter.data
        step_both(3)
        for each in (expected, model):
            each.module[0].bias.requires_grad_(False)
        step_both(4)
        with torch.no_grad():
            model(torch.ones(4, 8))
    with torch.no_grad():
        for parameter in (*expected.module[1].parameters(), *model.module[1].parameters()):
            new = parameter * 2
            dist.barrier()
            parameter.copy_(new)
    with pytest.warns(UserWarning, match=r"changed parameter '1\.weight' outside of step\(\)"):
        step_both(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step_both(6)


def wrong_input_is_refused() -> None:
    rank = dist.get_rank()

    def refuses(make: Callable[[], nn.Module], words: str, share: bool = True) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(make())
        weight = next(model.parameters())
        with torch.no_grad():
            weight[0, 0] = rank if "other values" in words else 0
        before = values(model)
        with pytest.raises((ValueError, smdp.SmdpError), match=words):
            ShardedOptimizer(sgd(model.parameters()), model, share_parameters=share)
        assert differences(values(model), before) == 0.0
        backward(model)  # the gradients are still averaged
        assert weight.grad is not None
        total = [torch.empty_like(weight) for _ in range(2)]
        dist.all_gather(total, weight.grad)
        assert torch.equal(*total)

    choices = "rank 0 has share_parameters=False, and rank 1 has share_parameters=True"
    refuses(deep, choices, share=rank == 1)
    refuses(deep, r"'0\.weight' has other values on rank 1 than on rank 0")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 0:  # more than groups need
        resource.setrlimit(resource.RLIMIT_FSIZE, (30 << 20, hard))
    large = partial(nn.Linear, 8, 1_000_000, bias=False)
    refuses(large, r"rank 0 \(host .*cannot share memory: .*It asked for \d+ bytes.*ulimit -f")
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def shares_on_two() -> None:
    memory_is_common()
    expect_same_bits("world", ["AdamW", "SGD"], 20)
    scripts_write()
    wrong_input_is_refused()


def test_ranks_of_a_host_share_parameters() -> None:
    run(shares_on_two)


def same_bits_on_four() -> None:
    expect_same_bits("world", ["AdamW"], 20)
    expect_same_bits("host", ["SGD"], 20)


@pytest.mark.parametrize("hosts", [[0, 0, 0, 0], [0, 0, 1, 1]], ids=["one host", "two hosts"])
def test_four_ranks_train_to_the_same_bits(hosts: list[int]) -> None:
    run(same_bits_on_four, 4, hosts=hosts)


class Dying(torch.optim.SGD):
    def step(self, closure: object = None) -> None:
        super().step()
        if dist.get_rank() == 1 and self.param_groups[0]["lr"] == 0.2:
            os.kill(os.getpid(), signal.SIGKILL)


def dies_in_the_step() -> None:
    model, optimizer = shared(Net, lambda p: Dying(p, lr=0.1))
    train(model, optimizer, range(2))
    optimizer.param_groups[0]["lr"] = 0.2
    begin = time.monotonic()
    with pytest.raises(
        smdp.PeerLostError, match=r"rank 1.*Start the job again from the last checkpoint"
    ) as caught:
        train(model, optimizer, range(1))
    assert caught.value.ranks == [1]
    assert time.monotonic() - begin < 5
    os._exit(0)  # the group is closed


def test_a_rank_that_dies_in_a_step_is_named() -> None:
    run(dies_in_the_step, 3, exits={1: -signal.SIGKILL})


class Failing(torch.optim.SGD):
    def step(self, closure: object = None) -> None:
        super().step()
        if dist.get_rank() == 1 and self.param_groups[0]["lr"] == 0.2:
            raise ArithmeticError("no more")


def fails_in_the_step() -> None:
    model, optimizer = shared(Net, lambda p: Failing(p, lr=0.1))
    optimizer.param_groups[0]["lr"] = 0.2
    kind: type[Exception] = ArithmeticError if dist.get_rank() else smdp.SmdpError
    words = "no more" if dist.get_rank() else r"no more.*Do not use"
    with pytest.raises(kind, match=words):
        train(model, optimizer, range(1))
    dist.barrier()  # rank 0 has heard of it before rank 1 ends
    os._exit(0)


def test_a_rank_that_fails_in_a_step_tells_the_others() -> None:
    run(fails_in_the_step)


def fails_before_the_update() -> None:
    model, optimizer = shared()
    train(model, optimizer, range(1))
    loss_of(model, 1).backward()
    fails = dist.get_rank() == 0
    weight = model.module.hidden.weight
    if fails:
        weight.grad = torch.ones_like(weight)  # not averaged
    dist.barrier()  # the error of step() ends the backward of a rank that is still in it
    begin = time.monotonic()
    with pytest.raises(RuntimeError if fails else smdp.SmdpError, match=r"'hidden\.weight'"):
        optimizer.step()
    assert time.monotonic() - begin < 5
    dist.barrier()  # the rank that failed is still there
    os._exit(0)


def test_a_rank_that_fails_alone_does_not_let_its_host_wait() -> None:
    run(fails_before_the_update, 3)
