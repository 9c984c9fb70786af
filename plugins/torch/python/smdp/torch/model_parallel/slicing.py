"""A global batch, cut into microbatches along dimension 0."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from smdp.torch.model_parallel.containers import map_tensors, tensors_in


def batch_size(batch: Any) -> int:
    """Give the size of dimension 0 of the first tensor that has one.

    Raises:
        ValueError: There is no such tensor.
    """
    for tensor in tensors_in(batch):
        if tensor.dim() > 0:
            return int(tensor.shape[0])
    raise ValueError(
        "[smdp] the batch holds no tensor with a batch dimension; allowed: a tensor, or a dict, tuple or list"
        " of tensors whose dimension 0 is the batch"
    )


def cut(batch: Any, microbatches: int) -> list[Any]:
    """Give equal microbatches, as views; what has another dimension 0 goes to all of them whole.

    Raises:
        ValueError: The batch cannot be cut into so many.
    """
    size = batch_size(batch)
    if size == 0 or size % microbatches != 0:
        best = max(count for count in range(1, microbatches + 1) if size % count == 0) if size else 0
        raise ValueError(
            f"[smdp] a batch of {size} cannot be cut into {microbatches} equal microbatches; allowed: a"
            f" multiple of {microbatches}, or microbatches={best} for this one. A DataLoader with"
            " drop_last=True leaves out a smaller last batch."
        )
    each = size // microbatches

    def part(index: int) -> Any:
        def sliced(tensor: Tensor) -> Tensor:
            if tensor.dim() == 0 or tensor.shape[0] != size:
                return tensor
            return tensor[index * each : (index + 1) * each]

        return map_tensors(sliced, batch)

    return [part(index) for index in range(microbatches)]
