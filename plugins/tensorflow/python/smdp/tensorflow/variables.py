"""The same start on all ranks."""

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
    """Gives every variable the root's value.

    Of a Keras 3 model give it ``model.weights``: ``model.variables`` has the seeds of its dropout layers,
    too, which would then drop the same on all ranks.

    Args:
        variables: The same shapes and dtypes in the same order on all ranks.
        root_rank: Whose values; the same on all ranks.
        process_set: Another name for group.
        inplace: Not used.
        group: Default: all ranks.

    Returns:
        None; in a graph of TensorFlow 1 the operation that does it, which a session must run.

    Raises:
        TypeError: A variable cannot be sent, or is none, or root_rank is not an integer.
        ValueError: There is no such rank.
        MismatchError: In eager code, on all ranks, before anything is sent: the lists or the roots differ.
        tf.errors.InvalidArgumentError: In a graph, on all ranks: the lists' lengths differ.

    Warns:
        RuntimeWarning: The list is empty, as that of a model or an optimizer is that is not built.
    """
    members = group_of(group, process_set)
    root = root_of("broadcast_variables", root_rank, members)
    variables = list_of("broadcast_variables", variables, "Give it model.weights.")
    for index, variable in enumerate(variables):
        if not hasattr(variable, "assign"):
            raise TypeError(
                f"[smdp] rank {members.rank}: broadcast_variables() takes a list of variables; number {index}"
                f" is {type(variable).__name__}. Give it model.weights, or the values of a dict; what is no"
                " variable has smdp.tensorflow.broadcast()."
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
        # In a graph of TensorFlow 1 calls into Python have no order but this.
        with tf.control_dependencies(before):
            value = tensor_of(variable, "broadcast_variables")
            label = f"variable {name_of(variable)!r}"
            sent = broadcast_labeled(value, root, members, label, name=place_in_list(index))
        assigned.append(variable.assign(sent))
        before = [sent]
    return None if tf.executing_eagerly() else only_to_be_run(tf.group(*before, *assigned))
