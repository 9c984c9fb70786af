"""Values of a `ShardedDataParallel`, of which each rank has a shard, in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn import Parameter

from smdp.torch.pipelining.state_dicts.optimizer_state import whole_room
from smdp.torch.sharded_parameters.whole_state import like
from smdp.torch.sharding.boxed_tensor import BoxedTensor
from smdp.torch.sharding.boxes import Box


class BoxedShard(BoxedTensor):
    """A tensor of which this rank has a shard, as one box.

    `torch.distributed.checkpoint` saves and loads DTensors itself. Of a slice of a divided layer, the shard
    has to be found in the whole layer first.

    Attributes:
        part: This rank's shard.
        box: Its place in the tensor.
        value: The tensor.
    """

    part: Tensor
    box: Box
    value: DTensor

    @staticmethod
    def __new__(cls, value: DTensor) -> BoxedShard:
        """Creates a tensor that shares the memory of `value`."""
        make: Any = torch.Tensor._make_wrapper_subclass
        part = value._local_tensor
        made: BoxedShard = make(cls, value.shape, dtype=part.dtype, device=part.device)
        sizes, offsets = compute_local_shape_and_global_offset(
            value.shape, value.device_mesh, value.placements
        )
        made.part, made.box, made.value = part, Box(tuple(offsets), tuple(sizes)), value
        return made

    def __repr__(self) -> str:
        """Returns the shape and the place of this rank's shard."""
        return f"BoxedShard({tuple(self.shape)}, {self.dtype}, {self.box} on this rank)"

    def boxes(self) -> Iterator[tuple[Box, Tensor]]:
        """Yields this rank's box unless it is empty, and its values."""
        if self.part.numel():
            yield self.box, self.part

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuses operations."""
        raise RuntimeError(f"[smdp] {func} of a tensor in shards. Use its part.")


def boxed(value: Tensor) -> Tensor:
    """Returns a tensor with this rank's box if it is in shards, or the tensor itself."""
    return BoxedShard(value) if isinstance(value, DTensor) else value


def unboxed(value: Tensor) -> Tensor:
    """Returns what `boxed()` was called with."""
    return value.value if isinstance(value, BoxedShard) else value


def room_in_shards(parameter: Parameter, key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """Returns an uninitialized tensor for what this rank has of a part of a parameter's state."""
    if not isinstance(parameter, DTensor) or size != parameter.shape:
        return whole_room(parameter, key, size, dtype)
    return like(parameter, torch.empty_like(parameter._local_tensor, dtype=dtype))
