"""Takes a batch to measure the model with, without a change to the state of training."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader
from torch.utils.data import IterableDataset as Stream
from transformers import Trainer
from transformers.trainer_pt_utils import IterableDatasetShard

from smdp.torch.plugin_support import KeptState


def example_batch(trainer: Trainer, loader: DataLoader[Any], size: int) -> dict[str, Any] | None:
    """Returns the first rows of a data set as a batch, the same on all ranks.

    Args:
        trainer: The Trainer, which prepares the batch.
        loader: A loader of the data set.
        size: The number of rows. A smaller data set is repeated.

    Returns:
        The batch, or None for a stream of an unknown class, which might be readable only once.
    """
    with kept_random_state():
        rows = _rows(loader.dataset, size)
        if not rows:
            return None
        several = itertools.islice(itertools.cycle(rows), size)
        return dict(trainer._prepare_inputs(loader.collate_fn(list(several))))


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    """Restores the states of all random generators at the end of the context."""
    own, numpy = random.getstate(), np.random.get_state()
    try:
        with KeptState():
            yield
    finally:
        random.setstate(own)
        np.random.set_state(numpy)


def _rows(data: Any, size: int) -> list[Any]:
    if isinstance(data, Stream):
        data = data.dataset if isinstance(data, IterableDatasetShard) else data
        # Streams of Hugging Face's datasets start again for each reader.
        if type(data).__module__.partition(".")[0] != "datasets":
            return []
        return list(itertools.islice(iter(data), size))
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return []
    return [data[index] for index in range(min(size, len(data)))]
