"""Large tensors that a step gives: they stay with the rank that made them until another one reads them."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from smdp.torch.model_parallel.containers import map_tensors, tensors_in
from smdp.torch.model_parallel.functions import METADATA
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
    if not ranks:
        return
    strides = dense_strides(value.ghost)
    copied = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="cpu").copy_(tensor)
    for rank in ranks:
        offers.give(flat(copied), rank, tag)


def expect(offers: Offers, value: Value, rank: int, tag: int, what: str) -> LateTensor:
    """Give what reads a tensor that another rank offers; `what` is for errors."""
    ghost = value.ghost
    make_room = functools.partial(torch.empty, ghost.numel(), dtype=ghost.dtype, device="cpu")
    return LateTensor(value, offers.expect(make_room, rank, tag), what)


def read(tree: Any) -> Any:
    """Give a structure with contents in place of late tensors."""
    late = [tensor for tensor in tensors_in(tree) if isinstance(tensor, LateTensor)]
    if not late:
        return tree
    for tensor in late:  # all at once, and not one after the other
        tensor.begin()
    return map_tensors(lambda each: each.contents() if isinstance(each, LateTensor) else each, tree)


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

    def begin(self) -> None:
        """Ask for the contents."""
        offered = self._offered
        if offered is not None:
            with _as_outside(), telling(f"reading {self._what}"):
                offered.begin()

    def contents(self) -> Tensor:
        """Give the tensor itself; fetched the first time.

        Raises:
            smdp.SmdpError: The rank that has it is gone; the message names it. Or this one has left.
        """
        with self._lock, _as_outside():
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
        if args and isinstance(args[0], LateTensor):
            is_unread = args[0]._contents is None
            if func is Tensor.__hash__ or (is_unread and (func in METADATA or func is Tensor.grad.__get__)):
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **(kwargs or {}))
            if is_unread and func is Tensor.detach:  # it has no graph
                return args[0]
        return func(*read(args), **read(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Give operations that C++ calls the contents."""
        return func(*read(args), **read(kwargs or {}))

    def __deepcopy__(self, memo: Any) -> Tensor:
        """Copy the contents."""
        return cast("Tensor", copy.deepcopy(self.contents(), memo))


@contextlib.contextmanager
def _as_outside() -> Iterator[None]:
    """Leave the caller's modes: ghosts have no memory, and what inference mode makes cannot be trained on."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
        yield
