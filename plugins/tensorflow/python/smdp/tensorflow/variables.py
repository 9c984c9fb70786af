"""The same start on all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

import smdp
from smdp.tensorflow.collectives import broadcast_labeled
from smdp.tensorflow.groups import group_of, name_of, tensor_of
from smdp.tensorflow.objects import allgather_object
from smdp.tensorflow.tracing import no_autograph


@no_autograph
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: Any = None,
    inplace: bool = False,
    *,
    group: Any = None,
) -> Any:
    """Gives every variable the root's value.

    Args:
        variables: The same shapes and dtypes in the same order on all ranks.
        root_rank: Whose values.
        process_set: Another name for group.
        inplace: Not used.
        group: Default: all ranks.

    Returns:
        None in eager code; in a graph the operation that does it, which a session of TensorFlow 1 must run.

    Raises:
        MismatchError: In eager code, on all ranks, before anything is sent: the lists differ.
    """
    members = group_of(group, process_set)
    variables = list(variables)
    if tf.executing_eagerly():
        _check_same(variables, members)
    sent: list[Any] = []
    assigned = []
    for variable in variables:
        # A graph of TensorFlow 1 has no order but this; ranks would send different variables first.
        with tf.control_dependencies(sent[-1:]):
            value = tensor_of(variable, "broadcast_variables")
            sent.append(broadcast_labeled(value, root_rank, members, f"variable {name_of(variable)!r}"))
        assigned.append(variable.assign(sent[-1]))
    return None if tf.executing_eagerly() else tf.group(*assigned)


def _check_same(variables: list[Any], group: Any) -> None:
    own = [(name_of(one), f"{tf.as_dtype(one.dtype).name}{_shape_of(one)}") for one in variables]
    # Names may differ: Keras counts layers.
    digest = hashlib.sha256(repr([what for _, what in own]).encode()).hexdigest()
    if len(set(allgather_object(digest, group=group))) == 1:
        return
    lists = allgather_object(own, group=group)
    for rank, theirs in enumerate(lists):
        for index in range(max(len(theirs), len(lists[0]))):
            here, there = (one[index] if index < len(one) else None for one in (theirs, lists[0]))
            if (here and here[1]) != (there and there[1]):
                raise smdp.MismatchError(
                    f"[smdp] rank {group.rank} of {group.size}: broadcast_variables got different lists:"
                    f" variable {index} is {_said(here)} on rank {rank} and"
                    f" {_said(there)} on rank 0. Build the same model on all ranks, and call this after it"
                    " is built."
                )


def _shape_of(variable: Any) -> str:
    shape = tf.TensorShape(variable.shape)
    return "[?]" if shape.rank is None else str(shape.as_list())


def _said(variable: tuple[str, str] | None) -> str:
    return "not there" if variable is None else f"{variable[0]!r} {variable[1]}"
