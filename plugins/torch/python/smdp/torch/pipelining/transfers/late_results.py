"""Large results of a step, which stay on the rank that computed them until another rank reads them."""

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

# Bytes. Smaller results are sent at once, which takes a few milliseconds.
_LARGE = 1 << 20


def is_large(value: Value) -> bool:
    """Returns whether other ranks fetch a result only when they read it; the same on all ranks."""
    return bool(value.ghost.numel() * value.ghost.element_size() >= _LARGE)


def offer(channel: Channel, tensor: Tensor, value: Value, ranks: list[int], tag: int) -> None:
    """Lets other ranks read a tensor as it is now. Copies it, because the program may change the original."""
    if not ranks:
        return
    strides = dense_strides(value.ghost)
    copied = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="cpu").copy_(tensor)
    for rank in ranks:
        channel.offer(flat(copied), rank, tag)


def expect(channel: Channel, value: Value, rank: int, tag: int, what: str) -> LateTensor:
    """Returns a tensor that fetches its contents from the rank that offers them; `what` is for errors."""
    ghost = value.ghost
    make_room = functools.partial(torch.empty, ghost.numel(), dtype=ghost.dtype, device="cpu")
    source = _Source(channel.expect(make_room, rank, tag), ghost.device, what)
    return LateTensor(ghost, dense_strides(ghost), source)


def read(tree: Any) -> Any:
    """Returns a structure with late tensors replaced by their contents."""
    if not LateTensor.have_been:
        return tree
    late = [tensor for tensor in tensors_in(tree) if isinstance(tensor, LateTensor)]
    if not late:
        return tree
    for tensor in late:  # requests all before waiting for the first
        tensor.begin()
    return map_tensors(lambda each: each.contents() if isinstance(each, LateTensor) else each, tree)


class _Source:
    """The shared contents of one or more late tensors, which are fetched once."""

    def __init__(self, receive: PendingReceive, device: torch.device, what: str) -> None:
        self._receive = receive
        self._device = device
        self._what = what
        self._found: Tensor | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Requests the contents."""
        with Telling(f"reading {self._what}"):
            self._receive.begin()

    def read(self) -> Tensor:
        """Returns all elements, flat and in memory order."""
        with self._lock, Telling(f"reading {self._what}"):
            if self._found is None:
                self._found = self._receive.read().to(self._device)
            return self._found


class LateTensor(Tensor):
    """A result of another rank, with known shape and dtype, whose contents are fetched on first use."""

    have_been: ClassVar[bool] = False  # whether any has been created
    _source: _Source
    _contents: Tensor | None

    @staticmethod
    def __new__(cls, like: Tensor, strides: tuple[int, ...], source: _Source) -> LateTensor:
        """Returns a placeholder; see expect()."""
        made = Tensor._make_wrapper_subclass(
            cls, like.shape, strides=strides, dtype=like.dtype, device=like.device
        )
        made._source, made._contents = source, None
        cls.have_been = True
        return cast("LateTensor", made)

    def begin(self) -> None:
        """Requests the contents."""
        if self._contents is None:
            with _as_outside():
                self._source.begin()

    def contents(self) -> Tensor:
        """Returns the tensor itself, which is fetched on the first call.

        Raises:
            smdp.SmdpError: The rank that holds it is gone, and the message names it; or this rank has left
                the group.
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
        """Answers queries of shape and dtype directly; runs any other function on the contents."""
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
        """Runs an operation called from C++ on the contents."""
        return func(*read(args), **read(kwargs or {}))

    def __deepcopy__(self, memo: Any) -> Tensor:
        """Copies the contents."""
        return cast("Tensor", copy.deepcopy(self.contents(), memo))


@contextlib.contextmanager
def _as_outside() -> Iterator[None]:
    """Disables the caller's modes: ghosts have no memory, and inference tensors cannot be trained on."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
        yield
