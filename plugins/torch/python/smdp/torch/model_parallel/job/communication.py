"""Objects and barriers between the ranks of a job.

Every wait ends: by the death of a rank within seconds, else by the deadline of smdp's operations
(SMDP_TIMEOUT). Calls of one process come from one thread at a time.
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

# Messages of one tag arrive in the order in which they were sent.
_OBJECT = 1
_RECEIPT = 2


def barrier(group: CommGroup = CommGroup.WORLD) -> None:
    """Wait until all ranks of the group have come here.

    Raises:
        ValueError: It is no group.
        smdp.SmdpError: A rank is gone, has not come in time, or made another call.
    """
    _count(comm_group(group), "smp.barrier()")
    dist.barrier(group=state.running.mesh.group(group.axis))


def dp_barrier() -> None:
    """Wait for the ranks that hold the same stage."""
    barrier(CommGroup.DP_GROUP)


def mp_barrier() -> None:
    """Wait for the ranks that hold one model together."""
    barrier(CommGroup.MP_GROUP)


def broadcast(obj: Any, group: CommGroup) -> None:
    """Send an object to all others of the group, and return when all have it.

    Only the sender calls this; every receiver calls recv_from().

    Args:
        obj: Anything that can be pickled, or a tensor.
        group: Of this rank.

    Raises:
        ValueError: It is no group, or the object cannot be pickled.
        smdp.SmdpError: A receiver is gone, or has not come in time.
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
    """Send an object to a rank, which calls recv_from(); return when it is on its way.

    A large one is on its way once the receiver takes it: of two ranks that send to each other, let one
    receive first.

    Args:
        obj: Anything that can be pickled, or a tensor.
        dest_rank: To whom.
        rank_type: What `dest_rank` counts, e.g. smp.RankType.PP_RANK.

    Raises:
        ValueError: There is no such rank, it is this one, or the object cannot be pickled.
        smdp.SmdpError: The receiver is gone, or has not come in time.
    """
    rank = _peer("dest_rank", dest_rank, rank_type)
    messages = state.running.messages()
    _send(messages, pack(obj, "smp.send()"), rank, is_receipt_wanted=False)
    messages.finish()


def recv_from(src_rank: int, rank_type: RankType) -> Any:
    """Receive the next object that a rank has sent to this one, by send() or broadcast().

    Args:
        src_rank: From whom.
        rank_type: What `src_rank` counts.

    Raises:
        ValueError: There is no such rank, it is this one, or the object cannot be restored here.
        smdp.SmdpError: The sender is gone, or nothing came in time.
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
    """Give the objects of all ranks of the group, by their rank in it. All of them call it.

    Args:
        obj: Anything that can be pickled, or a tensor.
        group: Of this rank.

    Raises:
        ValueError: It is no group; an object cannot be pickled, or restored here.
        smdp.SmdpError: A rank is gone, has not come in time, or made another call.
    """
    mesh = state.running.mesh
    ranks = mesh.ranks(comm_group(group).axis)
    _count(group, "smp.allgather()")
    data, error = None, None
    try:
        data = pack(obj, "smp.allgather()")
    except ValueError as found:  # the others wait for this rank, so they are told
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
    """Count a call that all ranks of one model make."""
    mesh = state.running.mesh
    if set(mesh.ranks("mp")) <= set(mesh.ranks(group.axis)):
        enter(call)


def _send(messages: Channel, data: torch.Tensor, rank: int, *, is_receipt_wanted: bool) -> None:
    what = f"an object to rank {rank}"
    messages.send(torch.tensor([data.numel(), is_receipt_wanted], device="cpu"), rank, _OBJECT, what)
    messages.send(data, rank, _OBJECT, what)


def _header() -> torch.Tensor:
    """Give bytes of an object, and whether its sender wants a receipt."""
    return torch.zeros(2, dtype=torch.int64, device="cpu")


def _peer(name: str, number: object, kind: object) -> int:
    """Give another rank of the world."""
    mesh = state.running.mesh
    kind = rank_type(kind)
    ranks = mesh.ranks(kind.axis)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(ranks):
        raise ValueError(f"[smdp] {name} = {shown(number)} is no {kind.name}; allowed: 0 to {len(ranks) - 1}")
    if ranks[number] == mesh.rank:
        raise ValueError(f"[smdp] {name} = {number} as {kind.name} is this rank itself; allowed: another one")
    return ranks[number]
