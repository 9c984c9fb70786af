"""Large tensors that a step gives: they stay with the rank that made them until another one reads them."""

from __future__ import annotations

import functools
import threading
from typing import Any, cast

import torch
from torch import Tensor

from smdp.torch.model_parallel.containers import map_tensors
from smdp.torch.model_parallel.transfers import dense_strides, flat, telling
from smdp.torch.model_parallel.values import Value
from smdp.torch.offers import Offered, Offers

# Bytes; less is sent at once, in a few milliseconds.
_LARGE = 1 << 20


def is_large(value: Value) -> bool:
    """Tell whether other ranks get a result when they read it; the same on all ranks."""
    return bool(value.ghost.numel() * value.ghost.element_size() >= _LARGE)


def offer(offers: Offers, tensor: Tensor, value: Value, ranks: list[int], tag: int) -> None:
    """Let other ranks read a tensor as it is now: a copy, for the program may change its own."""
    copy = torch.empty_strided(tensor.shape, dense_strides(value.ghost), dtype=tensor.dtype).copy_(tensor)
    for rank in ranks:
        offers.give(flat(copy), rank, tag)


def expect(offers: Offers, value: Value, rank: int, tag: int, what: str) -> LateTensor:
    """Give what reads a tensor that another rank offers; `what` is for errors."""
    ghost = value.ghost
    make_room = functools.partial(torch.empty, ghost.numel(), dtype=ghost.dtype)
    return LateTensor(value, offers.expect(make_room, rank, tag), what)


class LateTensor(Tensor):
    """A result of another rank. Shape and dtype are here; contents come when anything reads them."""

    _offered: Offered | None
    _contents: Tensor | None
    _what: str
    _lock: Any

    @staticmethod
    def __new__(cls, value: Value, offered: Offered, what: str) -> LateTensor:
        """Make a placeholder; see expect()."""
        ghost = value.ghost
        made = Tensor._make_wrapper_subclass(
            cls, ghost.shape, strides=dense_strides(ghost), dtype=ghost.dtype, device=ghost.device
        )
        made._offered, made._contents, made._what = offered, None, what
        made._lock = threading.Lock()
        return cast("LateTensor", made)

    def contents(self) -> Tensor:
        """Give the tensor itself; fetched the first time.

        Raises:
            smdp.SmdpError: The rank that has it is gone; the message names it.
        """
        with self._lock, torch._C.DisableTorchFunctionSubclass():
            if self._offered is not None:
                with telling(f"reading {self._what}"):
                    found = self._offered.read()
                self._contents = found.to(self.device).as_strided(self.shape, self.stride())
                self._offered = None
            assert self._contents is not None
            return self._contents

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer questions about shape and dtype; give all else the contents."""
        if func is Tensor.__hash__ or (func in _KNOWN and args[0]._contents is None):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return func(*_read(args), **_read(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Give operations that C++ calls the contents."""
        return func(*_read(args), **_read(kwargs or {}))


def _read(tree: Any) -> Any:
    return map_tensors(lambda each: each.contents() if isinstance(each, LateTensor) else each, tree)


_PROPERTIES = [
    "shape",
    "dtype",
    "device",
    "layout",
    "ndim",
    "requires_grad",
    "is_leaf",
    "grad",
    "grad_fn",
    "itemsize",
    "nbytes",
    "is_cuda",
    "is_cpu",
    "is_meta",
    "is_sparse",
    "is_quantized",
]
# What a placeholder answers by itself.
_KNOWN = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in _PROPERTIES),
        Tensor.size,
        Tensor.stride,
        Tensor.dim,
        Tensor.numel,
        Tensor.nelement,
        Tensor.element_size,
        Tensor.is_contiguous,
        Tensor.is_floating_point,
        Tensor.is_complex,
        Tensor.get_device,
        Tensor.__len__,
    ]
)
