"""Object messages and barriers between the ranks of a job.

Every wait ends: within seconds if a rank dies, otherwise at the deadline of smdp's operations (SMDP_TIMEOUT).
Only one thread of a process may call these functions at a time.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from smdp._shown import shown
from smdp.torch.model_parallel.job.collective_calls import enter
from smdp.torch.model_parallel.job.groups import CommGroup, RankType, comm_group, rank_type
from smdp.torch.model_parallel.job.objects import pack, unpack
from smdp.torch.model_parallel.job.state import state
from smdp.torch.pipelining.transfers.transfers import Channel

# Messages with the same tag arrive in the order in which they were sent.
_OBJECT = 1
_RECEIPT = 2


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Waits until all ranks of the group have called this.

    Args:
        group: A group of this rank.

    Raises:
        ValueError: `group` is not a CommGroup.
        smdp.SmdpError: A rank is gone, has not come in time, or has made a different call.
    """
    _count(comm_group(group), "smp.barrier()")
    dist.barrier(group=state.running.mesh.group(group.axis))


def dp_barrier() -> None:
    """Waits for the ranks that hold the same stage."""
    barrier(CommGroup.DP_GROUP)


def mp_barrier() -> None:
    """Waits for the ranks that together hold one model."""
    barrier(CommGroup.MP_GROUP)


def broadcast(obj: Any, group: CommGroup) -> None:
    """Sends an object to all other ranks of the group, and returns when all of them have it.

    Only the sender calls this. Every receiver must call recv_from().

    Args:
        obj: A tensor, or any object that can be pickled.
        group: A group of this rank.

    Raises:
        ValueError: `group` is not a CommGroup, or the object cannot be pickled.
        smdp.SmdpError: A receiver is gone, or has not called recv_from() in time.
    """
    job = state.running
    others = [rank for rank in job.mesh.ranks(comm_group(group).axis) if rank != job.mesh.rank]
    data = pack(obj, "smp.broadcast()")
    messages = job.messages()
    receipts = [
        messages.receive(_header(), rank, _RECEIPT, f"rank {rank} to call smp.recv_from()") for rank in others
    ]
    for rank in others:
        _send(messages, data, rank, is_receipt_wanted=True)
    messages.finish()
    for receipt in receipts:
        receipt.wait()


def send(obj: Any, dest_rank: int, rank_type: RankType) -> None:
    """Sends an object to a rank, which must call recv_from(). Returns when the object has been sent.

    A large object can be sent only once the receiver takes it. If two ranks send to each other, let one of
    them receive first.

    Args:
        obj: A tensor, or any object that can be pickled.
        dest_rank: The rank of the receiver.
        rank_type: The kind of `dest_rank`, such as smp.RankType.PP_RANK.

    Raises:
        ValueError: The rank does not exist or is this one, or the object cannot be pickled.
        smdp.SmdpError: The receiver is gone, or has not called recv_from() in time.
    """
    rank = _peer("dest_rank", dest_rank, rank_type)
    messages = state.running.messages()
    _send(messages, pack(obj, "smp.send()"), rank, is_receipt_wanted=False)
    messages.finish()


def recv_from(src_rank: int, rank_type: RankType) -> Any:
    """Returns the next object that a rank has sent to this one by send() or broadcast().

    Args:
        src_rank: The rank of the sender.
        rank_type: The kind of `src_rank`, such as smp.RankType.PP_RANK.

    Raises:
        ValueError: The rank does not exist or is this one, or the object cannot be unpickled here.
        smdp.SmdpError: The sender is gone, or has sent nothing in time.
    """
    rank = _peer("src_rank", src_rank, rank_type)
    messages = state.running.messages()
    what = f"an object from rank {rank} in smp.recv_from()"
    size, is_receipt_wanted = messages.receive(_header(), rank, _OBJECT, what).wait().tolist()
    data = torch.empty(size, dtype=torch.uint8, device="cpu")
    messages.receive(data, rank, _OBJECT, what).wait()
    if is_receipt_wanted:
        messages.send(_header(), rank, _RECEIPT, f"the receipt to rank {rank}")
        messages.finish()
    return unpack(data, "smp.recv_from()")


def allgather(obj: Any, group: CommGroup) -> list[Any]:
    """Returns the objects of all ranks of the group, ordered by their rank in it. All of them must call this.

    Args:
        obj: A tensor, or any object that can be pickled.
        group: A group of this rank.

    Raises:
        ValueError: `group` is not a CommGroup, or an object cannot be pickled or unpickled.
        smdp.SmdpError: A rank is gone, has not come in time, or has made a different call.
    """
    mesh = state.running.mesh
    ranks = mesh.ranks(comm_group(group).axis)
    _count(group, "smp.allgather()")
    data, error = None, None
    try:
        data = pack(obj, "smp.allgather()")
    except ValueError as found:  # sent to the other ranks, which wait for this one
        error = found
    told: list[Any] = [None] * len(ranks)
    dist.all_gather_object(told, (data, str(error)), group=mesh.group(group.axis))
    if error is not None:
        raise error
    for rank, (theirs, text) in zip(ranks, told, strict=True):
        if theirs is None:
            raise ValueError(f"[smdp] rank {rank}: {text.removeprefix('[smdp] ')}")
    return [unpack(theirs, "smp.allgather()") for theirs, _ in told]


def _count(group: CommGroup, call: str) -> None:
    """Counts a call, if it is one that all ranks of one model make."""
    mesh = state.running.mesh
    if set(mesh.ranks("mp")) <= set(mesh.ranks(group.axis)):
        enter(call)


def _send(messages: Channel, data: torch.Tensor, rank: int, *, is_receipt_wanted: bool) -> None:
    what = f"an object to rank {rank}"
    messages.send(torch.tensor([data.numel(), is_receipt_wanted], device="cpu"), rank, _OBJECT, what)
    messages.send(data, rank, _OBJECT, what)


def _header() -> torch.Tensor:
    """Returns an empty header: the object's size in bytes, and whether its sender wants a receipt."""
    return torch.zeros(2, dtype=torch.int64, device="cpu")


def _peer(name: str, number: object, kind: object) -> int:
    """Returns another rank's world rank."""
    mesh = state.running.mesh
    kind = rank_type(kind)
    ranks = mesh.ranks(kind.axis)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(ranks):
        raise ValueError(
            f"[smdp] {name} = {shown(number)} is not a {kind.name}; allowed: 0 to {len(ranks) - 1}"
        )
    if ranks[number] == mesh.rank:
        raise ValueError(f"[smdp] {name} = {number} as {kind.name} is this rank itself; pass another rank")
    return ranks[number]
