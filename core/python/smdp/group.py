"""Collectives on NumPy arrays and other buffers in host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from . import _core
from ._arguments import flag, integer, number, seconds, text
from ._buffers import Buffer, view
from ._handle import SOURCE, Handle, forget_ended
from ._overlap import Region, check_apart, regions
from ._reduce_op import SUM, ReduceOp, as_op, check_defined

Array = npt.NDArray[Any]


class NoGroup:
    """What Group.split gives a rank whose color is None: it is false, and no call takes it for the world."""

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "smdp.NO_GROUP"

    def __reduce__(self) -> str:
        return "NO_GROUP"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"[smdp] this rank is in no group, so there is no {name!r}: its color in split() was None. Only"
            " members of a group call its operations: if group: group.barrier()"
        )


NO_GROUP = NoGroup()


class _Block(NamedTuple):
    """What goes to one rank, or comes from it. ``array`` keeps it alive: a list may change meanwhile."""

    pointer: int
    elements: int
    shape: tuple[int, ...]
    array: Array


class _Call(NamedTuple):
    """An operation that is ready to be started: nothing about it is wrong but what other ranks may find."""

    start: Callable[[float, bool], _core.Handle | None]
    dtype: int
    buffers: Any
    result: Any
    reads: Sequence[_Block]
    writes: Sequence[_Block]

    def regions(self, number: int, rank: int) -> list[Region]:
        """The memory it uses, as operation ``number`` of several."""
        itemsize = _core.dtype_size(self.dtype)
        return [
            region
            for blocks, writes in ((self.reads, False), (self.writes, True))
            for region in regions(
                number,
                [block.pointer for block in blocks],
                [block.elements * itemsize for block in blocks],
                rank,
                writes=writes,
            )
        ]


def _whole(data: Buffer) -> _Block:
    return _Block(data.pointer, data.elements, data.shape, data.array)


def _shapes(value: Any, blocks: Sequence[_Block], whole: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes that ranks compare: of a list one by one, else that of the whole array."""
    return [block.shape for block in blocks] if isinstance(value, list | tuple) else [whole]


class Group:
    """Ranks that communicate. Made by ``smdp.init()`` and ``split()``.

    All ranks must make the same calls in the same order. Arrays are C-contiguous and in host memory: NumPy
    (ml_dtypes' bfloat16 and 8-bit floats too), DLPack (torch's CPU tensors), or the buffer protocol. Every
    call takes

    * ``async_op``: return a Handle at once; leave the arrays alone until it is done;
    * ``timeout``: seconds, instead of the group's; infinity and all above 10^7 are 10^7.

    Wrong arguments raise ValueError, or TypeError, before anything is sent. Everything else is an SmdpError,
    after which the group is closed.
    """

    def __init__(self, core: _core.Group, timeout: float) -> None:
        self._core = core
        self._timeout = timeout

    @property
    def rank(self) -> int:
        """Rank of this process in the group."""
        return self._core.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._core.size

    @property
    def core(self) -> _core.Group:
        """The core's group."""
        return self._core

    @property
    def name(self) -> str:
        """Name, equal on all ranks."""
        return self._core.name

    @property
    def local_rank(self) -> int:
        """Index among the group's ranks on this host."""
        return self._core.local_rank

    @property
    def local_size(self) -> int:
        """Number of the group's ranks on this host."""
        return self._core.local_size

    @property
    def hosts(self) -> list[list[int]]:
        """Ranks of each host."""
        return self._core.hosts

    @property
    def host_names(self) -> list[str]:
        """Host of each rank."""
        return self._core.host_names

    def __repr__(self) -> str:
        return f"smdp.Group({self.name!r}, rank {self.rank} of {self.size})"

    def all_reduce(
        self,
        array: Any,
        op: ReduceOp = SUM,
        *,
        out: Any = None,
        factor: float = 1.0,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Reduces over all ranks.

        Args:
            array: This rank's input; same shape and dtype on all ranks.
            op: AVG divides by the size of the group; PREMUL_SUM multiplies by ``factor`` first.
            out: Where the result goes. Default: in place, into ``array``.
            factor: This rank's factor for PREMUL_SUM.

        Returns:
            The array with the result.
        """
        source = view(array, writes=out is None, what="the array")
        target = source if out is None else view(out, writes=True, what="out")
        self._same(source, target, "out")
        handle = self._core.all_reduce(
            source.pointer,
            target.pointer,
            source.shape,
            source.dtype,
            as_op(op),
            number("factor", factor),
            self._limit(timeout),
            flag("async_op", async_op),
        )
        return self._finish(handle, (source, target), target.array)

    def reduce(
        self,
        array: Any,
        root: int = 0,
        op: ReduceOp = SUM,
        *,
        out: Any = None,
        factor: float = 1.0,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Reduces to one rank; returns the result there (in place without ``out``), None elsewhere."""
        root = integer("root", root)
        is_root = self.rank == root
        source = view(array, writes=is_root and out is None, what="the array")
        target = source
        if is_root and out is not None:
            target = view(out, writes=True, what="out")
            self._same(source, target, "out")
        handle = self._core.reduce(
            source.pointer,
            target.pointer if is_root else 0,
            source.shape,
            source.dtype,
            as_op(op),
            number("factor", factor),
            root,
            self._limit(timeout),
            flag("async_op", async_op),
        )
        return self._finish(handle, (source, target), target.array if is_root else None)

    def broadcast(
        self, array: Any, root: int = 0, *, async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """Copies the root's array into everybody's; returns it."""
        root = integer("root", root)
        data = view(array, writes=self.rank != root, what="the array")
        handle = self._core.broadcast(
            data.pointer, data.shape, data.dtype, root, self._limit(timeout), flag("async_op", async_op)
        )
        return self._finish(handle, data, data.array)

    def all_gather(
        self,
        array: Any,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Collects everybody's array on every rank.

        Args:
            array: This rank's.
            out: One array of shape (size, ...) or a list with one array per rank, whose sizes may differ.
                Default: a new array of shape (size, *array.shape).
        """
        call = self._all_gather(array, out)
        handle = call.start(self._limit(timeout), flag("async_op", async_op))
        return self._finish(handle, call.buffers, call.result)

    def reduce_scatter(
        self,
        array: Any,
        op: ReduceOp = SUM,
        *,
        out: Any = None,
        factor: float = 1.0,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Reduces blocks over all ranks and leaves block r on rank r.

        Args:
            array: One array whose first dimension is divided evenly, or a list with one array per rank, whose
                sizes may differ (but not between ranks).
            out: This rank's block. Default: a new array.
        """
        call = self._reduce_scatter(array, as_op(op), out, number("factor", factor))
        handle = call.start(self._limit(timeout), flag("async_op", async_op))
        return self._finish(handle, call.buffers, call.result)

    def all_to_all(
        self, array: Any, *, out: Any = None, async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """Sends block j to rank j and receives block j from rank j.

        Args:
            array: One array whose first dimension is divided evenly, or a list with one array per rank.
            out: Likewise, to be filled. Default: a new array like ``array`` (one array only).
        """
        if isinstance(array, list | tuple):
            self._one_per_rank(array, "the array")
        first = view(array[0] if isinstance(array, list | tuple) else array, writes=False, what="the array")
        if out is None:
            if isinstance(array, list | tuple):
                raise ValueError("[smdp] all_to_all of a list needs out, a list of the arrays to be filled.")
            out = np.empty_like(first.array)
        sources = self._blocks(array, "the array", first.dtype, writes=False)
        targets = self._blocks(out, "out", first.dtype, writes=True)
        # Blocks of a list may differ from rank to rank: only if all are alike here, they must be everywhere.
        shapes = _shapes(array, sources, first.shape)
        if isinstance(array, list | tuple) and len({block.shape for block in (*sources, *targets)}) > 1:
            shapes = []
        handle = self._core.all_to_all(
            [b.pointer for b in sources],
            [b.elements for b in sources],
            [b.pointer for b in targets],
            [b.elements for b in targets],
            first.dtype,
            self._limit(timeout),
            flag("async_op", async_op),
            shapes,
        )
        return self._finish(handle, (sources, targets), out)

    def gather(
        self,
        array: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Collects everybody's array on the root (``out`` as in all_gather); None elsewhere."""
        root = integer("root", root)
        source = view(array, writes=False, what="the array")
        targets: list[_Block] = []
        if self.rank == root:
            if out is None:
                out = np.empty((self.size, *source.shape), source.array.dtype)
            targets = self._blocks(out, "out", source.dtype, writes=True)
        else:
            out = None
        handle = self._core.gather(
            source.pointer,
            source.elements,
            [b.pointer for b in targets],
            [b.elements for b in targets],
            source.dtype,
            root,
            self._limit(timeout),
            flag("async_op", async_op),
            [source.shape],
        )
        return self._finish(handle, (source, targets), out)

    def scatter(
        self,
        array: Any,
        root: int = 0,
        *,
        out: Any,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Hands block r of the root's array (or list, as in reduce_scatter) to rank r, into ``out``."""
        root = integer("root", root)
        target = view(out, writes=True, what="out")
        blocks: list[_Block] = []
        if self.rank == root:
            blocks = self._blocks(array, "the array", target.dtype, writes=False)
        handle = self._core.scatter(
            [b.pointer for b in blocks],
            [b.elements for b in blocks],
            target.pointer,
            target.elements,
            target.dtype,
            root,
            self._limit(timeout),
            flag("async_op", async_op),
            [target.shape],
        )
        return self._finish(handle, (blocks, target), target.array)

    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Returns when all ranks have called it."""
        return self._finish(self._core.barrier(self._limit(timeout), flag("async_op", async_op)), None, None)

    def send(
        self, array: Any, dst: int, *, tag: int = 0, async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """Sends an array to ``dst``, which must receive one of the same size and dtype with the same tag."""
        data = view(array, writes=False, what="the array")
        handle = self._core.send(
            data.pointer,
            data.elements,
            data.dtype,
            integer("dst", dst),
            integer("tag", tag, 64),
            self._limit(timeout),
            flag("async_op", async_op),
        )
        return self._finish(handle, data, None)

    def recv(
        self,
        array: Any,
        src: int | None = None,
        *,
        tag: int = 0,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Receives into ``array``, from ``src`` or anybody (None); returns the rank it came from."""
        data = view(array, writes=True, what="the array")
        source = -1 if src is None else integer("src", src)
        if source < 0 and src is not None:
            raise ValueError(
                f"[smdp] src = {source} is not valid; allowed: 0 to {self.size - 1}, or None for any rank."
            )
        got = self._core.recv(
            data.pointer,
            data.elements,
            data.dtype,
            source,
            integer("tag", tag, 64),
            self._limit(timeout),
            flag("async_op", async_op),
        )
        if isinstance(got, int):
            return self._finish(None, data, got)
        return self._finish(got, data, SOURCE)

    def all_reduce_coalesced(
        self,
        arrays: Sequence[Any],
        op: ReduceOp = SUM,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """all_reduce of several arrays in place: as many operations, with one handle. Returns the list.

        Nothing is sent unless all arrays can be; the blocking call waits once, after it has begun them all.

        Args:
            arrays: Of any shapes and dtypes; the same number of them on all ranks.
            op: As in all_reduce, without a factor.
        """
        arrays = list(arrays)
        op, limit, is_async = as_op(op), self._limit(timeout), flag("async_op", async_op)
        views = [view(array, writes=True, what=f"array {i}") for i, array in enumerate(arrays)]
        check_defined(op, (one.dtype for one in views), "all_reduce_coalesced")
        calls = [self._all_reduce_in_place(one, array, op) for one, array in zip(views, arrays, strict=True)]
        return self._start_all("all_reduce_coalesced", calls, limit, is_async=is_async)

    def all_gather_coalesced(
        self,
        arrays: Sequence[Any],
        *,
        out: Sequence[Any] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """all_gather of several arrays, in the manner of all_reduce_coalesced; returns the list of results.

        Args:
            arrays: This rank's.
            out: For each array, what all_gather takes as ``out``. Default: new arrays.
        """
        arrays = list(arrays)
        targets = self._one_per_array(out, len(arrays))
        calls = [self._all_gather(array, target) for array, target in zip(arrays, targets, strict=True)]
        limit, is_async = self._limit(timeout), flag("async_op", async_op)
        return self._start_all("all_gather_coalesced", calls, limit, is_async=is_async)

    def reduce_scatter_coalesced(
        self,
        arrays: Sequence[Any],
        op: ReduceOp = SUM,
        *,
        out: Sequence[Any] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """reduce_scatter of several arrays, in the manner of all_reduce_coalesced; returns a list of results.

        Args:
            arrays: Each as reduce_scatter takes it.
            op: As in reduce_scatter, without a factor.
            out: For each array, this rank's block. Default: new arrays.
        """
        arrays = list(arrays)
        op = as_op(op)
        targets = self._one_per_array(out, len(arrays))
        calls = [
            self._reduce_scatter(array, op, target, 1.0)
            for array, target in zip(arrays, targets, strict=True)
        ]
        check_defined(op, (call.dtype for call in calls), "reduce_scatter_coalesced")
        limit, is_async = self._limit(timeout), flag("async_op", async_op)
        return self._start_all("reduce_scatter_coalesced", calls, limit, is_async=is_async)

    def split(self, color: int | None, key: int | None = None) -> Group | NoGroup:
        """Divides the group; a collective call. The world's rank 0 must still be there: it serves the store.

        Args:
            color: Ranks with the same color, from 0, form a group. None: this rank joins none and gets
                NO_GROUP, which is false.
            key: Order within the new group; ties by rank. Default: the rank.
        """
        part = -1 if color is None else integer("color", color)
        if color is not None and part < 0:
            raise ValueError(f"[smdp] color is {color}; allowed: 0 and above, or None for no group.")
        core = self._core.split(part, self.rank if key is None else integer("key", key), "split")
        return NO_GROUP if core is None else Group(core, self._timeout)

    def abort(self, reason: str) -> None:
        """Fails what is in flight on all ranks with this reason and closes the group everywhere."""
        self._core.abort(text("reason", reason))

    def shutdown(self) -> None:
        """Leaves the group; safe to call twice."""
        self._core.shutdown()

    def error(self) -> Exception | None:
        """The failure that closed the group; None while it works."""
        return self._core.error()

    def _all_reduce_in_place(self, own: Buffer, array: Any, op: int) -> _Call:
        def start(limit: float, is_async: bool) -> _core.Handle | None:
            place = own.pointer
            return self._core.all_reduce(place, place, own.shape, own.dtype, op, 1.0, limit, is_async)

        return _Call(start, own.dtype, own, array, (), (_whole(own),))

    def _all_gather(self, array: Any, out: Any) -> _Call:
        source = view(array, writes=False, what="the array")
        if out is None:
            out = np.empty((self.size, *source.shape), source.array.dtype)
        targets = self._blocks(out, "out", source.dtype, writes=True)
        if targets[self.rank].elements != source.elements:
            raise ValueError(
                f"[smdp] out has {targets[self.rank].elements} elements for rank {self.rank}, whose array has"
                f" {source.elements}; they must be as many."
            )

        def start(limit: float, is_async: bool) -> _core.Handle | None:
            return self._core.all_gather(
                source.pointer,
                source.elements,
                [b.pointer for b in targets],
                [b.elements for b in targets],
                source.dtype,
                limit,
                is_async,
                _shapes(out, targets, source.shape),
            )

        return _Call(start, source.dtype, (source, targets), out, (_whole(source),), targets)

    def _reduce_scatter(self, array: Any, op: int, out: Any, factor: float) -> _Call:
        if isinstance(array, list | tuple):
            self._one_per_rank(array, "the array")
            first = view(array[self.rank], writes=False, what="the array")
            shape = first.shape
        else:
            first = view(array, writes=False, what="the array")
            shape = self._block_shape(first)
        if out is None:
            out = np.empty(shape, first.array.dtype)
        target = view(out, writes=True, what="out")
        blocks = self._blocks(array, "the array", first.dtype, writes=False)
        if target.elements != blocks[self.rank].elements or target.dtype != first.dtype:
            raise ValueError(
                f"[smdp] out has {target.elements} elements of {target.array.dtype}; it needs"
                f" {blocks[self.rank].elements} of {first.array.dtype}."
            )

        def start(limit: float, is_async: bool) -> _core.Handle | None:
            return self._core.reduce_scatter(
                [b.pointer for b in blocks],
                [b.elements for b in blocks],
                target.pointer,
                first.dtype,
                op,
                factor,
                limit,
                is_async,
                _shapes(array, blocks, first.shape),
            )

        return _Call(start, first.dtype, (blocks, target), target.array, blocks, (_whole(target),))

    def _start_all(self, name: str, calls: Sequence[_Call], limit: float, *, is_async: bool) -> Any:
        rank = self.rank
        check_apart(name, [used for number, call in enumerate(calls) for used in call.regions(number, rank)])
        handles: list[_core.Handle] = []
        buffers, results = [call.buffers for call in calls], [call.result for call in calls]
        try:
            for call in calls:
                if (handle := call.start(limit, True)) is not None:
                    handles.append(handle)
        except BaseException:
            self._keep(handles, buffers, results)  # what has begun still writes to its arrays
            raise
        merged = self._keep(handles, buffers, results)
        return merged if is_async else merged.wait()

    def _limit(self, timeout: float | None) -> float:
        return -1.0 if timeout is None else seconds("timeout", timeout)

    def _finish(self, handle: _core.Handle | None, buffers: Any, result: Any) -> Any:
        if handle is not None:
            return self._keep([handle], buffers, result)
        forget_ended()
        return result

    def _keep(self, handles: Sequence[_core.Handle], buffers: Any, result: Any) -> Handle:
        forget_ended()
        return Handle(handles, buffers, result, self._core)

    def _same(self, source: Buffer, target: Buffer, what: str) -> None:
        if source.shape != target.shape or source.dtype != target.dtype:
            raise ValueError(
                f"[smdp] {what} is {target.array.dtype}{list(target.shape)}, the input is"
                f" {source.array.dtype}{list(source.shape)}; they must be alike."
            )

    def _block_shape(self, data: Buffer) -> tuple[int, ...]:
        if not data.shape or data.shape[0] % self.size != 0:
            raise ValueError(
                f"[smdp] the array has shape {list(data.shape)}; its first dimension must be divisible by the"
                f" {self.size} ranks. Pass a list of arrays for blocks of unequal size."
            )
        return (data.shape[0] // self.size, *data.shape[1:])

    @staticmethod
    def _one_per_array(out: Sequence[Any] | None, count: int) -> Sequence[Any]:
        if out is None:
            return [None] * count
        if len(out) != count:
            raise ValueError(f"[smdp] out has {len(out)} entries; it needs one per array, {count}.")
        return out

    def _one_per_rank(self, arrays: Sequence[Any], what: str) -> None:
        if len(arrays) != self.size:
            raise ValueError(f"[smdp] {what} has {len(arrays)} arrays; it needs one per rank, {self.size}.")

    def _blocks(self, value: Any, what: str, dtype: int, *, writes: bool) -> list[_Block]:
        """One per rank, of one evenly divided array or of a list of arrays."""
        if isinstance(value, list | tuple):
            self._one_per_rank(value, what)
            views = [view(one, writes=writes, what=f"{what}[{i}]") for i, one in enumerate(value)]
        else:
            views = [view(value, writes=writes, what=what)]
        for one in views:
            if one.dtype != dtype:
                raise ValueError(
                    f"[smdp] {what} holds {one.array.dtype}; all arrays of a call have one dtype."
                )
        if isinstance(value, list | tuple):
            return [_whole(one) for one in views]
        whole = views[0]
        shape = self._block_shape(whole)
        count = whole.elements // self.size
        step = count * whole.array.dtype.itemsize
        return [_Block(whole.pointer + r * step, count, shape, whole.array) for r in range(self.size)]
