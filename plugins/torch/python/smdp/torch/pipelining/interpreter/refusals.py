"""What is said of programs that stages cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smdp.torch.pipelining.ghosts.ghosts import Unpredictable
from smdp.torch.pipelining.interpreter.plan import Operation
from smdp.torch.pipelining.tensors.containers import leaves_in, tensors_in
from smdp.torch.pipelining.tensors.values import text_of
from smdp.torch.pipelining.units.side_effects import attributes_with_placeholders
from smdp.torch.pipelining.units.unit_call import Unit
from smdp.torch.pipelining.units.wording import Wording


def unpredictable_text(name: str, error: Unpredictable, *, is_in_model: bool) -> str:
    """Give the text for an operation between units whose result has no shape before it has run."""
    who = "the model" if is_in_model else "the code around the model"
    if not error.needs_values:
        return f"[smdp] {who} does {name} outside the modules that are never cut, which fails: {error}"
    fix = (
        "Move it into a module with parameters that lies on one stage."
        if is_in_model
        else "Keep the shape: multiply by a mask, use torch.where() or ignore_index."
    )
    return (
        f"[smdp] {who} does {name} outside the modules that are never cut, and the shape of its result"
        f" depends on values, which are on another rank ({error}). {fix}"
    )


def kept_text(name: str, units: Sequence[Unit], tensor: Tensor | None = None) -> str:
    """Give the text for a tensor of another rank that no unit has returned.

    Args:
        name: What uses it.
        units: Of other ranks, in which it may be.
        tensor: The tensor; None: any placeholder.
    """
    found = attributes_with_placeholders(dict.fromkeys(units), tensor)
    where = f" in {', '.join(map(repr, found))}" if found else ""
    if found and tensor is not None:
        return (
            f"[smdp] {name} uses a tensor that a module of another rank has not returned but kept{where}."
            " Return it, so that it is sent."
        )
    return (
        f"[smdp] {name} uses a placeholder: of a tensor that a module of another rank has not returned but"
        f" kept{where}, or of one in a cache outside modules (functools.lru_cache, a global dict), which was"
        " filled where a module was not computed. Return the tensor, so that it is sent; keep such a cache in"
        " an attribute of each module."
    )


def foreign_weight_text(name: str, stage: int, weight: str, wording: Wording, *, is_in_model: bool) -> str:
    """Give the text for an operation of a stage on a parameter that only others have."""
    fix = (
        f"{wording.traced}, so that the split knows who uses it."
        if is_in_model
        else "The code around the model runs where the model ends: leave a penalty on weights to the"
        " optimizer (weight_decay), or compute what needs the parameter in the model's forward."
    )
    return f"[smdp] {name} on stage {stage} uses parameter {weight!r}, which is not on that stage. {fix}"


def strange_weight_text(name: str, parameter: Tensor) -> str:
    """Give the text for a parameter that is none of the split model's."""
    return (
        f"[smdp] {name} uses a parameter, {text_of(parameter)}, that the split model does not have: each rank"
        " would train a copy of its own. Make it a parameter of the model; or, if it is not trained here,"
        " requires_grad_(False)"
    )


def check_gives_inputs(operation: Operation, result: Any, given: Any) -> None:
    """Refuse other contents where an operation gave an input as it was when it was recorded.

    All ranks go on with the input. One with the same contents is as good: contiguous() depends on strides.

    Raises:
        RuntimeError: They are others.
    """
    inputs, tensors = leaves_in(given), tensors_in(result)
    for index, place in operation.same:
        if tensors[index] is not inputs[place] and not torch.equal(tensors[index], inputs[place]):
            raise RuntimeError(
                f"[smdp] {operation.name} gives another tensor than its input, which it gave as it was in the"
                " first microbatch of these shapes; other ranks go on with the input. Keep what decides it,"
                " such as a dropout probability that is raised from 0, in a float attribute of the module, or"
                " give the step an argument that says which"
            )


def outliving_text(name: str, target: Tensor) -> str:
    """Give the text for code around the model that adds a value with its graph to an older tensor."""
    return (
        f"[smdp] {name} writes a value of a pipeline stage with a gradient into {text_of(target)}, which was"
        " there before this microbatch, or made by a constructor: detach() it, or make the tensor by"
        " torch.zeros() and the like within the step"
    )


def misplaced_text(name: str, wording: Wording) -> str:
    """Give the text for backward() or register_hook() on a value of a stage."""
    if name == "backward":
        return (
            "[smdp] backward() was called on a value of a pipeline stage. The schedule runs the backward of"
            f" {wording.backward}."
        )
    return "[smdp] register_hook() was called on a value of a pipeline stage; put the hook on a module."


def add_place(error: Exception, operation: Operation) -> None:
    """Say of an error of the user's code where it happened."""
    if hasattr(error, "add_note"):  # from Python 3.11
        error.add_note(f"[smdp] in {operation.name!r} on stage {operation.stage}")
