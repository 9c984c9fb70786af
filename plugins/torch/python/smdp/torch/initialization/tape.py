"""Records the operations that initialize a model on meta tensors, and computes any of their results.

A node is a storage and a tensor is a window on a node, so views and tied parameters need no bookkeeping.
Every random draw is made when it is recorded, from the generator's true state, and its numbers are dropped.
The state before the draw is kept, so the same numbers can be drawn again without any other draw.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from smdp._errors import SmdpError
from smdp.torch.initialization.generator_states import GeneratorStates, default_generator
from smdp.torch.initialization.operations import Operation, default_dtype, plainly
from smdp.torch.initialization.recorded_operations import RecordedOperations
from smdp.torch.initialization.schemas import (
    FILLS,
    OVERWRITES,
    SHAPE_ONLY,
    asks_for_meta,
    gives_tensors,
    takes_device,
    written_by,
)
from smdp.torch.initialization.windows import Node, Window, covers

_CPU = torch.device("cpu")
_MARK = "_smdp_node"


class Tape(RecordedOperations):
    """Records operations and computes values. It is not thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._states = GeneratorStates()
        # Memory for draws, one block per device. Allocating a block for each draw would keep the heap large.
        self._scratch: dict[torch.device, torch.UntypedStorage] = {}

    def adopt(self, tensor: Tensor) -> None:
        """Adds a meta tensor that was created before the tape and has no values yet."""
        if _mark(tensor) is None:
            self._add(tensor, _CPU, is_adopted=True)

    def window(self, tensor: Tensor) -> Window | None:
        """Returns the window of a tensor, or None if this tape does not know the tensor."""
        mark = _mark(tensor)
        if mark is None or mark[0] is not self:
            return None
        stride, offset = tuple(tensor.stride()), int(tensor.storage_offset())
        return Window(mark[1], tuple(tensor.shape), stride, offset, tensor.dtype)

    def device(self, tensor: Tensor) -> torch.device | None:
        """Returns the device that a tensor is built for, or None if this tape does not know the tensor."""
        window = self.window(tensor)
        return None if window is None else self.nodes[window.node].device

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Performs one operation of a model's construction, on meta tensors if it concerns the tape."""
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if any(tape_of(tensor) not in (None, self) for tensor in tensors):
            raise SmdpError(
                f"[smdp] {func} got a tensor of another delayed_initialization(). Build both tensors in the"
                " same one."
            )
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if not any(self.window(tensor) for tensor in tensors):
            if any(tensor.is_meta for tensor in tensors) or asks_for_meta(kwargs):
                return func(*args, **kwargs)  # the caller asked for a meta tensor
            if func is torch.ops.aten.lift_fresh.default:
                return self._record(torch.ops.aten.clone.default, args, {}, is_random=False)
            if tensors and (not is_random or written_by(func, args, kwargs)):
                return func(*args, **kwargs)
        written = written_by(func, args, kwargs)
        if any(not tensor.is_meta for tensor in written):
            return func(*self.values(args), **self.values(kwargs))
        if not written and not gives_tensors(func):
            return func(*self.values(args), **self.values(kwargs))
        return self._record(func, args, kwargs, is_random)

    def values(self, tree: Any) -> Any:
        """Returns a structure with the meta tensors of this tape replaced by tensors with values."""
        windows = {
            window.node: None
            for leaf in tree_leaves(tree)
            if isinstance(leaf, Tensor) and (window := self.window(leaf)) is not None
        }
        if not windows:
            return tree
        with plainly():
            storages = self.replay(windows)

            def value(leaf: Any) -> Any:
                window = self.window(leaf) if isinstance(leaf, Tensor) else None
                return leaf if window is None else window.on(storages[window.node])

            return tree_map(value, tree)

    def forget_draws(self) -> None:
        """Frees the drawn numbers and their memory."""
        self._newest = None
        self._scratch.clear()

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_random: bool) -> Any:
        device = self._device_of(args, kwargs)
        frozen_args, frozen_kwargs = tree_map(self._freeze, (args, kwargs))
        operation = Operation(func, frozen_args, frozen_kwargs, device, torch.get_default_dtype())
        name = func.overloadpacket.__name__
        leaves = tree_leaves((operation.args, operation.kwargs))
        windows = [leaf for leaf in leaves if isinstance(leaf, Window)]
        written_tensors = written_by(func, args, kwargs)
        written = [self.window(tensor) for tensor in written_tensors]
        targets = [window for window in written if window is not None]
        is_blind = name in OVERWRITES or func._overloadname.endswith("out")
        if name in SHAPE_ONLY:
            del windows[0]
        elif is_blind:
            for target in targets:
                windows.remove(target)  # removed only once, because it may also be a source
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
            if window is not None:  # the operation may have resized it
                about = self.nodes[window.node]
                self.nodes[window.node] = replace(about, nbytes=tensor.untyped_storage().nbytes())
        operation.outputs = [self._new_window(leaf, device) for leaf in tree_leaves(result)]
        made = frozenset(output.node for output in operation.outputs if output is not None)
        operation.writes |= made
        operation.overwrites |= made
        if operation.writes:  # otherwise it returned a view
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
                return _meta_like(leaf)
            return None if isinstance(leaf, torch.Generator) else leaf

        args_meta, kwargs_meta = tree_map(shape, (args, kwargs))
        if takes_device(func):
            kwargs_meta["device"] = torch.device("meta")
            kwargs_meta.pop("pin_memory", None)
        try:
            return func(*args_meta, **kwargs_meta)
        except (NotImplementedError, RuntimeError):
            # The shape depends on values, or the call is wrong and raises here what it would raise anyway.
            written = written_by(func, args, kwargs)
            if drawn is None:
                self.forget_draws()  # the call may change its arguments
                drawn = func(*self.values(args), **self.values(kwargs))
            if written:
                return written[0] if len(written) == 1 else tuple(written)
            return tree_map(lambda leaf: _meta_like(leaf) if isinstance(leaf, Tensor) else leaf, drawn)

    def _add(self, tensor: Tensor, device: torch.device, is_adopted: bool = False) -> None:
        storage = tensor.untyped_storage()
        setattr(storage, _MARK, (self, len(self.nodes)))
        self.nodes.append(Node(storage.nbytes(), device, is_adopted))

    def _draw(self, operation: Operation, generator: torch.Generator | None) -> Any:
        """Makes a random draw, which advances its generator."""
        func, args, kwargs = operation.func, list(operation.args), dict(operation.kwargs)
        kwargs |= {} if generator is None else {"generator": generator}
        name = func.overloadpacket.__name__
        with plainly():
            storages = self.replay(operation.reads)
            self._newest = None
            if name in FILLS and isinstance(args[0], Window) and not storages:
                args[0] = self._scratch_for(args[0], operation.device)
            elif (name in FILLS or name in SHAPE_ONLY) and isinstance(args[0], Window):
                args[0] = args[0].blank(operation.device)

            def value(leaf: Any) -> Any:
                if not isinstance(leaf, Window):
                    return leaf
                return leaf.on(storages[leaf.node] if leaf.node in storages else self.blank(leaf.node))

            args, kwargs = tree_map(value, (args, kwargs))
            with default_dtype(operation.default_dtype):
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
            self._scratch[device] = self.blank(window.node)
        return window.on(self._scratch[device])


def _mark(tensor: Tensor) -> tuple[Tape, int] | None:
    # The mark stays, because torch keeps the Python object of a storage as long as the storage.
    if not tensor.is_meta or tensor.layout is not torch.strided:
        return None
    mark: tuple[Tape, int] | None = getattr(tensor.untyped_storage(), _MARK, None)
    return mark


def _check_dense(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise SmdpError(
            f"[smdp] delayed_initialization() supports only dense tensors, but got {tensor.layout}. Create"
            " that tensor after the model."
        )


def tape_of(tensor: Tensor) -> Tape | None:
    """Returns the tape that has recorded a meta tensor's initialization, or None."""
    mark = _mark(tensor)
    return None if mark is None else mark[0]


def _meta_like(tensor: Tensor) -> Tensor:
    _check_dense(tensor)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
