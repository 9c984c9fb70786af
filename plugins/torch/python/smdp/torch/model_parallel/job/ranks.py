"""Ranks, sizes and members of the groups of this process."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from smdp.torch.model_parallel.job.groups import CommGroup
from smdp.torch.model_parallel.job.state import state


def rank() -> int:
    """Give this process's rank in the job."""
    return state.running.mesh.rank


def size() -> int:
    """Give the number of ranks in the job."""
    return state.placement.size


def local_rank() -> int:
    """Give this process's rank on its host."""
    return state.running.local_rank


def local_size() -> int:
    """Give the number of ranks on this host."""
    return state.running.local_size


def mp_rank() -> int:
    """Give the rank among those that hold one model together."""
    return _rank(CommGroup.MP_GROUP)


def mp_size() -> int:
    """Give the number of ranks that hold one model together."""
    return len(get_mp_group())


def dp_rank() -> int:
    """Give the rank among those that hold the same stage."""
    return _rank(CommGroup.DP_GROUP)


def dp_size() -> int:
    """Give the number of ranks that hold the same stage."""
    return len(get_dp_group())


def pp_rank() -> int:
    """Give the rank in the pipeline."""
    return _rank(CommGroup.PP_GROUP)


def pp_size() -> int:
    """Give the number of ranks of a pipeline."""
    return len(get_pp_group())


def tp_rank() -> int:
    """Give the rank among those that hold slices of the same stage."""
    return _rank(CommGroup.TP_GROUP)


def tp_size() -> int:
    """Give the number of slices of a stage."""
    return len(get_tp_group())


def rdp_rank() -> int:
    """Give the rank among those that hold the same slice of the same stage."""
    return _rank(CommGroup.RDP_GROUP)


def rdp_size() -> int:
    """Give the number of ranks that hold the same slice of the same stage."""
    return len(get_rdp_group())


def get_mp_group() -> list[int]:
    """Give the world's ranks of the group that mp_rank() counts; so for the others."""
    return _ranks(CommGroup.MP_GROUP)


def get_dp_group() -> list[int]:
    """Give the world's ranks of the group that dp_rank() counts."""
    return _ranks(CommGroup.DP_GROUP)


def get_pp_group() -> list[int]:
    """Give the world's ranks of the group that pp_rank() counts."""
    return _ranks(CommGroup.PP_GROUP)


def get_tp_group() -> list[int]:
    """Give the world's ranks of the group that tp_rank() counts."""
    return _ranks(CommGroup.TP_GROUP)


def get_rdp_group() -> list[int]:
    """Give the world's ranks of the group that rdp_rank() counts."""
    return _ranks(CommGroup.RDP_GROUP)


def get_world_process_group() -> Any:
    """Give torch's default group."""
    state.check_running()
    return dist.group.WORLD


def get_mp_process_group() -> Any:
    """Give torch's group over get_mp_group(); so for the others."""
    return _process_group(CommGroup.MP_GROUP)


def get_dp_process_group() -> Any:
    """Give torch's group over get_dp_group()."""
    return _process_group(CommGroup.DP_GROUP)


def get_pp_process_group() -> Any:
    """Give torch's group over get_pp_group()."""
    return _process_group(CommGroup.PP_GROUP)


def get_tp_process_group() -> Any:
    """Give torch's group over get_tp_group()."""
    return _process_group(CommGroup.TP_GROUP)


def get_rdp_process_group() -> Any:
    """Give torch's group over get_rdp_group()."""
    return _process_group(CommGroup.RDP_GROUP)


def _ranks(group: CommGroup) -> list[int]:
    return list(state.running.mesh.ranks(group.axis))


def _rank(group: CommGroup) -> int:
    return _ranks(group).index(rank())


def _process_group(group: CommGroup) -> Any:
    return state.running.mesh.group(group.axis)
