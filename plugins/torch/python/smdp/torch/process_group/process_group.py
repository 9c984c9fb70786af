"""`torch.distributed.ProcessGroup` over a group of the core.

torch uses a ProcessGroup subclass as the whole group, without a C++ backend below it. This class therefore
also answers the questions that torch would ask a backend: name, device types, sequence number and timeout.
C++ callers reach the methods through torch's trampolines under their C++ names, such as `getGroupName`.
"""

from __future__ import annotations

import contextlib
import weakref
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d
from torch.distributed import ProcessGroup, Work
from torch.distributed.distributed_c10d import BarrierOptions, Store

from smdp import _core, _world
from smdp._errors import SmdpError
from smdp.torch.process_group._calls import Calls, single
from smdp.torch.process_group.gathers import Gathers
from smdp.torch.process_group.pending_sends import PendingSends
from smdp.torch.process_group.reductions import Reductions
from smdp.torch.process_group.tensors import Staging, dtype_code
from smdp.torch.process_group.torch_calls import wrap_calls
from smdp.torch.process_group.work import seconds_of
from smdp.torch.rendezvous.bounded_store import BoundedStore
from smdp.torch.rendezvous.sessions import open_session

_BARRIER = BarrierOptions()
_ANY_SOURCE = -1

_live: weakref.WeakSet[ProcessGroupSmdp] = weakref.WeakSet()


class PointToPoint(Calls):
    """Messages between two ranks."""

    def send(self, tensors: list[Tensor], dst_rank: int, tag: int) -> Work:
        """Starts sending a tensor to a rank."""
        tensor = single(tensors, "send")
        dtype = dtype_code(tensor.dtype)
        staging = Staging("send")
        host = staging.read(tensor)
        staging.ready()
        handle = self._group.send(host.data_ptr(), host.numel(), dtype, dst_rank, tag, self._timeout_s, True)
        return self._end((handle,), tensors, staging, host)

    def recv(self, tensors: list[Tensor], src_rank: int, tag: int) -> Work:
        """Starts receiving a tensor from a rank."""
        tensor = single(tensors, "recv")
        dtype = dtype_code(tensor.dtype)
        staging = Staging("recv")
        host = staging.write(tensor)
        staging.ready()
        handle: Any = self._group.recv(
            host.data_ptr(), host.numel(), dtype, src_rank, tag, self._timeout_s, True
        )
        return self._end((handle,), tensors, staging, host)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        """Starts receiving from any rank. `Work.source_rank()` tells which rank has sent the tensor."""
        return self.recv(tensors, _ANY_SOURCE, tag)


class Nameplate(_distributed_c10d.Backend):
    """The backend that C++ code finds for the devices, for torch's flight recorder from 2.15 on.

    Its collectives are never called.
    """

    def getBackendName(self) -> str:
        """Returns "smdp"."""
        return "smdp"


class ProcessGroupSmdp(Reductions, Gathers, PointToPoint, ProcessGroup):
    """The process group that `init_process_group("smdp")` and `new_group(backend="smdp")` create.

    Args:
        group: The core's group.
        store: torch's store for this group.
        devices: The device types that the group supports.
        timeout_s: The timeout of the group in seconds.

    Attributes:
        pending_sends: Messages that wait until their receivers read or refuse them.
    """

    # Properties that torch would ask a backend for.
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(
        self, group: _core.Group, store: Store, devices: list[torch.device], timeout_s: float
    ) -> None:
        # torch's constructor with a store would make an object whose methods C++ cannot call.
        super().__init__(group.rank, group.size)
        self._store = store
        self._group = group
        self.pending_sends = PendingSends(group)
        self._rank = group.rank
        self._size = group.size
        self.timeout_s = timeout_s
        self._timeout_s = -1.0
        self._sequence = 0
        self._devices = devices
        if hasattr(_distributed_c10d, "FlightRecorderHook"):
            self._nameplate = Nameplate(group.rank, group.size)
            for device in devices:
                self._register_backend(device, ProcessGroup.BackendType.CUSTOM, self._nameplate)
            self._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        self._name = ""
        self._desc = "undefined"
        _live.add(self)

    def barrier(self, opts: BarrierOptions | None = None, timeout: timedelta | None = None) -> Work:
        """Waits for all ranks of the group."""
        opts = opts or _BARRIER
        seconds = self._seconds(opts) if timeout is None else seconds_of(timeout)
        self._sequence += 1
        handle = self._group.barrier(seconds, opts.asyncOp)
        return self._end((handle,), [], Staging("barrier"))

    def monitored_barrier(self, *args: object, **kwargs: object) -> NoReturn:
        """Raises NotImplementedError. smdp's barrier names the missing rank.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "[smdp] monitored_barrier() is supported only by gloo. Call barrier(): if it times out, smdp's"
            " error also names the missing rank."
        )

    # Identity.

    def getBackendName(self) -> str:
        """Returns "smdp"."""
        return "smdp"

    def getGroupName(self) -> str:
        """Returns the name under which torch finds the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Sets the name under which torch finds the group."""
        self._name = name

    def getGroupDesc(self) -> str:
        """Returns torch's description of the group."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Sets torch's description of the group."""
        self._desc = desc

    @property
    def group_name(self) -> str:
        """The name under which torch finds the group."""
        return self._name

    @property
    def pg_name(self) -> str:
        """The same as `group_name`, as torch's groups also call it."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The description that torch has given the group."""
        return self._desc

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def rank(self) -> int:
        """Returns the rank of this process in the group."""
        return self._rank

    def size(self) -> int:
        """Returns the number of ranks in the group."""
        return self._size

    def get_group_store(self) -> Store:
        """Returns torch's store for this group."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return self._devices

    def _get_backend(self, device: torch.device) -> ProcessGroupSmdp:
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Returns False, because torch allocates communication buffers itself."""
        return False

    @property
    def core(self) -> _core.Group:
        """The core's group, with everything that torch has no call for, such as its hosts and its error."""
        return self._group

    # Lifecycle.

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later calls that do not pass their own."""
        self.timeout_s = self._timeout_s = self.pending_sends.timeout_s = seconds_of(timeout)

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leaves the group. Calls of other ranks that need this rank fail afterward."""
        _live.discard(self)
        try:
            self.pending_sends.hand_over()
        finally:
            self._group.shutdown()

    def abort(self) -> None:
        """Fails all operations in flight on all ranks."""
        _live.discard(self)
        self._group.abort(f"rank {self._rank} aborted the process group")

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing, because every rank counts from zero."""

    def split_group(self, *args: object, **kwargs: object) -> NoReturn:
        """Raises NotImplementedError. torch supports it only for its own backends.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "[smdp] groups over smdp do not support split_group(). Use torch.distributed.new_group(ranks)."
        )

    def merge_remote_group(self, *args: object, **kwargs: object) -> NoReturn:
        """Raises NotImplementedError. torch supports it only for its own backends.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "[smdp] groups over smdp cannot be merged. Create a new group with init_process_group()."
        )


wrap_calls(ProcessGroupSmdp)


def connect(
    store: Store,
    rank: int,
    size: int,
    group_id: str,
    timeout_s: float,
    init_timeout_s: float,
    options: dict[str, str],
    devices: list[torch.device],
    ranks: list[int],
) -> ProcessGroupSmdp:
    """Joins a group through torch's store and returns when all ranks have joined.

    Args:
        store: torch's store for the group.
        rank: The rank of this process in the group.
        size: The number of ranks in the group.
        group_id: The name of the group.
        timeout_s: The timeout of operations in seconds.
        init_timeout_s: The longest time to wait for all ranks, in seconds.
        options: Options of the core's group.
        devices: The device types that the group supports.
        ranks: The members of the group by their ranks in the default group. If that is over smdp, the group
            fails as soon as one of them dies or leaves.

    Returns:
        The connected group.

    Raises:
        smdp.SmdpError: Not all ranks have joined.
    """
    name = f"torch:{group_id}"
    world = dist.distributed_c10d._get_default_group() if dist.is_initialized() else None
    parent = world.core if isinstance(world, ProcessGroupSmdp) else None
    prefix = open_session(store, rank, size, name, init_timeout_s, parent, ranks)
    with BoundedStore(store, init_timeout_s, rank, size, name) as bounded:
        core_store = _core.prefix_store(prefix, _core.python_store(bounded))
        try:
            group = _core.Group(core_store, rank, size, name, timeout_s, options, parent, ranks)
        except SmdpError as error:
            if bounded.failure is not None:  # more precise than the core's error for a failed store
                raise bounded.failure from error
            raise
    _world.watch_end()
    return ProcessGroupSmdp(group, store, devices, timeout_s)


def timeout_of_world() -> timedelta | None:
    """Returns the timeout of the default group, or None if that is not over smdp.

    torch would give a new group its default timeout instead.
    """
    world = dist.distributed_c10d._get_default_group()
    return timedelta(seconds=world.timeout_s) if isinstance(world, ProcessGroupSmdp) else None


@_world.at_end  # runs before the function that _world registered when it was imported
def _shut_down_all() -> None:
    """Leaves all groups before the interpreter exits. After an exception the other ranks learn the reason."""
    reason = _world.why_it_ends()
    for process_group in list(_live):
        with contextlib.suppress(Exception):
            if not reason:
                process_group.pending_sends.hand_over()
            process_group.core.shutdown(reason)
