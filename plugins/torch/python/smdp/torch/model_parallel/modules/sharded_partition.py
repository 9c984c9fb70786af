"""A model in one partition whose parameters are distributed over ranks: sharded data parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from smdp.torch.initialization.delayed_initialization import recording
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.job.configuration import Configuration
from smdp.torch.model_parallel.modules.single_partition import SinglePartition
from smdp.torch.model_parallel.modules.slices_of_state import joined_state
from smdp.torch.precision.lowered_model import lower_buffers, raise_outputs
from smdp.torch.sharded_parameters.preconditions import check_arguments
from smdp.torch.sharded_parameters.sharded_data_parallel import ShardedDataParallel


class _Shards(ShardedDataParallel):
    """A `ShardedDataParallel` that may compute in fp16, as the optimizer of SMP's API scales the loss."""

    dtypes = (torch.bfloat16, torch.float16)

    def call_after_backward(self, function: Callable[[], None]) -> None:
        """Registers what is called after each backward. Hooks of parameters in shards are never called."""
        self._averaged.at_end = function


class ShardedPartition(SinglePartition):
    """Runs microbatches one after the other, and averages gradients over copies of the model in the last one.

    Args:
        model: The whole model, which is changed in place.
        mesh: The ranks and groups.
        configuration: The configuration of the job.
        passes_per_step: Number of steps between two averages over copies.
        is_mean: Whether gradients are means over microbatches instead of sums.
        broadcast_buffers: Whether the first rank's buffers are sent to all ranks before each forward.

    Attributes:
        shards: What distributes the parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        mesh: ParallelMesh,
        configuration: Configuration,
        *,
        passes_per_step: int,
        is_mean: bool,
        broadcast_buffers: bool,
    ) -> None:
        super().__init__(model, None, passes_per_step=passes_per_step, is_mean=is_mean, options={})
        check_arguments(model, {}, {}, 1)  # before the model is changed
        dtype = torch.float16 if configuration.fp16 else torch.bfloat16 if configuration.bf16 else None
        if dtype is not None:
            _raise_parameters(model)
            lower_buffers(model, dtype)
            raise_outputs(model, dtype)
        self.shards = _Shards(
            model,
            configuration.sharded_data_parallel_degree,
            persistence_threshold=configuration.sdp_param_persistence_threshold,
            max_live_parameters=configuration.sdp_max_live_parameters,
            dtype=dtype,
            clip=configuration.sdp_gradient_clipping,
            broadcast_buffers=broadcast_buffers,
            device=None if not torch.cuda.is_available() else torch.device("cuda"),
        )
        self._mesh = mesh
        self._averages = [self.shards]
        self.shards.call_after_backward(self._note_backward)
        for parameter in model.parameters():
            _describe(parameter)

    def local_state_dict(self) -> dict[str, Any]:
        """Returns the whole state dict of this slice of the model. All ranks of the job must call this."""
        whole: dict[int, Tensor] = {}
        found = dict(self.model.state_dict())
        for name, value in found.items():
            if isinstance(value, DTensor):
                key = value._local_tensor.data_ptr()
                if key not in whole or not value._local_tensor.numel():
                    whole[key] = value.detach().full_tensor()
                found[name] = whole[key]
        return found

    def state_dict(self, *, to_first_only: bool) -> dict[str, Any]:
        """Returns the state dict of the whole model. All ranks of the job must call this.

        Args:
            to_first_only: Whether only the first rank of the job gets the entries.
        """
        found = self.local_state_dict()
        assert self._mesh is not None
        if len(self._mesh.ranks("tp")) > 1:
            found = joined_state(found, self.model, self._mesh, to_first_only=to_first_only)
        return {} if to_first_only and self._mesh.rank > 0 else found

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool) -> Any:
        """Copies this rank's shards of whole tensors into the model."""
        return self.model.load_state_dict(dict(state_dict), strict=strict)


def _raise_parameters(model: nn.Module) -> None:
    """Converts 16-bit parameters to 32 bits, in which their shards are the masters."""
    for parameter in model.parameters():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            with recording(parameter):
                parameter.data = parameter.data.float()


def _describe(parameter: nn.Parameter) -> None:
    """Sets the attributes in which SMP scripts find the sizes of a parameter and its shard."""
    own: Any = parameter
    own.ds_numel, own.ds_shape = parameter.numel(), parameter.shape
    own.ds_tensor = parameter._local_tensor if isinstance(parameter, DTensor) else parameter.detach()
    cast("Any", own.ds_tensor).ds_numel = own.ds_tensor.numel()
