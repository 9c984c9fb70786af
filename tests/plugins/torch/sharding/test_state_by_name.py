"""The state of a sharded optimizer by parameter, copies of its model, and what saving and loading hold."""

from __future__ import annotations

import copy
import ctypes
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import OPTIMIZERS, adamw, backward, deep, differences, linear, made, pair, train
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_spawn import run

from smdp.torch import ShardedOptimizer
from smdp.torch.checkpoints import checkpoint

MIB = 1 << 20


def ranges_are_named() -> None:
    """The ranges of all ranks are the whole state of the unsharded optimizer, under the same names."""
    expected, plain = made(OPTIMIZERS["NAdam"], None)
    model, optimizer = made(OPTIMIZERS["NAdam"], "world")
    assert isinstance(optimizer, ShardedOptimizer)
    for each, its in ((expected, plain), (model, optimizer)):
        train(each, its, range(2))
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, optimizer.local_state())
    for name, parameter in expected.module.named_parameters():
        if not (whole := plain.state.get(parameter)):
            continue
        ranges = sorted((each for one in told for each in one[name]), key=lambda each: each[0])
        assert [piece.end for piece, _ in ranges[:-1]] == [piece.begin for piece, _ in ranges[1:]]
        joined = torch.cat([state["exp_avg"] for _, state in ranges])
        assert torch.equal(joined, whole["exp_avg"].flatten())
        assert all(torch.equal(state["mu_product"], whole["mu_product"]) for _, state in ranges)
    # The tensors are the optimizer's own.
    for ranges in optimizer.local_state().values():
        for _, state in ranges:
            for key in state.keys() & {"exp_avg", "exp_avg_sq"}:
                state[key].zero_()
    assert not any(one["exp_avg"].any() for one in optimizer.state.values())


def models_are_copied() -> None:
    """Copies have their own memory, as large as the parameters, and follow training as torch's do."""
    averaged = []
    for model, optimizer in pair(deep, adamw):
        swa = AveragedModel(model)
        ema = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        for step in range(3):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            swa.update_parameters(model)
            ema.update_parameters(model.module)
        averaged.append([*swa.parameters(), *ema.parameters()])
    assert differences(*averaged) == 0.0
    copied = copy.deepcopy(model.module)
    for one, other in zip(model.module.parameters(), copied.parameters(), strict=True):
        assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()
        assert other.untyped_storage().nbytes() == other.nbytes
    before = [one.clone() for one in copied.parameters()]
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    assert differences(before, copied.parameters()) == 0.0
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert len(file.getvalue()) < sum(one.nbytes for one in model.parameters()) + 4096
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(optimizer)


def torch_finds_the_names() -> None:
    """What consolidate() collects can be passed to torch's own functions, more than once."""
    model, optimizer = made(adamw, "world")
    train(model, optimizer, range(1))
    assert isinstance(optimizer, ShardedOptimizer)
    optimizer.consolidate(to=0)
    if dist.get_rank() == 0:
        for _ in range(2):
            found = get_optimizer_state_dict(model, optimizer)
            assert set(found["state"]) == set(found["param_groups"][0]["params"]) - {
                "never.weight",
                "never.bias",
            }


def same_bits_come_back() -> None:
    """Zeros keep their sign when the state is collected."""
    model, optimizer = pair(linear, adamw)[1]
    backward(model)
    optimizer.step()
    assert isinstance(optimizer, ShardedOptimizer)
    for one in optimizer.state.values():
        one["exp_avg"].fill_(-0.0)
    optimizer.consolidate(to=0)
    if dist.get_rank() == 0:
        assert all(torch.signbit(one["exp_avg"]).all() for one in optimizer.state_dict()["state"].values())


def most_memory(call: Callable[[], object]) -> int:
    """Returns by how many bytes this process grew at most while it made a call."""

    def resident(key: str) -> int:
        found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


class Wide(nn.Module):
    """Has matrices of 4 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(12))

    def forward(self, inputs: Tensor) -> Tensor:
        return sum(layer(inputs) for layer in self.layers)  # type: ignore[no-any-return]


def holds_one_tensor_more() -> None:
    """Of 96 MiB of state, this rank has a half. Nothing may hold the other half as well."""
    folder = Path(os.environ["SAVE"])
    own, few = 48 * MIB, 32 * MIB  # a rank that held the whole state would need 48 more
    both = pair(Wide, adamw)
    for model, optimizer in both:
        model(torch.ones(1, 1024)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    (plain, its), (model, sharded) = both
    assert isinstance(sharded, ShardedOptimizer)
    checkpoint.save(folder / "plain", plain, its)
    checkpoint.save(folder / "first", model, sharded)  # loads modules
    assert most_memory(lambda: checkpoint.save(folder / "sharded", model, sharded)) < 4 * MIB
    for name in ("plain", "sharded"):
        assert most_memory(lambda name=name: checkpoint.load(folder / name, model, sharded)) < own + few
    assert most_memory(lambda: checkpoint.save(folder / "loaded", model, sharded)) < 4 * MIB
    held = most_memory(lambda: sharded.consolidate(to=0))
    assert held < (2 * own + few if dist.get_rank() == 0 else few), held
    whole = its.state_dict()
    assert most_memory(lambda: sharded.load_state_dict(whole)) < own + few
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for state in sharded.state.values()
        for each in state.values()
    }
    assert sum(storages.values()) < own + MIB


def reads_copies_and_holds() -> None:
    ranges_are_named()
    models_are_copied()
    torch_finds_the_names()
    same_bits_come_back()
    holds_one_tensor_more()


def test_state_is_read_copied_and_moved(tmp_path: Path) -> None:
    run(reads_copies_and_holds, env={"SAVE": str(tmp_path)})
