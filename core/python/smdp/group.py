"""Collectives on NumPy arrays and other buffers in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from . import _core
from ._arguments import flag, integer, number, timeout_of_call
from ._blocks import Block, blocks_of, check_alike, gathered
from ._buffers import view
from ._coalesced_calls import one_per_array, start_all
from ._handle import SOURCE, finish
from ._membership import Membership
from ._prepared_calls import (
    prepare_all_gather,
    prepare_all_reduce,
    prepare_all_to_all,
    prepare_reduce_scatter,
)
from ._reduce_op import SUM, ReduceOp, as_op, check_defined


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


class Group(Membership):
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
        super().__init__(core)
        self._timeout = timeout

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
        check_alike(source, target, "out")
        handle = self._core.all_reduce(
            source.pointer,
            target.pointer,
            source.shape,
            source.dtype,
            as_op(op),
            number("factor", factor),
            timeout_of_call(timeout),
            flag("async_op", async_op),
        )
        return finish(handle, (source, target), target.array, self._core)

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
            check_alike(source, target, "out")
        handle = self._core.reduce(
            source.pointer,
            target.pointer if is_root else 0,
            source.shape,
            source.dtype,
            as_op(op),
            number("factor", factor),
            root,
            timeout_of_call(timeout),
            flag("async_op", async_op),
        )
        return finish(handle, (source, target), target.array if is_root else None, self._core)

    def broadcast(
        self, array: Any, root: int = 0, *, async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """Copies the root's array into everybody's; returns it."""
        root = integer("root", root)
        data = view(array, writes=self.rank != root, what="the array")
        handle = self._core.broadcast(
            data.pointer, data.shape, data.dtype, root, timeout_of_call(timeout), flag("async_op", async_op)
        )
        return finish(handle, data, data.array, self._core)

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
        call = prepare_all_gather(self._core, array, out)
        handle = call.start(timeout_of_call(timeout), flag("async_op", async_op))
        return finish(handle, call.buffers, call.result, self._core)

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
        call = prepare_reduce_scatter(self._core, array, as_op(op), out, number("factor", factor))
        handle = call.start(timeout_of_call(timeout), flag("async_op", async_op))
        return finish(handle, call.buffers, call.result, self._core)

    def all_to_all(
        self, array: Any, *, out: Any = None, async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """Sends block j to rank j and receives block j from rank j.

        Args:
            array: One array whose first dimension is divided evenly, or a list with one array per rank.
            out: Likewise, to be filled. Default: a new array like ``array`` (one array only).
        """
        call = prepare_all_to_all(self._core, array, out)
        handle = call.start(timeout_of_call(timeout), flag("async_op", async_op))
        return finish(handle, call.buffers, call.result, self._core)

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
        targets: list[Block] = []
        if self.rank == root:
            if out is None:
                out = gathered(source, self.size)
            targets = blocks_of(out, "out", source.dtype, self.size, writes=True)
        else:
            out = None
        handle = self._core.gather(
            source.pointer,
            source.elements,
            [b.pointer for b in targets],
            [b.elements for b in targets],
            source.dtype,
            root,
            timeout_of_call(timeout),
            flag("async_op", async_op),
            [source.shape],
        )
        return finish(handle, (source, targets), out, self._core)

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
        blocks: list[Block] = []
        if self.rank == root:
            blocks = blocks_of(array, "the array", target.dtype, self.size, writes=False)
        handle = self._core.scatter(
            [b.pointer for b in blocks],
            [b.elements for b in blocks],
            target.pointer,
            target.elements,
            target.dtype,
            root,
            timeout_of_call(timeout),
            flag("async_op", async_op),
            [target.shape],
        )
        return finish(handle, (blocks, target), target.array, self._core)

    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Returns when all ranks have called it."""
        handle = self._core.barrier(timeout_of_call(timeout), flag("async_op", async_op))
        return finish(handle, None, None, self._core)

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
            timeout_of_call(timeout),
            flag("async_op", async_op),
        )
        return finish(handle, data, None, self._core)

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
            timeout_of_call(timeout),
            flag("async_op", async_op),
        )
        if isinstance(got, int):
            return finish(None, data, got, self._core)
        return finish(got, data, SOURCE, self._core)

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
        op, limit, is_async = as_op(op), timeout_of_call(timeout), flag("async_op", async_op)
        views = [view(array, writes=True, what=f"array {i}") for i, array in enumerate(arrays)]
        check_defined(op, (one.dtype for one in views), "all_reduce_coalesced")
        calls = [
            prepare_all_reduce(self._core, one, array, op) for one, array in zip(views, arrays, strict=True)
        ]
        return start_all(self._core, "all_reduce_coalesced", calls, limit, is_async=is_async)

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
        targets = one_per_array(out, len(arrays))
        calls = [
            prepare_all_gather(self._core, array, target)
            for array, target in zip(arrays, targets, strict=True)
        ]
        limit, is_async = timeout_of_call(timeout), flag("async_op", async_op)
        return start_all(self._core, "all_gather_coalesced", calls, limit, is_async=is_async)

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
        targets = one_per_array(out, len(arrays))
        calls = [
            prepare_reduce_scatter(self._core, array, op, target, 1.0)
            for array, target in zip(arrays, targets, strict=True)
        ]
        check_defined(op, (call.dtype for call in calls), "reduce_scatter_coalesced")
        limit, is_async = timeout_of_call(timeout), flag("async_op", async_op)
        return start_all(self._core, "reduce_scatter_coalesced", calls, limit, is_async=is_async)

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
