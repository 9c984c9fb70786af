"""Large tensors that a step gives: they stay with the rank that made them until another one reads them."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from smdp.torch.pipelining.tensors.containers import map_tensors, tensors_in
from smdp.torch.pipelining.tensors.functions import METADATA
from smdp.torch.pipelining.tensors.values import Value
from smdp.torch.pipelining.transfers.transfers import Channel, Telling, dense_strides, flat
from smdp.torch.process_group.pending_sends import PendingReceive

# Bytes; less is sent at once, in a few milliseconds.
_LARGE = 1 << 20


def is_large(value: Value) -> bool:
    """Tell whether other ranks get a result when they read it; the same on all ranks."""
    return bool(value.ghost.numel() * value.ghost.element_size() >= _LARGE)


def offer(channel: Channel, tensor: Tensor, value: Value, ranks: list[int], tag: int) -> None:
    """Let other ranks read a tensor as it is now: a copy, for the program may change its own."""
    if not ranks:
        return
    strides = dense_strides(value.ghost)
    copied = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="cpu").copy_(tensor)
    for rank in ranks:
        channel.offer(flat(copied), rank, tag)


def expect(channel: Channel, value: Value, rank: int, tag: int, what: str) -> LateTensor:
    """Give what reads a tensor that another rank offers; `what` is for errors."""
    ghost = value.ghost
    make_room = functools.partial(torch.empty, ghost.numel(), dtype=ghost.dtype, device="cpu")
    source = _Source(channel.expect(make_room, rank, tag), ghost.device, what)
    return LateTensor(ghost, dense_strides(ghost), source)


def read(tree: Any) -> Any:
    """Give a structure with contents in place of late tensors."""
    if not LateTensor.have_been:
        return tree
    late = [tensor for tensor in tensors_in(tree) if isinstance(tensor, LateTensor)]
    if not late:
        return tree
    for tensor in late:  # all at once, and not one after the other
        tensor.begin()
    return map_tensors(lambda each: each.contents() if isinstance(each, LateTensor) else each, tree)


class _Source:
    """What one or more late tensors read, once."""

    def __init__(self, receive: PendingReceive, device: torch.device, what: str) -> None:
        self._receive = receive
        self._device = device
        self._what = what
        self._found: Tensor | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Ask for it."""
        with Telling(f"reading {self._what}"):
            self._receive.begin()

    def read(self) -> Tensor:
        """Give all elements in the order of memory."""
        with self._lock, Telling(f"reading {self._what}"):
            if self._found is None:
                self._found = self._receive.read().to(self._device)
            return self._found


class LateTensor(Tensor):
    """A result of another rank. Shape and dtype are here; contents come when anything reads them."""

    have_been: ClassVar[bool] = False  # some have been made
    _source: _Source
    _contents: Tensor | None

    @staticmethod
    def __new__(cls, like: Tensor, strides: tuple[int, ...], source: _Source) -> LateTensor:
        """Make a placeholder; see expect()."""
        made = Tensor._make_wrapper_subclass(
            cls, like.shape, strides=strides, dtype=like.dtype, device=like.device
        )
        made._source, made._contents = source, None
        cls.have_been = True
        return cast("LateTensor", made)

    def begin(self) -> None:
        """Ask for the contents."""
        if self._contents is None:
            with _as_outside():
                self._source.begin()

    def contents(self) -> Tensor:
        """Give the tensor itself; fetched the first time.

        Raises:
            smdp.SmdpError: The rank that has it is gone; the message names it. Or this one has left.
        """
        with _as_outside():
            if self._contents is None:
                self._contents = self._source.read().as_strided(self.shape, self.stride())
            return self._contents

    def _detached(self) -> LateTensor:
        with _as_outside():
            return LateTensor(self, self.stride(), self._source)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer questions about shape and dtype; give all else the contents."""
        if args and isinstance(args[0], LateTensor):
            is_unread = args[0]._contents is None
            if func is Tensor.__hash__ or (is_unread and (func in METADATA or func is Tensor.grad.__get__)):
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **(kwargs or {}))
            if is_unread and func is Tensor.detach:
                return args[0]._detached()
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
