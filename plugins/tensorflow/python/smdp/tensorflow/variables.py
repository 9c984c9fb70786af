"""Broadcasts that give all ranks the same initial variables."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from smdp.tensorflow.arguments import list_of, root_of
from smdp.tensorflow.collectives import broadcast_labeled
from smdp.tensorflow.groups import group_of, name_of, tensor_of
from smdp.tensorflow.lists import check_same, check_same_length
from smdp.tensorflow.naming import place_in_list
from smdp.tensorflow.tracing import no_autograph, only_to_be_run

_CURE = "Build the same model on all ranks, and call this after it is built."


@no_autograph
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: Any = None,
    inplace: bool = False,
    *,
    group: Any = None,
) -> Any:
    """Sets every variable to the root's value.

    For a Keras 3 model, pass ``model.weights``. ``model.variables`` also contains the seeds of its dropout
    layers, which would then have the same masks on all ranks.

    Args:
        variables: The variables, with the same shapes and dtypes in the same order on all ranks.
        root_rank: The rank whose values are sent; the same on all ranks.
        process_set: Another name for ``group``.
        inplace: Not used.
        group: The ranks that take part; all by default.

    Returns:
        None. In a graph of TensorFlow 1, the operation that sets the variables, which a session must run.

    Raises:
        TypeError: An entry is not a variable or has an unsupported dtype, or root_rank is not an integer.
        ValueError: The group does not have the rank root_rank.
        MismatchError: In eager code, the lists or the roots differ. It is raised on all ranks, before
            anything is sent.
        tf.errors.InvalidArgumentError: In a graph, the lists differ in length. It is raised on all ranks.

    Warns:
        RuntimeWarning: The list is empty, like that of a model or an optimizer that is not built.
    """
    members = group_of(group, process_set)
    root = root_of("broadcast_variables", root_rank, members)
    variables = list_of("broadcast_variables", variables, "Pass model.weights.")
    for index, variable in enumerate(variables):
        if not hasattr(variable, "assign"):
            raise TypeError(
                f"[smdp] rank {members.rank}: broadcast_variables() takes a list of variables; number {index}"
                f" is {type(variable).__name__}. Pass model.weights, or the values of a dict; for"
                " tensors, use smdp.tensorflow.broadcast()."
            )
    if not variables:
        warnings.warn(
            f"[smdp] rank {members.rank}: broadcast_variables() got an empty list, so ranks keep their own"
            f" values. {_CURE}",
            RuntimeWarning,
            stacklevel=2,
        )
    before: list[Any] = []
    if tf.executing_eagerly():
        check_same("broadcast_variables", "variable", variables, members, _CURE, root)
    else:
        before = [check_same_length("broadcast_variables", "variable", variables, members, _CURE)]
    assigned = []
    for index, variable in enumerate(variables):
        # In a graph of TensorFlow 1, only this orders calls into Python.
        with tf.control_dependencies(before):
            value = tensor_of(variable, "broadcast_variables")
            label = f"variable {name_of(variable)!r}"
            sent = broadcast_labeled(value, root, members, label, name=place_in_list(index))
        assigned.append(variable.assign(sent))
        before = [sent]
    return None if tf.executing_eagerly() else only_to_be_run(tf.group(*before, *assigned))
