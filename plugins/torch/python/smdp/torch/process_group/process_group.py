"""`torch.distributed.ProcessGroup` over a group of the core.

torch takes a ProcessGroup subclass as the whole group: there is no C++ backend below it, so everything that
torch would ask one (name, device types, sequence number, timeout) is answered here. C++ callers reach the
methods through torch's trampolines, under the names of the methods of the C++ class (`getGroupName`).
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
        """Start sending to a rank."""
        tensor = single(tensors, "send")
        dtype = dtype_code(tensor.dtype)
        staging = Staging("send")
        host = staging.read(tensor)
        staging.ready()
        handle = self._group.send(host.data_ptr(), host.numel(), dtype, dst_rank, tag, self._timeout_s, True)
        return self._end((handle,), tensors, staging, host)

    def recv(self, tensors: list[Tensor], src_rank: int, tag: int) -> Work:
        """Start receiving from a rank."""
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
        """Start receiving from whoever sends first; the Work knows who it was."""
        return self.recv(tensors, _ANY_SOURCE, tag)


class Nameplate(_distributed_c10d.Backend):
    """Stands where C++ looks for a backend (torch's flight recorder, from 2.15 on); never called."""

    def getBackendName(self) -> str:
        """Give "smdp"."""
        return "smdp"


class ProcessGroupSmdp(Reductions, Gathers, PointToPoint, ProcessGroup):
    """The group that `init_process_group("smdp")` and `new_group(backend="smdp")` make.

    Args:
        group: The core's group.
        store: torch's store of this group.
        devices: Device types which the group serves.

    Attributes:
        pending_sends: Messages that their receivers need not take.
    """

    # What torch would ask a backend.
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(
        self, group: _core.Group, store: Store, devices: list[torch.device], timeout_s: float
    ) -> None:
        # The constructor with a store makes no object that C++ could call back into.
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
        """Wait for all ranks."""
        opts = opts or _BARRIER
        seconds = self._seconds(opts) if timeout is None else seconds_of(timeout)
        self._sequence += 1
        handle = self._group.barrier(seconds, opts.asyncOp)
        return self._end((handle,), [], Staging("barrier"))

    def monitored_barrier(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse: smdp's own barrier names the missing rank."""
        raise NotImplementedError(
            "monitored_barrier belongs to gloo; the barrier of smdp names the rank it waited for as well"
        )

    # Identity.

    def getBackendName(self) -> str:
        """Give "smdp"."""
        return "smdp"

    def getGroupName(self) -> str:
        """Give the name under which torch finds the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Take the name that torch gives."""
        self._name = name

    def getGroupDesc(self) -> str:
        """Give torch's description of the group."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Take the description that torch gives."""
        self._desc = desc

    @property
    def group_name(self) -> str:
        """The name under which torch finds the group."""
        return self._name

    @property
    def pg_name(self) -> str:
        """The same, as torch's own groups spell it."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What torch says the group is for."""
        return self._desc

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def rank(self) -> int:
        """Give this process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """Give the number of processes in the group."""
        return self._size

    def get_group_store(self) -> Store:
        """Give torch's store of this group."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return self._devices

    def _get_backend(self, device: torch.device) -> ProcessGroupSmdp:
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Tell torch to allocate communication buffers itself."""
        return False

    @property
    def core(self) -> _core.Group:
        """The core's group: hosts, error, and all that torch has no call for."""
        return self._group

    # Lifecycle.

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls that name none."""
        self.timeout_s = self._timeout_s = self.pending_sends.timeout_s = seconds_of(timeout)

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leave the group. The others can go on without this rank only if they need it no more."""
        _live.discard(self)
        try:
            self.pending_sends.hand_over()
        finally:
            self._group.shutdown()

    def abort(self) -> None:
        """Fail everything in flight, on all ranks."""
        _live.discard(self)
        self._group.abort(f"rank {self._rank} aborted the process group")

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: every rank counts from zero."""

    def split_group(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse: torch keeps it to its own backends."""
        raise NotImplementedError("smdp groups are split by torch.distributed.new_group(ranks)")

    def merge_remote_group(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse: torch keeps it to its own backends."""
        raise NotImplementedError("smdp groups cannot be merged; make a new one by init_process_group")


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
    """Join a group through torch's store; returns when all ranks have joined.

    If the default group is over smdp, the death or departure of one of `ranks`, by its numbers, is an error.
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
            if bounded.failure is not None:  # which the core has taken for any error of a store
                raise bounded.failure from error
            raise
    _world.watch_end()
    return ProcessGroupSmdp(group, store, devices, timeout_s)


def timeout_of_world() -> timedelta | None:
    """Give the timeout of the default group, for groups that serve its user; None where it is not smdp's.

    torch gives a new group its own default instead.
    """
    world = dist.distributed_c10d._get_default_group()
    return timedelta(seconds=world.timeout_s) if isinstance(world, ProcessGroupSmdp) else None


@_world.at_end  # before what leaves without this, which _world has given when it was imported above
def _shut_down_all() -> None:
    """Leave all groups before the interpreter dies; tell the others why, if it dies of an exception."""
    reason = _world.why_it_ends()
    for process_group in list(_live):
        with contextlib.suppress(Exception):
            if not reason:
                process_group.pending_sends.hand_over()
            process_group.core.shutdown(reason)
