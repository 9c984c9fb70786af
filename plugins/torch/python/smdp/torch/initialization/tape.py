"""The operations that initialise a model, recorded on meta tensors, and how any of their results is computed.

A node is a storage, so views and tied parameters need no bookkeeping: a tensor is a window on a node. Every
random draw is made when it is recorded, from the generator's true state, and its numbers are dropped; the
state before it is kept, so that the same numbers can be had again without those of any other draw.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from smdp._errors import SmdpError
from smdp.torch.initialization.generator_states import GeneratorStates, default_generator, generator_at
from smdp.torch.initialization.windows import Node, Window, as_laid_out, covers

_CPU = torch.device("cpu")
_MARK = "_smdp_node"
_TRIM_BYTES = 2**24

# Draws whose numbers depend on the target's shape alone, not on what was in it.
_FILLS = {
    "uniform_",
    "normal_",
    "random_",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "geometric_",
    "bernoulli_",
}
# Others that overwrite their first argument without a look at it.
_OVERWRITES = _FILLS | {"fill_", "zero_", "copy_"}
# These read the shape of their first argument and never its values.
_SHAPE_ONLY = {
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "new_empty",
    "new_empty_strided",
    "new_zeros",
    "new_ones",
    "new_full",
}


@dataclass(slots=True)
class Operation:
    """A call on the tape, with a Window in place of each tensor."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device
    default_dtype: torch.dtype
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    overwrites: frozenset[int] = frozenset()  # wholly, whatever was there
    outputs: Sequence[Window | None] = ()  # None: no tensor, or one that was there
    state: Tensor | None = None  # of the generator, before a random draw


class Tape:
    """Records operations and computes values. Not thread-safe."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.operations: list[Operation] = []
        self._states = GeneratorStates()
        self._churned = 0  # bytes that came and went since the heap was trimmed
        # The newest draw, for rejection sampling looks at it at once: its operation, node and values.
        self._newest: tuple[int, int, torch.UntypedStorage] | None = None
        # Where draws are made, one for all: a heap of large pieces that come and go would never shrink.
        self._scratch: dict[torch.device, torch.UntypedStorage] = {}

    def adopt(self, tensor: Tensor) -> None:
        """Take a meta tensor that was there before the tape; it has no values yet."""
        if _mark(tensor) is None:
            self._add(tensor, _CPU, is_adopted=True)

    def window(self, tensor: Tensor) -> Window | None:
        """Give the window of a tensor; None if this tape does not know it."""
        mark = _mark(tensor)
        if mark is None or mark[0] is not self:
            return None
        stride, offset = tuple(tensor.stride()), int(tensor.storage_offset())
        return Window(mark[1], tuple(tensor.shape), stride, offset, tensor.dtype)

    def device(self, tensor: Tensor) -> torch.device | None:
        """Tell where a tensor would lie; None if this tape does not know it."""
        window = self.window(tensor)
        return None if window is None else self.nodes[window.node].device

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do one operation of a model's construction, on meta tensors if it has to do with the tape."""
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if any(tape_of(tensor) not in (None, self) for tensor in tensors):
            raise SmdpError(
                f"[smdp] {func} takes a tensor of another delayed_initialization(); build both inside of one"
            )
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if not any(self.window(tensor) for tensor in tensors):
            if any(tensor.is_meta for tensor in tensors) or _asks_for_meta(kwargs):
                return func(*args, **kwargs)  # whoever asks for meta tensors gets them
            if func is torch.ops.aten.lift_fresh.default:
                return self._record(torch.ops.aten.clone.default, args, {}, is_random=False)
            if tensors and (not is_random or _written(func, args, kwargs)):
                return func(*args, **kwargs)
        written = _written(func, args, kwargs)
        if any(not tensor.is_meta for tensor in written):
            return func(*self.values(args), **self.values(kwargs))
        if not written and not _gives_tensors(func):
            return func(*self.values(args), **self.values(kwargs))
        return self._record(func, args, kwargs, is_random)

    def values(self, tree: Any) -> Any:
        """Give a structure with values in place of the meta tensors of this tape."""
        windows = {
            window.node: None
            for leaf in tree_leaves(tree)
            if isinstance(leaf, Tensor) and (window := self.window(leaf)) is not None
        }
        if not windows:
            return tree
        with _plainly():
            storages = self.replay(windows)

            def value(leaf: Any) -> Any:
                window = self.window(leaf) if isinstance(leaf, Tensor) else None
                return leaf if window is None else window.on(storages[window.node])

            return tree_map(value, tree)

    def uninitialised(self, targets: Iterable[int]) -> set[int]:
        """Give the adopted nodes that some target's values depend on, though nothing ever wrote them."""
        _, _, missing = self._needed(targets)
        return {node for node in missing if self.nodes[node].is_adopted}

    def replay(
        self,
        targets: Iterable[int],
        finish: Callable[[int, torch.UntypedStorage], torch.UntypedStorage] | None = None,
    ) -> dict[int, torch.UntypedStorage]:
        """Compute the values of nodes and what they depend on, nothing else; generators stay as they are.

        Args:
            targets: Nodes.
            finish: Called with a target and its storage as soon as that is final; gives what takes its place.

        Raises:
            SmdpError: They depend on a meta tensor that the tape knows nothing about.
        """
        targets = set(targets)
        needed, found, _ = self._needed(targets)
        last: dict[int, int] = {}
        changed: set[int] = set()
        for index in needed:
            operation = self.operations[index]
            last.update(dict.fromkeys(operation.reads | operation.writes, index))
            changed |= set() if index == found else operation.writes
        ends: dict[int, list[int]] = {}
        for node, index in last.items():
            ends.setdefault(index, []).append(node)
        storages: dict[int, torch.UntypedStorage] = {}
        with _plainly():
            for index in needed:
                operation = self.operations[index]
                if self._newest is not None and index == found:
                    _, node, drawn = self._newest
                    storages[node] = drawn.clone() if node in changed else drawn
                else:
                    self._run(operation, storages)
                for node in ends.get(index, ()):
                    if node not in targets:
                        storages.pop(node, None)
                    elif finish is not None:
                        storages[node] = finish(node, storages[node])
            for node in targets - last.keys():
                blank = self._blank(node)
                storages[node] = blank if finish is None else finish(node, blank)
        self._churned += sum(self.nodes[node].nbytes for node in last)
        if self._churned > _TRIM_BYTES:
            _trim_heap()
            self._churned = 0
        return storages

    def forget_draws(self) -> None:
        """Let go of drawn numbers, and of the memory for them."""
        self._newest = None
        self._scratch.clear()

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_random: bool) -> Any:
        device = self._device_of(args, kwargs)
        frozen_args, frozen_kwargs = tree_map(self._freeze, (args, kwargs))
        operation = Operation(func, frozen_args, frozen_kwargs, device, torch.get_default_dtype())
        name = func.overloadpacket.__name__
        leaves = tree_leaves((operation.args, operation.kwargs))
        windows = [leaf for leaf in leaves if isinstance(leaf, Window)]
        written_tensors = _written(func, args, kwargs)
        written = [self.window(tensor) for tensor in written_tensors]
        targets = [window for window in written if window is not None]
        is_blind = name in _OVERWRITES or func._overloadname.endswith("out")
        if name in _SHAPE_ONLY:
            del windows[0]
        elif is_blind:
            for target in targets:
                windows.remove(target)  # once: it may be a source as well
        operation.reads = frozenset(window.node for window in windows)
        operation.writes = frozenset(window.node for window in targets)
        operation.overwrites = frozenset(
            target.node for target in targets if is_blind and covers(target, self.nodes[target.node])
        )
        if is_random:
            operation.state = self._states.keep(kwargs.get("generator") or default_generator(device))
        drawn = self._draw(operation, kwargs.get("generator")) if is_random else None
        result = self._shapes(func, args, kwargs, drawn)
        for tensor, window in zip(written_tensors, written, strict=True):
            if window is not None:  # resized, perhaps
                about = self.nodes[window.node]
                self.nodes[window.node] = replace(about, nbytes=tensor.untyped_storage().nbytes())
        operation.outputs = [self._new_window(leaf, device) for leaf in tree_leaves(result)]
        made = frozenset(output.node for output in operation.outputs if output is not None)
        operation.writes |= made
        operation.overwrites |= made
        if operation.writes:  # else a view
            self.operations.append(operation)
            self._keep(operation, drawn)
        return result

    def _new_window(self, leaf: Any, device: torch.device) -> Window | None:
        if not isinstance(leaf, Tensor) or self.window(leaf) is not None:
            return None
        _check_dense(leaf)
        self._add(leaf, device)
        return self.window(leaf)

    def _freeze(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        _check_dense(leaf)
        window = self.window(leaf)
        return leaf.detach().clone() if window is None and not leaf.is_meta else window or leaf

    def _device_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
        if kwargs.get("device") is not None:
            return torch.device(kwargs["device"])
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                return self.device(leaf) or leaf.device
        return _CPU

    def _shapes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], drawn: Any) -> Any:
        def shape(leaf: Any) -> Any:
            if isinstance(leaf, Tensor) and not leaf.is_meta:
                return _meta(leaf)
            return None if isinstance(leaf, torch.Generator) else leaf

        args_meta, kwargs_meta = tree_map(shape, (args, kwargs))
        if _takes_device(func):
            kwargs_meta["device"] = torch.device("meta")
            kwargs_meta.pop("pin_memory", None)
        try:
            return func(*args_meta, **kwargs_meta)
        except (NotImplementedError, RuntimeError):
            # The shape depends on values, or the call is wrong: then this raises what it would raise without.
            written = _written(func, args, kwargs)
            if drawn is None:
                self.forget_draws()  # the call may change what it is given
                drawn = func(*self.values(args), **self.values(kwargs))
            if written:
                return written[0] if len(written) == 1 else tuple(written)
            return tree_map(lambda leaf: _meta(leaf) if isinstance(leaf, Tensor) else leaf, drawn)

    def _add(self, tensor: Tensor, device: torch.device, is_adopted: bool = False) -> None:
        storage = tensor.untyped_storage()
        setattr(storage, _MARK, (self, len(self.nodes)))
        self.nodes.append(Node(storage.nbytes(), device, is_adopted))

    def _blank(self, node: int) -> torch.UntypedStorage:
        about = self.nodes[node]
        return torch.empty(about.nbytes, dtype=torch.uint8, device=about.device).untyped_storage()

    def _needed(self, targets: Iterable[int]) -> tuple[list[int], int | None, set[int]]:
        """Go back from the end: operations that targets need, the newest draw if one, nodes never written."""
        wanted = set(targets)
        needed: list[int] = []
        found = None
        for index in range(len(self.operations) - 1, -1, -1):
            if not wanted:
                break
            operation = self.operations[index]
            hit = operation.writes & wanted
            if not hit:
                continue
            needed.append(index)
            wanted -= operation.overwrites
            if self._newest is not None and index == self._newest[0]:
                found = index
            else:
                wanted |= operation.reads
        return needed[::-1], found, wanted

    def _run(self, operation: Operation, storages: dict[int, torch.UntypedStorage]) -> None:
        name = operation.func.overloadpacket.__name__

        def value(leaf: Any) -> Any:
            if isinstance(leaf, torch.Generator):
                return None
            if not isinstance(leaf, Window):
                if isinstance(leaf, Tensor) and leaf.is_meta:
                    raise SmdpError(
                        f"[smdp] {operation.func} read a meta tensor that has no values; "
                        "make it inside of delayed_initialization(), without device='meta'"
                    )
                return leaf
            if name in _SHAPE_ONLY and leaf.node not in storages:
                return leaf.blank(self.nodes[leaf.node].device)
            if leaf.node not in storages:
                storages[leaf.node] = self._blank(leaf.node)
            return leaf.on(storages[leaf.node])

        args, kwargs = tree_map(value, (operation.args, operation.kwargs))
        with _default_dtype(operation.default_dtype), generator_at(operation.device, operation.state):
            result = operation.func(*args, **kwargs)
        for window, output in zip(operation.outputs, tree_leaves(result), strict=True):
            if window is not None:
                storages[window.node] = as_laid_out(output, window, self.nodes[window.node])

    def _draw(self, operation: Operation, generator: torch.Generator | None) -> Any:
        """Make a random draw, which advances its generator."""
        func, args, kwargs = operation.func, list(operation.args), dict(operation.kwargs)
        kwargs |= {} if generator is None else {"generator": generator}
        name = func.overloadpacket.__name__
        with _plainly():
            storages = self.replay(operation.reads)
            self._newest = None
            if name in _FILLS and isinstance(args[0], Window) and not storages:
                args[0] = self._scratch_for(args[0], operation.device)
            elif (name in _FILLS or name in _SHAPE_ONLY) and isinstance(args[0], Window):
                args[0] = args[0].blank(operation.device)

            def value(leaf: Any) -> Any:
                if not isinstance(leaf, Window):
                    return leaf
                return leaf.on(storages[leaf.node] if leaf.node in storages else self._blank(leaf.node))

            args, kwargs = tree_map(value, (args, kwargs))
            with _default_dtype(operation.default_dtype):
                return func(*args, **kwargs)

    def _keep(self, operation: Operation, drawn: Any) -> None:
        if not isinstance(drawn, Tensor) or len(operation.writes) != 1:
            return
        (node,) = operation.writes
        if (
            operation.writes == operation.overwrites
            and drawn.untyped_storage().nbytes() >= self.nodes[node].nbytes
        ):
            self._newest = len(self.operations) - 1, node, drawn.untyped_storage()

    def _scratch_for(self, window: Window, device: torch.device) -> Tensor:
        nbytes = self.nodes[window.node].nbytes
        if not covers(window, self.nodes[window.node]):
            return window.blank(device)
        if device not in self._scratch or self._scratch[device].nbytes() < nbytes:
            self._scratch.pop(device, None)
            self._scratch[device] = self._blank(window.node)
        return window.on(self._scratch[device])


def _trim_heap() -> None:
    # glibc cuts small pieces from large free ones, which then fit no tensor of the size that they had.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _mark(tensor: Tensor) -> tuple[Tape, int] | None:
    # torch keeps the Python object of a storage as long as the storage lives.
    if not tensor.is_meta or tensor.layout is not torch.strided:
        return None
    mark: tuple[Tape, int] | None = getattr(tensor.untyped_storage(), _MARK, None)
    return mark


def _check_dense(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise SmdpError(
            f"[smdp] delayed_initialization() takes dense tensors, not {tensor.layout}; "
            "make that one after the model"
        )


def tape_of(tensor: Tensor) -> Tape | None:
    """Give the tape that knows how a meta tensor is initialised."""
    mark = _mark(tensor)
    return None if mark is None else mark[0]


def _asks_for_meta(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


def _meta(tensor: Tensor) -> Tensor:
    _check_dense(tensor)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


def _gives_tensors(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all("Tensor" in str(each.type) for each in returns)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Give the tensors that a call changes."""
    written = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        written += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return written


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    if before is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Run operations as they were recorded: no modes, no autograd, no autocast."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        with torch._C._DisableAutocast():
            yield
