"""Computes an operation on the rank of its stage."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from torch import Tensor

from smdp.torch.pipelining.interpreter.execution_context import ExecutionContext
from smdp.torch.pipelining.interpreter.plan import Kind, Operation
from smdp.torch.pipelining.interpreter.refusals import add_place, check_gives_inputs
from smdp.torch.pipelining.tensors.containers import leaves_in, map_leaves, map_tensors, tensors_in
from smdp.torch.pipelining.tensors.random_streams import RandomStream
from smdp.torch.pipelining.tensors.values import value_of, weight_of
from smdp.torch.pipelining.units.observation import Observer, observed_modules
from smdp.torch.pipelining.units.unit_call import Unit
from smdp.torch.recompute.activation_checkpoints import outside_checkpoints, rule_of_units
from smdp.torch.recompute.rules import following

_NOTHING = contextlib.nullcontext()


class Computed(NamedTuple):
    """The results of an operation.

    Attributes:
        result: The return value.
        observed: (Name, output) of modules with hooks inside a unit.
        changed: The inputs that the operation changes in place, as they are afterwards.
        tensors: The tensors of all three, in the order of tensors_in().
        inputs: The inputs, in the order of leaves_in().
    """

    result: Any
    observed: list[tuple[str, Any]]
    changed: tuple[Any, ...]
    tensors: list[Tensor]
    inputs: list[Any]


def compute(
    operation: Operation,
    args: Any,
    kwargs: Any,
    call: Callable[..., Any],
    context: ExecutionContext,
    stream: RandomStream,
    *,
    is_recording: bool,
) -> Computed:
    """Computes an operation of this rank. This is a hot path: a replay may run thousands per second.

    Args:
        operation: The operation as planned.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        call: The function to run.
        context: Brings values from other stages.
        stream: The random numbers of the microbatch.
        is_recording: Whether the plan does not know yet which modules inside a unit have hooks.
    """
    inputs = local = leaves_in((args, kwargs))
    for leaf in inputs:
        value = value_of(leaf) if isinstance(leaf, Tensor) else None
        if value is not None and value.stage != operation.stage:
            args, kwargs = _localized((args, kwargs), operation, context)
            local = leaves_in((args, kwargs))
            break
    is_unit = operation.kind is Kind.UNIT
    if is_unit or operation.draws:
        stream.start(operation.name)
    observed: list[tuple[str, Any]] = []
    in_context: AbstractContextManager[None] = (
        context.computing(operation.stage) if context.postpones else _NOTHING
    )
    outside: AbstractContextManager[None] = _NOTHING
    if (rule := rule_of_units()) is not None:
        outside = outside_checkpoints()
        call = following(rule, operation.name, call) if is_unit else call
    try:
        with in_context, outside, context.saving(operation.stage):
            # Observers are expensive, so they are used only while recording or if the recording saw hooks.
            if not isinstance(operation.function, Unit) or not (operation.observed or is_recording):
                result = call(*args, **kwargs)
            else:
                with Observer(observed_modules(operation.function.module), is_silent=False) as observer:
                    result = call(*args, **kwargs)
                observed = observer.outputs
    except Exception as error:
        add_place(error, operation)
        raise
    if operation.same:
        check_gives_inputs(operation, result, local)
    known = {id(leaf) for leaf in local}
    tensors = tensors_in((result, observed)) if observed else tensors_in(result)
    needs_own = bool(operation.changes)
    for tensor in tensors:
        needs_own = needs_own or _is_known(tensor, known, is_unit)
    if needs_own:
        return _apart(operation, (result, observed), inputs, local)
    return Computed(result, observed, (), tensors, inputs)


def _localized(tree: Any, operation: Operation, context: ExecutionContext) -> Any:
    """Replaces the values of other stages by local copies."""
    place = -1

    def localized(leaf: Any) -> Any:
        nonlocal place
        place += 1
        value = value_of(leaf) if isinstance(leaf, Tensor) else None
        if value is None or value.stage == operation.stage:
            return leaf
        copy = context.bring(value, operation.stage)
        # Cloned, so that copies of other ranks stay unchanged and its gradient is that of the old contents.
        return copy.clone() if place in operation.changes else copy

    return map_leaves(localized, tree)


def _is_known(tensor: Tensor, inputs: set[int], is_unit: bool) -> bool:
    """Returns whether a tensor may belong to other code: it is an input, or a module may hold it."""
    if is_unit and tensor.is_leaf:
        return True
    return id(tensor) in inputs or value_of(tensor) is not None or weight_of(tensor) is not None


def _apart(operation: Operation, results: tuple[Any, Any], inputs: list[Any], local: list[Any]) -> Computed:
    """Returns views of tensors that belong to other code, so that marks on the results do not affect them."""
    known = {id(leaf) for leaf in local}
    is_unit = operation.kind is Kind.UNIT
    own: dict[int, Tensor] = {}
    for place in operation.changes:
        if isinstance(tensor := local[place], Tensor):
            is_everybodys = value_of(inputs[place]) is None
            own[id(tensor)] = tensor.view_as(tensor) if is_everybodys else tensor

    def apart(tensor: Tensor) -> Tensor:
        if id(tensor) not in own:
            is_known = _is_known(tensor, known, is_unit)
            own[id(tensor)] = tensor.view_as(tensor) if is_known else tensor
        return own[id(tensor)]

    changed = tuple(local[place] for place in operation.changes)
    result, observed, changed = map_tensors(apart, (*results, changed))
    return Computed(result, observed, changed, tensors_in((result, observed, changed)), inputs)
