"""`smdp.torch.offload_activations()`, for models that are not in a pipeline."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves

from smdp._shown import shown
from smdp.torch.forward_waits.inert_hook import InertHook
from smdp.torch.mesh.told_failures import tell_failure
from smdp.torch.offload.returned_memory import keep_large_tensors, return_large_tensors
from smdp.torch.offload.saved_tensors import LEAST_BYTES, KnownStorages, Record, Saved, Store, keys_of, saving
from smdp.torch.offload.stores import store_for
from smdp.torch.offload.target import target_of

_MARK = "_smdp_offloaded"
# Containers that are never called themselves.
_COLLECTIONS = (nn.ModuleList, nn.ModuleDict)


def offload_activations(
    model: nn.Module, offload: str, horizon: int = 4, *, least_bytes: int = LEAST_BYTES
) -> nn.Module:
    """Moves what the blocks of a model save for backward out of memory, and back ahead of their backward.

    The blocks are the repeated modules in the model's ModuleLists and Sequentials. At most `horizon` + 1 of
    them have their saved tensors in memory at once: the one that computes, those that still leave, and those
    that return. With activation checkpoints around or inside of the blocks, only what these keep is moved.
    Losses and gradients have the bits of training without it. A slow disk makes steps slower.

    Parameters and buffers stay in memory, as do tensors that several blocks get as the same object, such as
    a mask, and small tensors.

    Args:
        model: The model, which is changed in place. Wrap it in DistributedDataParallel afterwards. For
            pipelines use `smdp.torch.pipeline(offload=...)`.
        offload: "disk:/DIRECTORY": a file in this directory on a local disk, for models on the CPU. The file
            has no name, so nothing is left of it when the process ends. "disk:/DIRECTORY?limit=50G" bounds
            its size. "host": pinned memory of the host, for models on a GPU.
        horizon: How many blocks ahead of its backward a block's tensors return.
        least_bytes: Smaller tensors stay in memory.

    Returns:
        The model.

    Raises:
        ValueError: An argument is wrong, the directory cannot be used, or the model has no blocks.

    Example:
        >>> model = smdp.torch.offload_activations(model, "disk:/scratch")  # doctest: +SKIP
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"[smdp] offload_activations() got {type(model).__name__}; expected a torch.nn.Module"
        )
    check_horizon(horizon)
    if not isinstance(least_bytes, int) or isinstance(least_bytes, bool) or least_bytes < 0:
        raise ValueError(
            f"[smdp] least_bytes = {shown(least_bytes)} is not valid; allowed: an integer of at least 0, the"
            " number of bytes below which tensors stay in memory"
        )
    target = target_of(offload)
    if hasattr(model, "train_step") and hasattr(model, "split"):
        raise ValueError(
            "[smdp] offload_activations() got a model that has been split into stages. Pass offload and"
            " horizon to smdp.torch.pipeline() instead."
        )
    if is_offloaded(model):
        raise ValueError("[smdp] offload_activations() was called for this model before; call it once")
    blocks = blocks_of(model)
    if not has_blocks(model):
        raise ValueError(
            f"[smdp] offload_activations(): {type(model).__name__} has {len(blocks)} blocks (repeated"
            " modules in a ModuleList or Sequential). Put the repeated layers of the model into one."
        )
    devices = {one.device for one in model.parameters()}
    if len(devices) != 1:
        raise ValueError(
            f"[smdp] offload_activations(): the parameters are on {', '.join(sorted(map(str, devices)))}; put"
            " them on one device before"
        )
    activations = BlockActivations(model, store_for(target, devices.pop()), horizon, least_bytes)
    activations.follow(blocks)
    model.__dict__[_MARK] = activations
    # Code compiled for a model of the same class without hooks would be used again, without the hooks.
    torch.compiler.reset()
    return model


def has_blocks(model: nn.Module) -> bool:
    """Returns whether a model has at least two blocks."""
    return len(blocks_of(model)) > 1


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Returns the elements of a model's outermost ModuleLists, ModuleDicts and Sequentials.

    A Sequential of different parts, or of Sequentials that repeat larger modules, is looked into.
    """
    found: list[nn.Module] = []
    children = list(model.children())
    kinds = Counter(type(child) for child in children)
    for child in children:
        if isinstance(child, _COLLECTIONS) or not isinstance(model, (nn.Sequential, *_COLLECTIONS)):
            found += blocks_of(child)
        elif _repeats(child) or (isinstance(model, nn.Sequential) and kinds[type(child)] == 1):
            found += blocks_of(child) or [child]
        else:
            found.append(child)
    return found


def _repeats(module: nn.Module) -> bool:
    """Returns whether a module is a Sequential with several modules of one class that have parts."""
    kinds = Counter(type(child) for child in module.children() if next(child.children(), None) is not None)
    return isinstance(module, nn.Sequential) and any(count > 1 for count in kinds.values())


def is_offloaded(model: nn.Module) -> bool:
    """Returns whether offload_activations() was called for a model, or for a part of it."""
    return any(vars(one).get(_MARK) is not None for one in model.modules())


def check_horizon(horizon: object) -> None:
    """Raises an error if a horizon is not valid.

    Raises:
        ValueError: It is not an integer of at least 1.
    """
    if not isinstance(horizon, int) or isinstance(horizon, bool) or horizon < 1:
        raise ValueError(
            f"[smdp] horizon = {shown(horizon)} is not valid; allowed: an integer of at least 1, the number"
            " of blocks or pipeline tasks ahead of its backward at which a saved tensor returns"
        )


class BlockActivations:
    """What a model has saved for backward, cut where its blocks begin.

    Args:
        model: The model.
        store: Where it goes.
        horizon: How many blocks ahead of its backward it returns.
        least: The fewest bytes of a tensor that leaves.
    """

    def __init__(self, model: nn.Module, store: Store, horizon: int, least: int) -> None:
        self._model = weakref.ref(model)
        self._store = store
        self._horizon = horizon
        self._least = least
        self._known = KnownStorages()
        self._records: list[weakref.ref[_BlockRecord]] = []  # in the order of the forward
        self._leaving: deque[_BlockRecord] = deque()
        self._current: _BlockRecord | None = None
        self._contexts: list[AbstractContextManager[None] | None] = []
        self._kept: set[int] = set()
        self._inputs: dict[int, weakref.ref[Tensor]] = {}
        self._count = 0  # records since the last backward
        self._expected = 0  # records between the two backwards before
        self._in_use: Record | None = None
        self._lock = threading.RLock()  # autograd may run a graph on several threads

    def follow(self, blocks: Sequence[nn.Module]) -> None:
        """Makes the model save its tensors here."""
        model = self._model()
        assert model is not None
        model.register_forward_pre_hook(InertHook(self._begin))
        model.register_forward_hook(InertHook(self._end), always_call=True)
        for block in blocks:
            block.register_forward_pre_hook(_InputsHook(self._cut), with_kwargs=True)

    def resident(self) -> list[int]:
        """Returns the bytes in memory of each block that has some, in the order of the forward."""
        found = (one() for one in self._records)
        return [size for one in found if one is not None and (size := one.resident_bytes)]

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Makes copies of the model keep their saved tensors in memory, as their hooks do nothing."""
        return _nothing, ()

    def _begin(self) -> None:
        model = self._model()
        if self._contexts or model is None or not torch.is_grad_enabled() or _is_in_backward():
            self._contexts.append(None)  # inside of a forward, or nothing is saved
            return
        self._known.forget()
        self._inputs.clear()
        self._kept = {*keys_of(model.parameters()), *keys_of(model.buffers())}
        self._records = [one for one in self._records if one() is not None]
        self._next()
        context = saving(self._pack)
        context.__enter__()
        self._contexts.append(context)

    def _end(self) -> None:
        context = self._contexts.pop()
        if context is not None:
            context.__exit__(None, None, None)
            if self._current is not None:  # it is None after an error
                with self._told():
                    self._finish()

    def _cut(self, args: Any, kwargs: Any) -> None:
        """Ends a record where the next block begins."""
        if self._current is None or _is_in_backward():
            return  # recomputation
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                known = self._inputs.get(id(leaf))
                if known is not None and known() is leaf:
                    self._kept.update(keys_of([leaf]))
                self._inputs[id(leaf)] = weakref.ref(leaf)
        with self._told():
            self._finish()
            while len(self._leaving) > self._horizon:
                oldest = self._leaving.popleft()
                oldest.begin_to_leave()
                oldest.has_left()
        self._next()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Ends the wait of other ranks if what this rank has saved cannot leave, as on a full disk."""
        try:
            yield
        except Exception as error:
            self._tell(error)
            raise

    def _tell(self, error: Exception) -> None:
        model = self._model()
        if model is not None:
            tell_failure(model, error)

    def _next(self) -> None:
        self._current = _BlockRecord(self._store, self._known, self._kept, self._least, self._use, self._tell)
        self._current.place = len(self._records)
        self._records.append(weakref.ref(self._current))

    def _finish(self) -> None:
        """Lets go of the current record, unless backward needs it at once."""
        record, self._current = self._current, None
        assert record is not None
        if next(record.saved, None) is None:
            self._records.pop()
            return
        self._count += 1
        if not self._expected or self._count <= self._expected - self._horizon:
            record.begin_to_leave()
        self._leaving.append(record)

    def _pack(self, tensor: Tensor) -> Saved:
        assert self._current is not None
        packed: Saved = self._current.pack(tensor)
        return packed

    def _use(self, record: Record) -> None:
        """Begins to bring back what backward needs next."""
        if self._in_use is record:
            return
        with self._lock:
            assert isinstance(record, _BlockRecord)
            self._in_use = record
            if self._count:
                self._expected, self._count = self._count, 0
                self._leaving.clear()
                if _is_in_backward():
                    return_large_tensors()
                    Variable._execution_engine.queue_callback(keep_large_tensors)
            place = record.place
            for one in self._records[place + 1 : place + 2 + self._horizon]:
                if (found := one()) is not None:
                    found.leave_again()
            for one in reversed(self._records[max(place - self._horizon, 0) : place + 1]):
                if (found := one()) is not None:
                    found.begin_to_return()


class _BlockRecord(Record):
    """A record that knows its place among others."""

    place = 0


class _InputsHook(InertHook):
    """Calls a function with the inputs of a forward."""

    def __call__(self, *own: Any) -> None:
        """Calls the function. torch calls this with the module, and its arguments."""
        if self._function is not None:
            self._function(*own[1:])


def _nothing() -> None:
    """Stands for what a copy does not have."""


def _is_in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
