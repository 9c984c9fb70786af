"""Collective operations on NumPy arrays and other buffers in host memory."""

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
    """The type of NO_GROUP, which Group.split() returns to a rank that joins no group.

    It is falsy, and no call accepts it in place of a group or of the world.
    """

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "smdp.NO_GROUP"

    def __reduce__(self) -> str:
        return "NO_GROUP"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"[smdp] this rank has no group, so it has no {name!r}: it passed color=None to split(). Only"
            " members of a group can call its operations, for example: if group: group.barrier()"
        )


NO_GROUP = NoGroup()


class Group(Membership):
    """A set of ranks that communicate with each other. Created by ``smdp.init()`` and ``split()``.

    All ranks must make the same calls in the same order. Arrays must be C-contiguous and in host memory. They
    can be NumPy arrays (including ml_dtypes' bfloat16 and 8-bit floats), or anything that supports DLPack
    (such as torch's CPU tensors) or the buffer protocol. Every operation accepts:

    * ``async_op``: Return a Handle immediately. Do not touch the arrays until the operation has finished.
    * ``timeout``: Time limit in seconds, in place of the group's. At most 10^7; larger values, including
      infinity, mean 10^7.

    Invalid arguments raise ValueError or TypeError before anything is sent. All other failures raise an
    SmdpError and close the group, except for a MismatchError that all ranks get in the same call.
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
        """Reduces an array over all ranks; every rank gets the result.

        Args:
            array: This rank's input, with the same shape and dtype on all ranks.
            op: The reduction. AVG divides the sum by the group's size; PREMUL_SUM first multiplies each
                rank's input by its ``factor``.
            out: Array for the result, of the input's shape and dtype. Default: ``array``, in place.
            factor: This rank's factor for PREMUL_SUM.

        Returns:
            The array that holds the result.
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
        """Reduces an array to the root rank.

        The arguments are those of all_reduce, plus ``root``. ``out`` matters only on the root, where the
        result is by default written to ``array``.

        Returns:
            The array that holds the result on the root, None on all other ranks.
        """
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
        """Copies the root's array into the array of every other rank, and returns the array."""
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
        """Gathers the arrays of all ranks on every rank, and returns them in rank order.

        Args:
            array: This rank's array.
            out: One array of shape (size, ...), or a list with one array per rank, whose sizes may differ.
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
        """Reduces blocks over all ranks and returns block r on rank r.

        Args:
            array: One array whose first dimension is divided evenly among the ranks, or a list with one array
                per rank. The arrays of a list may differ in size, but all ranks must pass the same sizes.
            op: The reduction, as in all_reduce.
            out: Array for this rank's block. Default: a new array.
            factor: This rank's factor for PREMUL_SUM.
        """
        call = prepare_reduce_scatter(self._core, array, as_op(op), out, number("factor", factor))
        handle = call.start(timeout_of_call(timeout), flag("async_op", async_op))
        return finish(handle, call.buffers, call.result, self._core)

    def all_to_all(
        self, array: Any, *, out: Any = None, async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """Sends block j to rank j, receives block j from rank j, and returns the received blocks.

        Args:
            array: One array whose first dimension is divided evenly among the ranks, or a list with one array
                per rank.
            out: Where to store the received blocks, in either form. Default: a new array like ``array``;
                required if ``array`` is a list.
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
        """Gathers the arrays of all ranks on the root.

        Args:
            array: This rank's array.
            root: Rank that gets the arrays.
            out: As in all_gather; used on the root only.

        Returns:
            The gathered arrays on the root, None on all other ranks.
        """
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
        """Sends block r of the root's array to rank r, and returns ``out``.

        Args:
            array: On the root: one array whose first dimension is divided evenly among the ranks, or a list
                with one array per rank. Ignored on other ranks.
            root: Rank that sends the blocks.
            out: Array for this rank's block.
        """
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
        """Blocks until all ranks have called it."""
        handle = self._core.barrier(timeout_of_call(timeout), flag("async_op", async_op))
        return finish(handle, None, None, self._core)

    def send(
        self, array: Any, dst: int, *, tag: int = 0, async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """Sends an array to rank ``dst``, which must call recv() with the same size, dtype and tag."""
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
        """Receives an array from rank ``src``, or from any rank if ``src`` is None.

        Returns:
            The rank that sent the array.
        """
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
        """Runs all_reduce in place on several arrays, with one handle, and returns the list of arrays.

        Each array is an operation of its own. The arguments are checked before any operation starts, and the
        blocking call starts all operations before it waits.

        Args:
            arrays: Arrays of any shapes and dtypes; their number must be the same on all ranks.
            op: The reduction, as in all_reduce. PREMUL_SUM uses a factor of 1.
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
        """Runs all_gather on several arrays, like all_reduce_coalesced, and returns the list of results.

        Args:
            arrays: This rank's arrays.
            out: One ``out`` of all_gather per array. Default: new arrays.
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
        """Runs reduce_scatter on several arrays, like all_reduce_coalesced, and returns the list of results.

        Args:
            arrays: Inputs, each in a form that reduce_scatter accepts.
            op: The reduction, as in reduce_scatter. PREMUL_SUM uses a factor of 1.
            out: One array for this rank's block per input. Default: new arrays.
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
        """Divides the group into smaller groups; all ranks must call it.

        The world's rank 0 must still be running, because it serves the store that the new groups use.

        Args:
            color: Ranks that pass the same color, an integer of at least 0, form a group. A rank that passes
                None joins no group.
            key: Position within the new group, in ascending order; ties are broken by rank. Default: the rank
                in this group.

        Returns:
            The new group, or NO_GROUP, which is falsy, if the color is None.
        """
        part = -1 if color is None else integer("color", color)
        if color is not None and part < 0:
            raise ValueError(
                f"[smdp] color = {color} is not valid; allowed: at least 0, or None for no group."
            )
        core = self._core.split(part, self.rank if key is None else integer("key", key), "split")
        return NO_GROUP if core is None else Group(core, self._timeout)
