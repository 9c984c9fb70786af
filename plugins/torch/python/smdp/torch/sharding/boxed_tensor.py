"""The base class of tensors of which each rank has boxes, as `torch.distributed.checkpoint` needs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smdp.torch.sharding.boxes import Box

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem


class BoxedTensor(Tensor):
    """A tensor whose values are distributed over ranks.

    `torch.distributed.checkpoint` saves this rank's boxes and loads them, and needs nothing else than the
    three methods with underscores. A checkpoint can thus be read into whole tensors, or into other boxes.
    """

    def boxes(self) -> Iterator[tuple[Box, Tensor]]:
        """Yields this rank's boxes, and views of their values."""
        raise NotImplementedError

    def __create_write_items__(self, fqn: str, object: object) -> list[WriteItem]:
        """Returns what this rank writes."""
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                MetadataIndex(fqn, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Returns the parts of the whole tensor that this rank has."""
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [
            ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)) for box, _ in self.boxes()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        """Returns one of these parts, which shares its memory with this tensor."""
        for box, values in self.boxes():
            if box.offsets == index.offset:
                return values
        raise ValueError(f"[smdp] {index} is not on this rank, which has {self!r}.")
