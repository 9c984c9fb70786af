"""Tensors that autograd saves for backward, and that leave memory in between."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from smdp.torch.offload.returned_memory import keep_large_tensors, return_large_tensors

# A read has its price per piece, and what is smaller saves little memory.
LEAST_BYTES = 64 << 10

_CHANGED = (
    "[smdp] a tensor of {shape} that backward needs was changed in place after the forward had saved it."
    " Clone it before changing it. (Without offloading, torch raises its own error about an inplace operation"
    " here.)"
)


class Stored(Protocol):
    """Bytes that were moved away, or are on their way."""

    def is_there(self) -> bool:
        """Returns whether the bytes have arrived, so that their memory may be released."""

    def wait(self) -> None:
        """Waits until they have arrived.

        Raises:
            RuntimeError: The disk is full or has failed.
        """

    def cancel(self) -> None:
        """Keeps them from moving, if that has not begun."""

    def fetch(self) -> Callable[[], Tensor]:
        """Begins to bring them back, and returns what waits for them, as a tensor of `uint8`."""


class Store(Protocol):
    """Where bytes are moved to."""

    def put(self, values: Tensor, then: Callable[[], None]) -> Stored:
        """Begins to move a tensor of `uint8` away.

        Args:
            values: The tensor, which must not change meanwhile.
            then: Called, on any thread, when the bytes have arrived.

        Raises:
            RuntimeError: The disk is full.
        """


class SavedStorage:
    """The memory of one or more saved tensors: here, away, or on its way.

    Args:
        tensor: A saved tensor. Others with the same storage share this object.
        store: Where the memory is moved to.
    """

    __slots__ = ("__weakref__", "_fetched", "_here", "_is_wanted", "_store", "_stored", "nbytes", "version")

    def __init__(self, tensor: Tensor, store: Store) -> None:
        # It has the version counter of the tensor, and no graph.
        self._here: Tensor | None = tensor.detach()
        self._store = store
        self._stored: Stored | None = None
        self._fetched: Callable[[], Tensor] | None = None
        self.version = tensor._version
        self._is_wanted = False
        self.nbytes = tensor.untyped_storage().nbytes()

    @property
    def is_resident(self) -> bool:
        """Whether the bytes take memory."""
        return self._here is not None or self._fetched is not None

    def begin_to_leave(self) -> None:
        """Begins to move the memory away, which is then released."""
        if self._here is not None and self._stored is None:
            values = torch.empty(0, dtype=torch.uint8, device=self._here.device)
            values.set_(self._here.untyped_storage())
            this = weakref.ref(self)

            def release() -> None:
                if (found := this()) is not None:
                    found._release()

            self._stored = self._store.put(values, release)

    def has_left(self) -> None:
        """Waits until the memory has been moved away, if that has begun."""
        if self._here is not None and self._stored is not None and not self._is_wanted:
            self._stored.wait()
            self._release()

    def begin_to_return(self) -> None:
        """Begins to bring the memory back, or keeps it if it has not left yet."""
        self._is_wanted = True
        if self._stored is None:
            return
        if self._here is not None:
            self._stored.cancel()
        elif self._fetched is None:
            self._fetched = self._stored.fetch()

    def storage(self) -> torch.UntypedStorage:
        """Returns the memory.

        Raises:
            RuntimeError: The tensor was changed in place since it was saved, or the disk has failed.
        """
        if (here := self._here) is not None:
            if here._version != self.version:
                raise RuntimeError(_CHANGED.format(shape=list(here.shape)))
            return here.untyped_storage()
        self.begin_to_return()
        assert self._fetched is not None
        fetched = self._fetched()
        self._fetched = lambda: fetched
        return fetched.untyped_storage()

    def leave_again(self) -> None:
        """Releases memory that was brought back, and is away as well."""
        self._is_wanted = False
        self._fetched = None
        if self._stored is not None and self._stored.is_there():
            self._release()

    def _release(self) -> None:
        here = self._here
        # A change while it was written may have reached the file, so it is kept and storage() tells.
        if here is not None and here._version == self.version and not self._is_wanted:
            self._here = None


class _Kept(NamedTuple):
    """A saved tensor that stays in memory."""

    tensor: Tensor
    version: int


class _Moved(NamedTuple):
    """A saved tensor whose memory may leave."""

    record: Record
    memory: SavedStorage
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    offset: int


Saved = _Kept | _Moved


class Record:
    """The tensors that one stretch of a forward, such as a block, has saved.

    Args:
        store: Where they are moved to.
        known: The memory of saved tensors by storage, which records share.
        kept: Storages that stay in memory, because others hold them in any case; see `keys_of()`.
        least: The fewest bytes of a storage that leaves.
        before_use: Called before backward uses a tensor of this record that may have left.
        failed: Called with the error if such a tensor cannot be used.
    """

    def __init__(
        self,
        store: Store,
        known: KnownStorages,
        kept: Collection[int],
        least: int = LEAST_BYTES,
        before_use: Callable[[Record], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self._store = store
        self._known = known
        self._kept = kept
        self._least = least
        self._before_use = before_use
        self._failed = failed
        # Weak, because what backward has used is to be freed.
        self._saved: dict[int, weakref.ref[SavedStorage]] = {}

    @property
    def saved(self) -> Iterator[SavedStorage]:
        """The memory that this record has saved and backward has not released."""
        return (found for one in list(self._saved.values()) if (found := one()) is not None)

    @property
    def resident_bytes(self) -> int:
        """The bytes of this record that take memory."""
        return sum(one.nbytes for one in self.saved if one.is_resident)

    def begin_to_leave(self) -> None:
        """Begins to move everything away.

        Raises:
            RuntimeError: The disk is full.
        """
        for one in self.saved:
            one.begin_to_leave()

    def has_left(self) -> None:
        """Waits until what has begun to leave has left."""
        for one in self.saved:
            one.has_left()

    def begin_to_return(self) -> None:
        """Begins to bring everything back."""
        for one in self.saved:
            one.begin_to_return()

    def leave_again(self) -> None:
        """Releases what was brought back and is still needed, as after `backward(retain_graph=True)`."""
        for one in self.saved:
            one.leave_again()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def pack(self, tensor: Tensor) -> Saved:
        """Takes a tensor that autograd saves. It is called by `torch.autograd.graph.saved_tensors_hooks`."""
        if tensor.is_inference():
            return _Kept(tensor, 0)
        if not _is_plain(tensor) or isinstance(tensor, torch.nn.Parameter):
            return _Kept(tensor, tensor._version)
        with torch._C.DisableTorchFunction():
            # Views of gathered parameters, whose memory fully_shard frees, and fills again for backward.
            if isinstance(tensor._base, torch.nn.Parameter):
                return _Kept(tensor, tensor._version)
            storage = tensor.untyped_storage()
            if storage.nbytes() < self._least or storage._cdata in self._kept:
                return _Kept(tensor, tensor._version)
            memory = self._known.memory_of(tensor, self._store)
            self._saved[id(memory)] = weakref.ref(memory)
            return _Moved(self, memory, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())

    def storage_of(self, memory: SavedStorage) -> torch.UntypedStorage:
        """Returns the memory of a tensor that may have left, for backward."""
        try:
            if self._before_use is not None:
                self._before_use(self)
            with torch._C.DisableTorchFunction():
                return memory.storage()
        except Exception as error:
            if self._failed is not None:
                self._failed(error)
            raise


@torch.compiler.disable  # type: ignore[untyped-decorator]
def unpack(saved: Saved) -> Tensor:
    """Returns a tensor that autograd has saved, for backward.

    Raises:
        RuntimeError: It was changed in place since it was saved, or the disk has failed.
    """
    if isinstance(saved, _Kept):
        tensor, version = saved
        if not tensor.is_inference() and tensor._version != version:
            raise RuntimeError(_CHANGED.format(shape=list(tensor.shape)))
        return tensor
    storage = saved.record.storage_of(saved.memory)
    with torch._C.DisableTorchFunction():
        found = torch.empty(0, dtype=saved.dtype, device=storage.device)
        return found.set_(storage, saved.offset, saved.shape, saved.strides)


@contextlib.contextmanager
def saving(pack: Callable[[Tensor], Saved]) -> Iterator[None]:
    """Returns a context in which autograd passes the tensors that it saves to a record's `pack()`."""
    return_large_tensors()
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:
        keep_large_tensors()


def keys_of(tensors: Iterable[Tensor]) -> Iterator[int]:
    """Yields the keys of the storages of tensors, which are unique among those that exist."""
    return (one.untyped_storage()._cdata for one in tensors if _is_plain(one))


class KnownStorages:
    """Finds the memory of a storage that was saved before, so that it leaves once for all its views."""

    def __init__(self) -> None:
        # The weak reference keeps the address of a storage from being used again.
        self._known: dict[int, tuple[StorageWeakRef, weakref.ref[SavedStorage]]] = {}

    def memory_of(self, tensor: Tensor, store: Store) -> SavedStorage:
        """Returns the memory of a tensor."""
        storage = tensor.untyped_storage()
        entry = self._known.get(storage._cdata)
        found = None if entry is None else entry[1]()
        if found is not None and found.version == tensor._version:
            return found
        found = SavedStorage(tensor, store)
        self._known[storage._cdata] = StorageWeakRef(storage), weakref.ref(found)
        return found

    def forget(self) -> None:
        """Forgets storages that are gone."""
        for key, (storage, memory) in list(self._known.items()):
            if storage.expired() or memory() is None:
                del self._known[key]


def _is_plain(tensor: Tensor) -> bool:
    """Returns whether a tensor is nothing but a view of a storage."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.device.type in ("cpu", "cuda")
    )
