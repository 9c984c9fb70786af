"""The ranks and sizes of this process's groups, and their members."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from smdp.torch.model_parallel.job.groups import CommGroup
from smdp.torch.model_parallel.job.state import state


def rank() -> int:
    """Returns the rank of this process in the job."""
    return state.running.mesh.rank


def size() -> int:
    """Returns the number of ranks in the job."""
    return state.placement.size


def local_rank() -> int:
    """Returns the rank of this process on its host."""
    return state.running.local_rank


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return state.running.local_size


def mp_rank() -> int:
    """Returns the rank among the ranks that together hold one model."""
    return _rank(CommGroup.MP_GROUP)


def mp_size() -> int:
    """Returns the number of ranks that together hold one model."""
    return len(get_mp_group())


def dp_rank() -> int:
    """Returns the rank among the ranks that hold the same stage."""
    return _rank(CommGroup.DP_GROUP)


def dp_size() -> int:
    """Returns the number of ranks that hold the same stage."""
    return len(get_dp_group())


def pp_rank() -> int:
    """Returns the rank in the pipeline."""
    return _rank(CommGroup.PP_GROUP)


def pp_size() -> int:
    """Returns the number of ranks in a pipeline."""
    return len(get_pp_group())


def tp_rank() -> int:
    """Returns the rank among the ranks that hold slices of the same stage."""
    return _rank(CommGroup.TP_GROUP)


def tp_size() -> int:
    """Returns the number of slices of a stage."""
    return len(get_tp_group())


def rdp_rank() -> int:
    """Returns the rank among the ranks that hold the same slice of the same stage."""
    return _rank(CommGroup.RDP_GROUP)


def rdp_size() -> int:
    """Returns the number of ranks that hold the same slice of the same stage."""
    return len(get_rdp_group())


def get_mp_group() -> list[int]:
    """Returns the world ranks of the ranks that together hold one model, in the order of mp_rank()."""
    return _ranks(CommGroup.MP_GROUP)


def get_dp_group() -> list[int]:
    """Returns the world ranks of the ranks that hold the same stage, in the order of dp_rank()."""
    return _ranks(CommGroup.DP_GROUP)


def get_pp_group() -> list[int]:
    """Returns the world ranks of the ranks in this pipeline, in the order of pp_rank()."""
    return _ranks(CommGroup.PP_GROUP)


def get_tp_group() -> list[int]:
    """Returns the world ranks of the ranks that hold slices of the same stage, in the order of tp_rank()."""
    return _ranks(CommGroup.TP_GROUP)


def get_rdp_group() -> list[int]:
    """Returns the world ranks of those that hold the same slice of a stage, in the order of rdp_rank()."""
    return _ranks(CommGroup.RDP_GROUP)


def get_world_process_group() -> Any:
    """Returns torch's default process group."""
    state.check_running()
    return dist.group.WORLD


def get_mp_process_group() -> Any:
    """Returns torch's process group of the ranks in get_mp_group()."""
    return _process_group(CommGroup.MP_GROUP)


def get_dp_process_group() -> Any:
    """Returns torch's process group of the ranks in get_dp_group()."""
    return _process_group(CommGroup.DP_GROUP)


def get_pp_process_group() -> Any:
    """Returns torch's process group of the ranks in get_pp_group()."""
    return _process_group(CommGroup.PP_GROUP)


def get_tp_process_group() -> Any:
    """Returns torch's process group of the ranks in get_tp_group()."""
    return _process_group(CommGroup.TP_GROUP)


def get_rdp_process_group() -> Any:
    """Returns torch's process group of the ranks in get_rdp_group()."""
    return _process_group(CommGroup.RDP_GROUP)


def _ranks(group: CommGroup) -> list[int]:
    return list(state.running.mesh.ranks(group.axis))


def _rank(group: CommGroup) -> int:
    return _ranks(group).index(rank())


def _process_group(group: CommGroup) -> Any:
    return state.running.mesh.group(group.axis)
