"""Updates and parameters that travel beside computation: the same bits, and errors that reach all ranks."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import OPTIMIZERS, Maker, collected, differences, values
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim import SGD, Optimizer
from torch_spawn import run

import smdp
from smdp.torch import DistributedDataParallel, ShardedOptimizer


class Blocks(nn.Module):
    """Blocks with fusion buffers of their own, between a stem and a tied head."""

    def __init__(self, width: int = 520) -> None:
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(3))
        self.is_sideways = self.is_direct = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.is_sideways:
            x = x @ self.get_parameter("blocks.2.0.weight")
        if self.is_direct:
            x = x @ torch.func.vmap(lambda row: row * 1.0)(self.get_parameter("blocks.2.0.weight"))
        for block in self.blocks:
            x = x + block(x)
        return x @ self.stem.weight


class Counting(SGD):
    """Counts its steps in each group, and uses the count."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["lr"] = 0.1 / group["steps"]
        super().step(closure)


def backward(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    model(torch.randn(4, 8, generator=generator)).square().mean().backward()


def made(maker: Maker, **options: Any) -> tuple[DistributedDataParallel, Any]:
    """Returns a model and its optimizer with two groups, sharded if there are options."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Blocks(), bucket_cap_mb=0.5)
    optimizer = maker([one for one in model.parameters() if one.dim() > 1])
    optimizer.add_param_group({"params": [one for one in model.parameters() if one.dim() == 1], "lr": 0.02})
    return model, ShardedOptimizer(optimizer, model, **options) if options else optimizer


def train(model: nn.Module, optimizer: Optimizer, steps: Iterable[int], limit: float = 0.0) -> None:
    for step in steps:
        optimizer.zero_grad()
        backward(model, step)
        if limit:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()


def trains_to_the_same_bits() -> None:
    makers: list[Maker] = [OPTIMIZERS["AdamW"], OPTIMIZERS["NAdam"], lambda p: Counting(p, lr=0.1)]
    for number, maker in enumerate(makers):
        expected, plain = made(maker)
        train(expected, plain, range(4))
        for overlaps in (False, True):
            model, optimizer = made(maker, overlap_forward=overlaps)
            assert optimizer.layout.size > 3
            train(model, optimizer, range(4))
            assert [group.get("steps") for group in optimizer.param_groups] == [
                4 if number == 2 else None
            ] * 2
            optimizer.settle()
            assert differences(values(model), values(expected)) == 0.0, (number, overlaps)


def updates_buffers_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = made(OPTIMIZERS["SGD"], scope="world")
    train(model, optimizer, range(2))
    events: list[str] = []
    (means,), update = [each.means for each in optimizer._lists._lists], optimizer._update
    end, part, whole = means.end, update._step_part, update._step_whole
    monkeypatch.setattr(means, "end", lambda: (means.is_over or events.append("end"), end()))
    monkeypatch.setattr(update, "_step_part", lambda members: (events.append("part"), part(members)))
    monkeypatch.setattr(update, "_step_whole", lambda: (events.append("whole"), whole()))
    train(model, optimizer, [2])
    assert len(events) > 3 and {*events[:-1]} == {"part"} and events[-1] == "end"
    events.clear()
    train(model, optimizer, [3], limit=1e9)
    assert len(events) > 3 and events[0] == "end" and {*events[1:]} == {"part"}
    events.clear()
    handle = optimizer.inner.register_step_post_hook(lambda *_: None)
    train(model, optimizer, [4])
    handle.remove()
    assert events == ["end", "whole"]


READS: dict[str, Callable[[DistributedDataParallel, nn.Parameter], Tensor]] = {
    "an operation": lambda _, one: one * 1.0,
    "an operation in place": lambda _, one: torch.no_grad()(one.mul_)(1.0).detach().clone(),
    "an operation on a list": lambda _, one: torch._foreach_neg([torch._foreach_neg([one.detach()])[0]])[0],
    "torch.ops": lambda _, one: torch.ops.aten.clone.default(one),
    ".data": lambda _, one: one.data.clone(),
    "numpy()": lambda _, one: torch.from_numpy(one.detach().numpy().copy()),
    "tolist()": lambda _, one: torch.tensor(one.tolist()),
    "untyped_storage()": lambda _, one: torch.tensor([]).set_(one.untyped_storage()).view_as(one).clone(),
    "copy.deepcopy": lambda _, one: copy.deepcopy(one),
    "copy.deepcopy of the model": lambda model, _: copy.deepcopy(model.module).get_parameter(NAME),
    "pickle": lambda _, one: pickle.loads(pickle.dumps(one)),
    "torch.save": lambda _, one: saved(one),
    "all_reduce": lambda _, one: (dist.all_reduce(one.data, dist.ReduceOp.MAX), one.data.clone())[1],
    "state_dict()": lambda model, _: model.state_dict()[f"module.{NAME}"].clone(),
    "torch.tensor": lambda _, one: torch.tensor(one),
    "as_subclass()": lambda _, one: one.as_subclass(Tensor).detach().clone(),
    "nn.Parameter": lambda _, one: nn.Parameter(one).detach().clone(),
    "torch.func": lambda _, one: torch.func.vmap(lambda row: row * 1.0)(one),
    "another thread": lambda _, one: in_thread(lambda: one.data.clone()),
    "a child process": lambda _, one: in_child(one),
}
NAME = "blocks.1.0.weight"


def saved(one: Tensor) -> Tensor:
    torch.save(one, file := io.BytesIO())
    file.seek(0)
    return torch.load(file)  # type: ignore[no-any-return]


def in_thread(read: Callable[[], Tensor]) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(read).result()


def in_child(one: Tensor) -> Tensor:
    queue = multiprocessing.get_context("fork").SimpleQueue()
    if (child := os.fork()) == 0:
        queue.put(one.detach().numpy())
        os._exit(0)
    found = queue.get()
    os.waitpid(child, 0)
    return torch.from_numpy(found)


def reads_await_parameters() -> None:
    expected, plain = made(OPTIMIZERS["AdamW"])
    model, optimizer = made(OPTIMIZERS["AdamW"], scope="world")
    one, right = model.module.get_parameter(NAME), expected.module.get_parameter(NAME)
    waiting = optimizer._returning.pending
    for step, (name, read) in enumerate(READS.items()):
        train(expected, plain, [step])
        train(model, optimizer, [step])
        every = len(list(model.parameters()))
        assert len(waiting) == every, name
        optimizer.zero_grad()
        assert one.shape == right.shape and one.requires_grad and one.grad is None and hash(one) == id(one)
        assert len(waiting) == every, name
        assert torch.equal(read(model, one), right), name
        assert type(one) is nn.Parameter and len(waiting) < every, name
    assert type(type(one)(torch.zeros(3))) is nn.Parameter
    # A module that reads another module's parameter, and a forward that ends without all of the parameters.
    model.module.is_sideways = expected.module.is_sideways = True
    train(expected, plain, range(3))
    train(model, optimizer, range(3))
    assert waiting
    assert torch.equal(
        model.module.blocks[0](torch.ones(1, 520)), expected.module.blocks[0](torch.ones(1, 520))
    )
    assert waiting
    assert torch.equal(model(torch.ones(4, 8)), expected(torch.ones(4, 8))) and not waiting
    train(expected, plain, [3])
    train(model, optimizer, [3])
    model.module.is_sideways = expected.module.is_sideways = False
    model.module.is_direct = expected.module.is_direct = True
    optimizer._waits._has_forward = False
    for step in range(2):
        train(expected, plain, [step])
        train(model, optimizer, [step])
        assert differences(values(model), values(expected)) == 0.0
    assert optimizer._waits._reads_directly
    # Two models at once, each with its own optimizer.
    other, its = made(OPTIMIZERS["AdamW"], scope="world")
    train(other, its, [1])
    train(model, optimizer, [3])
    train(expected, plain, [3])
    assert waiting and its._returning.pending
    assert torch.equal(torch.tensor(one), right) and its._returning.pending
    assert torch.equal(other(torch.ones(4, 8)), other(torch.ones(4, 8))) and not its._returning.pending
    found, whole = collected(optimizer), plain.state_dict()
    assert torch.equal(found["state"][0]["exp_avg"], whole["state"][0]["exp_avg"])
    backward(model, 3)  # a step under way when the process ends


def compiled_code_has_plain_parameters() -> None:
    """Graphs stay whole and are not compiled again, and the last step before the first one is awaited."""
    expected, plain = made(OPTIMIZERS["AdamW"])
    model, optimizer = made(OPTIMIZERS["AdamW"], scope="world")
    train(expected, plain, range(2))
    train(model, optimizer, range(2))
    assert optimizer._returning.pending
    counts = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model.module, backend=counts, fullgraph=True)
    assert differences([compiled(torch.ones(4, 8))], [expected(torch.ones(4, 8))]) < 1e-6
    assert not optimizer._returning.pending
    train(expected, plain, range(2))
    train(model, optimizer, range(2))
    assert not optimizer._returning.pending
    assert differences([compiled(torch.ones(4, 8))], [expected(torch.ones(4, 8))]) < 1e-6
    assert counts.frame_count == 1


def overlaps() -> None:
    trains_to_the_same_bits()
    with pytest.MonkeyPatch.context() as patch:
        updates_buffers_as_they_come(patch)
    reads_await_parameters()
    compiled_code_has_plain_parameters()


@pytest.mark.parametrize("hosts", [None, [0, 1]])
def test_updates_and_parameters_travel_beside_computation(hosts: list[int] | None) -> None:
    run(overlaps, hosts=hosts)


def fails_alone() -> None:
    """Rank 1 raises in step(), and lives on; the others get its reason at once."""

    def raises(*_: Any) -> None:
        raise ArithmeticError("no more numbers")

    def unaveraged(model: DistributedDataParallel, optimizer: Any) -> None:
        optimizer.zero_grad()
        with model.no_sync():
            backward(model, 3)

    def broken(model: DistributedDataParallel, optimizer: Any) -> None:
        optimizer.inner.register_step_pre_hook(raises)

    for breaks, kind, words in (
        (unaveraged, RuntimeError, "gradient of parameter 'stem.weight' is not averaged"),
        (broken, ArithmeticError, "no more numbers"),
    ):
        model, optimizer = made(OPTIMIZERS["AdamW"], overlap_forward=breaks is broken)
        train(model, optimizer, range(2))
        backward(model, 2)
        begin = time.monotonic()
        if dist.get_rank() == 1:
            breaks(model, optimizer)
            with pytest.raises(kind, match=words):
                optimizer.step()
        else:
            with pytest.raises(RuntimeError, match=f"rank 1 .* failed: .*{words}"):
                _ = optimizer.step(), model(torch.ones(4, 8))
            assert time.monotonic() - begin < 5
        dist.barrier()


def test_an_error_of_one_rank_ends_the_step_of_all() -> None:
    run(fails_alone)


def dies() -> None:
    model, optimizer = made(OPTIMIZERS["AdamW"], scope="world")
    train(model, optimizer, range(3))
    state = collected(optimizer)
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": state}, os.environ["CHECKPOINT"])
    else:
        optimizer.settle()
    backward(model, 3)
    if dist.get_rank() == 1:
        gather = optimizer.layout.gather()
        optimizer.layout.gather = lambda: Dying(gather)
    begin = time.monotonic()
    with pytest.raises(smdp.PeerLostError, match="rank 1"):
        _ = optimizer.step(), model(torch.ones(4, 8))
    assert time.monotonic() - begin < 5
    with pytest.raises(RuntimeError, match="rank 1"):
        _ = optimizer.step(), model.state_dict()
    os._exit(0)  # the group is closed


class Dying:
    """Ends the process when half of the fusion buffers are sent."""

    def __init__(self, gather: Any) -> None:
        self._gather = gather

    def ready(self, number: int) -> None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        self._gather.ready(number)


def resumes() -> None:
    saved = torch.load(os.environ["CHECKPOINT"])
    model, optimizer = made(OPTIMIZERS["AdamW"], scope="world")
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    expected, plain = made(OPTIMIZERS["AdamW"])
    train(expected, plain, range(5))
    train(model, optimizer, range(3, 5))
    optimizer.settle()
    assert differences(values(model), values(expected)) == 0.0


def test_the_last_checkpoint_resumes_when_a_rank_dies_while_parameters_travel(tmp_path: Path) -> None:
    env = {"CHECKPOINT": str(tmp_path / "checkpoint.pt")}
    run(dies, 3, env=env, exits={1: -signal.SIGKILL})
    run(resumes, 3, env=env)
