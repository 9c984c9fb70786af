"""The function that torch calls to create a group."""

from __future__ import annotations

import os
import sys
import weakref
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import default_pg_timeout
from torch.distributed.distributed_c10d import _get_default_group

from smdp import ClosedError, _log, _misspelt, _world
from smdp.config import Config, read
from smdp.environments.given_ranks import warn_of_given_ranks
from smdp.torch.process_group.process_group import ProcessGroupSmdp, connect
from smdp.torch.process_group.work import seconds_of
from smdp.torch.rendezvous.start import start

_TWO_GROUPS = """\
[smdp] a group over smdp serves all devices, so {backends!r} is not possible. Create two groups:
    dist.init_process_group("smdp")
    other = dist.new_group(backend={other!r})
and pass the second one where you need it: dist.all_reduce(tensor, group=other)"""

_inherited: weakref.ref[dist.ProcessGroup] | None = None
"""In a forked child, the default group of its parent."""


def create(backend_options: Any, process_group_options: Any = None) -> ProcessGroupSmdp:
    """Creates a group from the arguments that torch passes to a backend with `extended_api`.

    Args:
        backend_options: The store, rank, size, timeout and name of the group.
        process_group_options: The caller's `pg_options`, which must be None.

    Returns:
        The group.

    Raises:
        ValueError: The backend string also names another backend, or `pg_options` were passed.
        smdp.SmdpError: Not all ranks have joined, or an environment variable is wrong.
    """
    if process_group_options is not None:
        raise ValueError(
            f"[smdp] the backend 'smdp' does not support pg_options, but got a"
            f" {type(process_group_options).__name__}. Configure smdp with SMDP_* environment variables."
        )
    if not dist.is_initialized():  # before anything that may fail
        start.begin()
    _check_owner()
    _log.follow()
    device_types = _check_devices(_device_backends())
    rank, size = backend_options.group_rank, backend_options.group_size
    if not dist.is_initialized():
        warn_of_given_ranks(rank, size, f"init_process_group() with rank={rank}, world_size={size}")
    if not dist.is_initialized() or size == dist.get_world_size():
        _misspelt.warn(is_teller=rank == 0)
    config = Config.from_environ()
    timeout = backend_options.timeout
    # torch always passes a timeout. SMDP_TIMEOUT replaces torch's default.
    timeout_s = config.timeout_s if timeout in (None, default_pg_timeout) else seconds_of(timeout)
    options = config.options(read(os.environ, "SMDP_MASTER_ADDR") or read(os.environ, "MASTER_ADDR"))
    if dist.is_initialized() and size != dist.get_world_size():
        # For messages and traces.
        options["world_rank"], options["world_size"] = str(dist.get_rank()), str(dist.get_world_size())
    process_group = connect(
        backend_options.store,
        rank,
        size,
        backend_options.group_id,
        timeout_s,
        # The default group uses the time that the caller allows for the start.
        config.init_timeout_s if dist.is_initialized() or start.limit_s is None else start.limit_s,
        options,
        [torch.device(device_type) for device_type in device_types],
        list(backend_options.global_ranks_in_group),
    )
    # The first group that torch makes is the default one.
    if not dist.is_initialized() or process_group.size() == dist.get_world_size():
        _world.offer(process_group)
    return process_group


def _remember_inherited() -> None:
    global _inherited
    _inherited = weakref.ref(_get_default_group()) if dist.is_initialized() else None


os.register_at_fork(after_in_child=_remember_inherited)


def _check_owner() -> None:
    # A forked child inherits torch's default group, whatever its backend.
    if _inherited is not None and dist.is_initialized() and _inherited() is _get_default_group():
        raise ClosedError(
            f"[smdp] this process is a forked child of rank {dist.get_rank()} and cannot be a rank itself."
            " Communicate in the parent, or start the child with spawn and its own init_process_group()."
        )


def _device_backends() -> dict[str, str]:
    """Returns the map from device to backend of the group that torch is creating.

    torch does not pass this map to a backend, so it is read from the local variables of the calling function.
    It is empty if they are not found.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_new_process_group_helper":
            backends = getattr(frame.f_locals.get("backend_config"), "device_backend_map", None)
            return dict(backends) if backends else {}
        frame = frame.f_back
    return {}


def _check_devices(backends: dict[str, str]) -> list[str]:
    others = {device: name for device, name in backends.items() if name not in ("smdp", "smddp")}
    if others:
        text = ",".join(f"{device}:{name}" for device, name in backends.items())
        other = ",".join(f"{device}:{name}" for device, name in others.items())
        raise ValueError(_TWO_GROUPS.format(backends=text, other=other))
    unknown = [device for device in backends if device not in ("cpu", "cuda")]
    if unknown:
        raise ValueError(
            f"[smdp] smdp supports tensors on cpu and cuda, so '{unknown[0]}:{backends[unknown[0]]}' is not"
            ' possible. Call dist.init_process_group("smdp") and move tensors to the CPU before a call.'
        )
    has_cuda = torch.cuda.is_available()
    return [device for device in backends or ("cpu", "cuda") if device != "cuda" or has_cuda]
