"""The same start on all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from smdp.tensorflow.collectives import broadcast


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, *, group: Any = None, process_set: Any = None
) -> None:
    """Gives every variable the root's value, in eager code or a graph."""
    for variable in variables:
        value = tf.convert_to_tensor(variable)
        variable.assign(broadcast(value, root_rank, group=group, process_set=process_set))
