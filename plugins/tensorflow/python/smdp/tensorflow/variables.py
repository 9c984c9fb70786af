"""The same start on all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from smdp.tensorflow.collectives import broadcast
from smdp.tensorflow.tracing import no_autograph


@no_autograph
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, *, group: Any = None, process_set: Any = None
) -> Any:
    """Gives every variable the root's value.

    Returns:
        None in eager code; in a graph the operation that does it, which a session of TensorFlow 1 must run.
    """
    sent: list[Any] = []
    assigned = []
    for variable in variables:
        # A graph of TensorFlow 1 has no order but this; ranks would send different variables first.
        with tf.control_dependencies(sent[-1:]):
            value = tf.convert_to_tensor(variable)
            sent.append(broadcast(value, root_rank, group=group, process_set=process_set))
        assigned.append(variable.assign(sent[-1]))
    return None if tf.executing_eagerly() else tf.group(*assigned)
