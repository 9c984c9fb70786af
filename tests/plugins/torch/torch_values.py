"""Inputs whose sums are exact in every dtype, and comparison bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

REAL = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (1025,)]


def value(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Give small numbers that differ by rank and place, exact in every dtype."""
    numel = 1
    for extent in shape:
        numel *= extent
    numbers = (torch.arange(numel) * 3 + rank * 5) % 4 + 1
    if dtype is torch.bool:
        numbers = numbers % 2
    result = numbers.reshape(shape).to(torch.float32).to(dtype) if not dtype.is_complex else None
    if result is None:
        result = torch.complex(numbers.double(), -numbers.double()).reshape(shape).to(dtype)
    return result


def values(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """Give the values of all ranks."""
    return [value(rank, shape, dtype) for rank in range(dist.get_world_size())]


def layouts(tensor: Tensor) -> Iterator[Tensor]:
    """Give copies of a tensor as it is, transposed, strided and at an odd place in its storage."""
    yield tensor.clone()
    if tensor.dim() == 2:
        yield tensor.clone().t().contiguous().t()
    if tensor.dim() >= 1:
        wide = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
        wide[..., 0] = tensor
        yield wide[..., 0]
        padded = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
        padded[1:] = tensor.flatten()
        yield padded[1:].view(tensor.shape)


def fold(function: Callable[[Tensor, Tensor], Tensor], tensors: list[Tensor]) -> Tensor:
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result = function(result, tensor)
    return result


def same(got: Tensor, expected: Tensor, what: object = "") -> None:
    got, expected = (
        torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor) for tensor in (got, expected)
    )
    assert got.dtype == expected.dtype, (what, got.dtype, expected.dtype)
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    as_bytes = got.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8)
    assert torch.equal(*as_bytes), f"{what}: got {got}, expected {expected}"
