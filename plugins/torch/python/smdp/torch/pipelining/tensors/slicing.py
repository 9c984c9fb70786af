"""Cuts a batch into microbatches along dimension 0."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from smdp.torch.pipelining.tensors.containers import map_tensors, tensors_in

_log = logging.getLogger(__name__)
# Sizes that a warning has been logged for.
_told: set[tuple[int, ...]] = set()


def batch_size(batch: Any) -> int:
    """Returns the most frequent size of dimension 0, the first if there are several; 1 only if all have it.

    Raises:
        ValueError: No tensor has a dimension 0.
    """
    sizes = [int(tensor.shape[0]) for tensor in tensors_in(batch) if tensor.dim() > 0]
    if sizes:
        return Counter([size for size in sizes if size != 1] or sizes).most_common(1)[0][0]
    raise ValueError(
        "[smdp] the batch contains no tensor with a batch dimension; expected a tensor, or a dict, tuple or"
        " list of tensors whose dimension 0 is the batch"
    )


def cut(batch: Any, microbatches: int) -> list[Any]:
    """Returns equal microbatches as views; tensors with another size of dimension 0 are in all of them whole.

    A mapping that is not a dict, such as a tokenizer's output, becomes a dict.

    Raises:
        ValueError: The batch cannot be cut into this number of microbatches.
    """
    if isinstance(batch, Mapping) and not isinstance(batch, dict):
        batch = dict(batch)
    size = batch_size(batch)
    if size == 0 or size % microbatches != 0:
        best = max(count for count in range(1, microbatches + 1) if size % count == 0) if size else 0
        raise ValueError(
            f"[smdp] a batch of {size} cannot be cut into {microbatches} equal microbatches; use a batch size"
            f" that is a multiple of {microbatches}, or microbatches={best} for this batch. A DataLoader with"
            " drop_last=True drops a smaller last batch."
        )
    each = size // microbatches
    others = {int(tensor.shape[0]) for tensor in tensors_in(batch) if tensor.dim() > 0} - {1, size}
    if others and (size, *others) not in _told:
        _told.add((size, *others))
        _log.warning(
            "[smdp] the batch size is %d, but the first dimension of some tensors is %s; those tensors are"
            " passed whole to every microbatch.",
            size,
            ", ".join(map(str, sorted(others))),
        )

    def part(index: int) -> Any:
        def sliced(tensor: Tensor) -> Tensor:
            if tensor.dim() == 0 or tensor.shape[0] != size:
                return tensor
            return tensor[index * each : (index + 1) * each]

        return map_tensors(sliced, batch)

    return [part(index) for index in range(microbatches)]
