"""What SMP takes from torch's DistributedDataParallel: `join` and `register_comm_hook`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from smdp.torch.model_parallel.job.state import state as job_state
from smdp.torch.model_parallel.modules.model_state import ModelState
from smdp.torch.model_parallel.modules.sharded_partition import ShardedPartition
from smdp.torch.model_parallel.modules.single_partition import SinglePartition


class Replicas(ModelState):
    """Passes these calls on if one group of replicas averages all gradients, or raises with the reason."""

    def join(self) -> AbstractContextManager[Any]:
        """Returns a context in which replicas may have different numbers of batches. Needs one partition.

        Raises:
            RuntimeError: There are several partitions or slices, sharded parameters, or only one replica.
        """
        cure = "Give all ranks the same number of batches, as a DistributedSampler does."
        joined: AbstractContextManager[Any] = self._replicas("join()", cure).join()
        return joined

    def register_comm_hook(self, state: Any, callable: Any) -> None:
        """Registers a torch communication hook that averages gradients, for a model on a GPU.

        Raises:
            RuntimeError: The model is on the CPU; or there are several partitions or slices, sharded
                parameters, or only one replica.
        """
        cure = "Leave the hook out."
        self._replicas("register_comm_hook()", cure).register_comm_hook(state, callable)

    def _replicas(self, what: str, cure: str) -> Any:
        body, cfg = self._body, job_state.cfg
        if isinstance(body, ShardedPartition):
            why = (
                f"with sharded_data_parallel_degree = {cfg.sharded_data_parallel_degree}, every rank gathers"
                " parameters from the others in each step"
            )
        elif isinstance(body, SinglePartition) and body.replicas is not None:
            return body.replicas
        elif cfg.partitions > 1:
            why = (
                f"with partitions = {cfg.partitions}, the core averages the gradients of each stage at its"
                " place of the schedule, without torch's buckets, and all replicas run the same schedule"
            )
        elif cfg.tensor_parallel_degree > 1:
            why = (
                f"with tensor_parallel_degree = {cfg.tensor_parallel_degree}, gradients of slices are"
                " averaged over RDP_GROUP and those of whole parameters over DP_GROUP"
            )
        else:
            why = "there is only one replica"
        raise RuntimeError(f"[smdp] {what} needs one group of replicas in one partition, but {why}. {cure}")
