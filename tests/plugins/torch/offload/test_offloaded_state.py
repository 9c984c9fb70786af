"""The state of a sharded optimizer is in a file on a disk, except while it is updated."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from sharded_models import OPTIMIZERS, Net, differences, train, values
from torch import Tensor, nn
from torch_spawn import run

from smdp.torch import DistributedDataParallel, ShardedOptimizer


@contextmanager
def folder_of_rank() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield folder
        assert os.listdir(folder) == []


def made(name: str, offload: str | None, dtype: torch.dtype | None = None, **options: object) -> tuple:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net().to(dtype))
    masters = None if dtype is None else torch.float32
    plain = OPTIMIZERS[name](model.parameters())
    return model, ShardedOptimizer(plain, model, master_dtype=masters, offload=offload, **options)


def check_bits() -> None:
    with folder_of_rank() as folder:
        for name, dtype in (("AdamW", None), ("SGD", None), ("AdamW fused", torch.bfloat16), ("NAdam", None)):
            expected, plain = made(name, None, dtype)
            model, optimizer = made(name, f"disk:{folder}", dtype)
            train(expected, plain, range(4))
            train(model, optimizer, range(4))
            assert differences(values(model), values(expected)) == 0.0, name
            # The state can be read at any time, loaded, and changed by a script.
            plain.consolidate()
            optimizer.consolidate()
            if dist.get_rank() == 0:
                assert same(plain.state_dict()["state"], optimizer.state_dict()["state"])
            whole = [plain.state_dict() if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(whole)
            plain.load_state_dict(whole[0])
            optimizer.load_state_dict(whole[0])
            for each in (plain, optimizer):
                for state in each.state.values():
                    for value in state.values():
                        if isinstance(value, Tensor) and value.dim():
                            value.mul_(0.5)
            train(expected, plain, range(4, 6))
            train(model, optimizer, range(4, 6))
            assert differences(values(model), values(expected)) == 0.0, name
        del optimizer


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[number][key]) if isinstance(value, Tensor) else value == other[number][key]
        for number, state in one.items()
        for key, value in state.items()
    )


def test_bits_are_those_without_offloading() -> None:
    run(check_bits)


def resident_bytes() -> int:
    """Returns the memory of this process that is not that of a file, nor kept by the C library."""
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise AssertionError


def check_memory() -> None:
    """Adam's state of 64 MiB of parameters, divided by two ranks, is 64 MiB each."""
    with folder_of_rank() as folder:
        held = []
        for offload in (None, f"disk:{folder}"):
            torch.manual_seed(0)
            model = DistributedDataParallel(nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(16))))
            optimizer = ShardedOptimizer(torch.optim.AdamW(model.parameters()), model, offload=offload)
            before = resident_bytes()
            for _ in range(2):
                model(torch.randn(2, 1024)).sum().backward()
                optimizer.step()
            model.zero_grad()
            held.append(resident_bytes() - before)
            del model, optimizer
        # The state of the fusion buffers that are updated next, 4 MiB each, is in memory.
        assert held[0] - held[1] >= 0.7 * (64 << 20), held


def test_memory_falls_by_the_state() -> None:
    run(check_memory)


def check_errors() -> None:
    with folder_of_rank() as folder:
        missing = f"disk:{folder}" if dist.get_rank() == 0 else "disk:/no/such/place"
        with pytest.raises((ValueError, RuntimeError), match="/no/such/place is not a directory"):
            made("AdamW", missing)
        with pytest.raises(ValueError, match="the state of this optimizer is in the memory of the host"):
            made("AdamW", "host")
        limit = "?limit=64K" if dist.get_rank() == 0 else ""
        model, optimizer = made("AdamW", f"disk:{folder}{limit}")
        with pytest.raises(Exception, match=r"offload to .* needs .* more bytes, and .* are there"):
            train(model, optimizer, range(2))  # the other rank hears of it in its second step at the latest
        del model, optimizer
    dist.barrier()


def test_errors_are_those_of_all_ranks() -> None:
    run(check_errors)
