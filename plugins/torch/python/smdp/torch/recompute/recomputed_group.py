"""A group of calls that keeps only its inputs from forward to backward, and runs again in backward.

The calls are made one after another by code that is not ours: a model's loop over its layers. Each call joins
the group of the call before it, whose outputs it gets as arguments; those are not kept, because the group
computes them again. Autograd gets a handle in place of every tensor that a call saves. The first handle that
backward opens runs the whole group again, which fills all handles.

This differs from `torch.utils.checkpoint` in two ways. Calls can form a group without a function around them,
and each tensor belongs to its handle and not to a run of autograd. So the weight gradients that a zero-bubble
schedule postpones use the tensors that the input gradients have recomputed.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from torch.utils.weak import TensorWeakRef

from smdp.torch.recompute.call_state import CallState, kept_generators

# Returns the contexts in which a call runs for the first time and again, as torch.utils.checkpoint expects.
ContextPair = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]

_thread = threading.local()


def is_running_again() -> bool:
    """Returns whether this thread recomputes activations."""
    return getattr(_thread, "is_again", False)


@contextlib.contextmanager
def used_twice() -> Iterator[None]:
    """Says that backward will open the tensors saved in the context twice: for inputs, then for weights."""
    before = getattr(_thread, "uses", 1)
    _thread.uses = 2
    try:
        yield
    finally:
        _thread.uses = before


class RecomputedGroup:
    """Calls whose saved tensors are recomputed together.

    Args:
        contexts: Returns the contexts of a call, which may keep some of its results. None: no contexts.
        preserves_random_numbers: Whether the calls draw the same random numbers when they run again.
        watch: Is called with each tensor that the calls save. None: nothing is.
        before_again: Is called before the calls run again. None: nothing is.
    """

    def __init__(
        self,
        contexts: ContextPair | None = None,
        *,
        preserves_random_numbers: bool = True,
        watch: Callable[[Tensor], None] | None = None,
        before_again: Callable[[], None] | None = None,
    ) -> None:
        self._contexts = contexts
        self._preserves = preserves_random_numbers
        self._watch = watch
        self._before_again = before_again
        self._calls: list[_Call] = []
        self._handles: list[weakref.ref[_Handle]] = []
        self._kinds: list[tuple[torch.Size, torch.dtype]] = []
        self._nodes: list[Any] = []
        # By id, the tensors that later calls may get, with their versions. A dead reference means that the id
        # is free again; another version means that the tensor was changed in place between the calls.
        self._known: dict[int, tuple[TensorWeakRef, int, _Source]] = {}
        self._count = 0
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._calls)

    def run(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a call as the last one of the group so far.

        Args:
            name: The name of the module, for errors.
            call: Its own forward.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Raises:
            ValueError: The call changes an argument in place that the group has kept.
        """
        leaves, spec = tree_flatten((args, kwargs))
        new: dict[int, Tensor] = {}
        for leaf in leaves:
            if isinstance(leaf, Tensor) and self._source(leaf) is None:
                new[id(leaf)] = leaf
        for leaf in new.values():
            self._note(leaf, _Source(-1, self._count))
            self._count += 1
        if new:
            self._nodes.append(saved_by_autograd(list(new.values())))
        versions = {key: _version(leaf) for key, leaf in new.items()}
        sources = [self._source(leaf) or leaf if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        state = CallState(given, preserves_random_numbers=self._preserves)
        first, again = self._contexts() if self._contexts is not None else (_NOTHING, _NOTHING)
        place = len(self._calls)
        self._calls.append(_Call(name, call, spec, sources, state, again))
        with first, saved_tensors_hooks(self._pack, _open):  # `first` ends under the hooks around the call
            result = call(*args, **kwargs)
        if any(_version(leaf) != versions[key] for key, leaf in new.items()):
            raise ValueError(
                f"[smdp] module {name!r} changes its input in place, so its forward cannot run again in"
                " backward. Create a new tensor (x = x + y, or inplace=False)."
            )
        for index, leaf in enumerate(tree_leaves(result)):
            if isinstance(leaf, Tensor):
                self._note(leaf, _Source(place, index))
        return result

    def is_followed_by(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is an output of the last call."""
        source = self._source(tensor)
        return source is not None and source.call == len(self._calls) - 1

    def _source(self, tensor: Tensor) -> _Source | None:
        found = self._known.get(id(tensor))
        if found is None or found[0]() is not tensor or found[1] != _version(tensor):
            return None
        return found[2]

    def _note(self, tensor: Tensor, source: _Source) -> None:
        self._known[id(tensor)] = TensorWeakRef(tensor), _version(tensor), source

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _pack(self, tensor: Tensor) -> _Handle:
        handle = _Handle(self, getattr(_thread, "uses", 1))
        self._handles.append(weakref.ref(handle))
        self._kinds.append((tensor.shape, tensor.dtype))
        if self._watch is not None:
            self._watch(tensor)
        return handle

    def rebuild(self, handle: _Handle) -> None:
        """Runs all calls again and fills the handles that are still in use.

        Raises:
            RuntimeError: The calls save other tensors than the first time.
        """
        with self._lock:
            if handle.tensor is None:
                if self._before_again is not None:
                    self._before_again()
                self._run_again()

    def _run_again(self) -> None:
        inputs = [_fresh(tensor) for node in self._nodes for tensor in node.saved_tensors]
        filled = 0
        name = ""

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def fill(tensor: Tensor) -> Tensor:
            nonlocal filled
            if filled == len(self._handles):
                raise RuntimeError(_mismatch(name, f"saves more than {filled} tensors"))
            kind = tensor.shape, tensor.dtype
            if kind != self._kinds[filled]:
                was, now = _text(*self._kinds[filled]), _text(*kind)
                raise RuntimeError(_mismatch(name, f"saves {now} where it saved {was}"))
            handle = self._handles[filled]()
            if handle is not None:
                handle.tensor = tensor.detach()
            filled += 1
            if filled == len(self._handles):
                raise _Complete
            return tensor.detach()

        made: list[list[Any]] = []
        with (
            kept_generators(inputs),
            torch.enable_grad(),
            saved_tensors_hooks(fill, _same),
            contextlib.suppress(_Complete),
        ):
            was_again, _thread.is_again = is_running_again(), True
            try:
                for call in self._calls:
                    name = call.name
                    made.append(call.run(inputs, made))
            finally:
                _thread.is_again = was_again
        if filled < len(self._handles):
            raise RuntimeError(_mismatch(name, f"saves {filled} tensors instead of {len(self._handles)}"))


class _Source(NamedTuple):
    """Where a call gets an argument from: a call of its group, or with -1 the inputs of the group."""

    call: int
    place: int


class _Call(NamedTuple):
    name: str
    function: Callable[..., Any]
    spec: TreeSpec
    sources: list[Any]
    state: CallState
    context: AbstractContextManager[Any]

    def run(self, inputs: Sequence[Tensor], made: Sequence[Sequence[Any]]) -> list[Any]:
        """Runs the call again, and returns the leaves of its result."""
        leaves = [
            (inputs if source.call < 0 else made[source.call])[source.place]
            if isinstance(source, _Source)
            else source
            for source in self.sources
        ]
        args, kwargs = tree_unflatten(leaves, self.spec)
        with self.state.restored(), self.context:
            result: list[Any] = tree_leaves(self.function(*args, **kwargs))
        return result


class _Handle:
    """Stands for a tensor that a call has saved.

    Attributes:
        tensor: The tensor, once it has been recomputed.
    """

    __slots__ = ("__weakref__", "group", "tensor", "uses")

    def __init__(self, group: RecomputedGroup, uses: int) -> None:
        self.group = group
        self.uses = uses
        self.tensor: Tensor | None = None


class _Complete(Exception):
    """Ends a recomputation that has filled all handles."""


class _Kept(torch.autograd.Function):
    """Saves tensors on which nothing depends."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("nothing depends on this node")


_NOTHING = contextlib.nullcontext()


def saved_by_autograd(tensors: list[Tensor]) -> Any:
    """Returns a node with tensors as its `saved_tensors`, which hooks see, such as those of offloading."""
    anchor = torch.empty(0, requires_grad=True, device="cpu")
    return _Kept.apply(anchor, *tensors).grad_fn


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _open(handle: _Handle) -> Tensor:
    if handle.tensor is None:
        handle.group.rebuild(handle)
    tensor = handle.tensor
    assert tensor is not None
    handle.uses -= 1
    if handle.uses <= 0:
        handle.tensor = None
    return tensor


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _fresh(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _text(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _mismatch(name: str, what: str) -> str:
    return (
        f"[smdp] module {name!r} {what} when its forward runs again in backward. The forward must do the same"
        " both times: it may not depend on state that it changes, such as a counter or a cache of keys and"
        " values (use_cache=False)."
    )
