"""A global batch, cut into microbatches along dimension 0."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from smdp.torch.pipelining.tensors.containers import map_tensors, tensors_in

_log = logging.getLogger(__name__)
# What has been warned of: once each.
_told: set[tuple[int, ...]] = set()


def batch_size(batch: Any) -> int:
    """Give the size of dimension 0 that most tensors have, the first of several; 1 only where all have it.

    Raises:
        ValueError: There is no such tensor.
    """
    sizes = [int(tensor.shape[0]) for tensor in tensors_in(batch) if tensor.dim() > 0]
    if sizes:
        return Counter([size for size in sizes if size != 1] or sizes).most_common(1)[0][0]
    raise ValueError(
        "[smdp] the batch holds no tensor with a batch dimension; allowed: a tensor, or a dict, tuple or list"
        " of tensors whose dimension 0 is the batch"
    )


def cut(batch: Any, microbatches: int) -> list[Any]:
    """Give equal microbatches, as views; what has another dimension 0 goes to all of them whole.

    A mapping that is no dict, as tokenizers give, becomes one.

    Raises:
        ValueError: The batch cannot be cut into so many.
    """
    if isinstance(batch, Mapping) and not isinstance(batch, dict):
        batch = dict(batch)
    size = batch_size(batch)
    if size == 0 or size % microbatches != 0:
        best = max(count for count in range(1, microbatches + 1) if size % count == 0) if size else 0
        raise ValueError(
            f"[smdp] a batch of {size} cannot be cut into {microbatches} equal microbatches; allowed: a"
            f" multiple of {microbatches}, or microbatches={best} for this one. A DataLoader with"
            " drop_last=True leaves out a smaller last batch."
        )
    each = size // microbatches
    others = {int(tensor.shape[0]) for tensor in tensors_in(batch) if tensor.dim() > 0} - {1, size}
    if others and (size, *others) not in _told:
        _told.add((size, *others))
        _log.warning(
            "[smdp] dimension 0 of the batch's tensors is %d, of some %s: those go whole to every"
            " microbatch.",
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
