"""Broadcasts that give all ranks the same initial state, and collectives of Python objects."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from smdp._pickling import dumps
from smdp.compat.horovod.torch.asynchronous import broadcast_async_, synchronize
from smdp.compat.horovod.torch.world import ProcessSet, check_included, global_process_set


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str | None, Any] | torch.Tensor],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Sends the root's tensors to all ranks, in place.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`. Values that are not
            tensors are skipped.
        root_rank: The rank whose tensors are sent.
        process_set: The ranks that take part; all by default.

    Raises:
        TypeError: An entry is neither a tuple nor a tensor.
    """
    entries = params.items() if isinstance(params, Mapping) else params
    values = [_value(entry) for entry in entries]
    handles = [
        broadcast_async_(value.data, root_rank, process_set=process_set)
        for value in values
        if isinstance(value, torch.Tensor)
    ]
    for handle in handles:
        synchronize(handle)


def _value(entry: Any) -> Any:
    if isinstance(entry, tuple):
        return entry[1]
    if not isinstance(entry, torch.Tensor):
        raise TypeError(
            f"[smdp] broadcast_parameters got a {type(entry).__name__} instead of a tensor, or a tuple of"
            " a name and a tensor. Pass model.state_dict(), named_parameters() or parameters()."
        )
    return entry


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Sends the root's optimizer state, including learning rate and momentum, to all ranks.

    Raises:
        TypeError: `optimizer` is not a torch optimizer.
        ValueError: `optimizer` is an LBFGS, whose state cannot be broadcast.
    """
    if not hasattr(optimizer, "load_state_dict") or isinstance(optimizer, torch.nn.Module):
        raise TypeError(
            f"[smdp] broadcast_optimizer_state got a {type(optimizer).__name__} instead of an optimizer of"
            " torch.optim."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("[smdp] broadcast_optimizer_state cannot broadcast the state of LBFGS.")
    check_included(process_set)
    is_root = dist.get_rank() == root_rank
    file = io.BytesIO()
    if is_root:
        torch.save(optimizer.state_dict(), file)
    data = broadcast_object(file.getvalue(), root_rank, process_set=process_set)
    if not is_root:
        # The index of the root's GPU may not exist here, or may be another rank's GPU.
        optimizer.load_state_dict(torch.load(io.BytesIO(data), map_location="cpu", weights_only=False))


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object, which is sent pickled."""
    check_included(process_set)
    is_root = dist.get_rank() == root_rank
    held = [dumps(obj) if is_root else b""]
    dist.broadcast_object_list(held, root_rank, group=process_set.group)
    return obj if is_root else pickle.loads(held[0])


def broadcast_object_fn(
    root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Returns broadcast_object() with all arguments set but the object."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks, in rank order."""
    check_included(process_set)
    held: list[Any] = [None] * process_set.size()
    dist.all_gather_object(held, dumps(obj), group=process_set.group)
    return [pickle.loads(each) for each in held]
