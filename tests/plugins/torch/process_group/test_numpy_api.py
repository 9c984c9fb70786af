"""smdp.Group on torch's CPU tensors, which it takes by DLPack: results are in the tensors."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch_spawn import run

from smdp._buffers import view

SUMMED = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int16,
    torch.int64,
    torch.complex64,
)
MOVED = (torch.uint16, torch.uint64, torch.bool)


def collectives() -> None:
    import smdp

    store = dist.PrefixStore("numpy_api", dist.FileStore(os.environ["SMDP_TEST_STORE"]))
    group = smdp.init(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), store=store)
    size, rank = group.size, group.rank

    def numbers(who: int) -> Tensor:
        return (torch.arange(2000) % 5 + who).view(20, 100)

    def of(who: int, dtype: torch.dtype) -> Tensor:
        return numbers(who).to(dtype)

    for dtype in (*SUMMED, *MOVED):
        group.broadcast(mine := of(rank, dtype), size - 1)
        assert torch.equal(mine, of(size - 1, dtype)), dtype
        group.all_gather(of(rank, dtype), out=(blocks := torch.empty(20 * size, 100, dtype=dtype)))
        assert torch.equal(blocks, torch.cat([of(who, dtype) for who in range(size)])), dtype
    for dtype in SUMMED:
        mine = of(rank, dtype)
        total = sum(numbers(who) for who in range(size)).to(dtype)
        group.all_reduce(mine)
        assert torch.equal(mine, total), dtype
        out = torch.empty_like(mine)
        group.all_reduce(of(rank, dtype), out=out)
        assert torch.equal(out, total), dtype
        mine = of(rank, dtype)
        group.all_reduce(mine, async_op=True).wait()
        assert torch.equal(mine, total), dtype
    flags = torch.arange(10) % size == rank
    group.all_reduce(flags)
    assert flags.dtype == torch.bool and flags[:size].all()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        eighths = torch.full((7,), rank + 1.0).to(dtype)
        group.broadcast(eighths, size - 1)
        assert (eighths.float() == size).all(), dtype
    one = torch.tensor(rank + 1.0)  # no dimension
    group.all_reduce(one)
    assert one.item() == size * (size + 1) / 2
    group.all_reduce(torch.ones(0, 3))
    tail = torch.ones(10)[4:]  # begins within its memory
    group.all_reduce(tail)
    assert (tail == size).all()
    gathered = group.all_gather(torch.full((3,), rank, dtype=torch.bfloat16))
    assert gathered.dtype.name == "bfloat16" and gathered.astype(float).mean() == (size - 1) / 2
    smdp.shutdown()


def test_collectives() -> None:
    run(collectives, 2, init=False)


class Old:
    """A library that knows DLPack 0 only, which cannot say that memory must not be written."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, stream: object = None) -> object:
        return self.tensor.__dlpack__()


class ReadOnly:
    """An array that says so."""

    def __dlpack__(self, *, max_version: tuple[int, int]) -> object:
        array = np.ones(3)
        array.flags.writeable = False
        return array.__dlpack__(max_version=max_version)


def test_the_memory_lives_as_long_as_the_array() -> None:
    for made in (torch.arange(1000.0), Old(torch.arange(1000.0))):
        array = view(made, writes=False, what="the array").array
        del made
        gc.collect()
        others = [torch.zeros(1000) for _ in range(10)]
        assert array.sum() == 499_500, len(others)


def refused(value: object) -> str:
    with pytest.raises(ValueError, match=r"^\[smdp\] ") as caught:
        view(value, writes=True, what="the array")
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_what_cannot_be_taken() -> None:
    assert "copy it to the CPU first" in refused(OnDevice())
    assert "use tensor.detach()" in refused(torch.ones(3, requires_grad=True))
    assert "NumPy has no type for DLPack type code 5 with 32 bits" in refused(
        torch.ones(3).to(torch.complex32)
    )
    assert "the array is not contiguous" in refused(torch.ones(4, 4).t())
    assert "the array is read-only, but the collective writes" in refused(ReadOnly())
    assert "pass the result of its resolve_neg()" in refused(torch.tensor([1 + 2j]).conj().imag)
    assert (
        "Old uses DLPack older than 1.0, which does not state whether memory is writable. Pass a NumPy"
        in refused(Old(torch.ones(3)))
    )
    assert "it uses DLPack 2" in refused(Newer())
    with mock.patch.dict(sys.modules, {"ml_dtypes": None}):
        text = refused(torch.ones(3, dtype=torch.bfloat16))
    assert "bfloat16 in NumPy requires ml_dtypes, which is missing or too old: pip install" in text


def changed(tensor: Tensor, offset: int, value: int) -> object:
    """Give a capsule of DLPack 1 in which a number of 32 bits is another."""
    capsule = tensor.__dlpack__(max_version=(1, 0))
    of_capsule = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    address = of_capsule(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"dltensor_versioned")
    ctypes.c_int32.from_address(address + offset).value = value
    return capsule


class OnDevice:
    def __dlpack__(self, *, max_version: tuple[int, int]) -> object:
        return changed(torch.ones(3), 40, 2)  # kDLCUDA


class Newer:
    def __dlpack__(self, *, max_version: tuple[int, int]) -> object:
        return changed(torch.ones(3), 0, 2)
