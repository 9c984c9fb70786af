"""Messages for programs that cannot run in stages."""

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
    """Returns the message for an operation between units whose result has no shape before it has run."""
    who = "the model" if is_in_model else "the code around the model"
    if not error.needs_values:
        return f"[smdp] {who} runs {name} outside the modules that are never cut, which fails: {error}"
    fix = (
        "Move it into a module with parameters, which runs on one stage."
        if is_in_model
        else "Keep the shape independent of values: multiply by a mask, or use torch.where() or ignore_index."
    )
    return (
        f"[smdp] {who} runs {name} outside the modules that are never cut, and the shape of its result"
        f" depends on values that are on another rank ({error}). {fix}"
    )


def kept_text(name: str, units: Sequence[Unit], tensor: Tensor | None = None) -> str:
    """Returns the message for a tensor of another rank that no unit has returned.

    Args:
        name: The function that uses it.
        units: The units of other ranks, which may hold it.
        tensor: The tensor. None: any placeholder.
    """
    found = attributes_with_placeholders(dict.fromkeys(units), tensor)
    where = f" in {', '.join(map(repr, found))}" if found else ""
    if found and tensor is not None:
        return (
            f"[smdp] {name} uses a tensor that a module on another rank has kept{where} instead of returning"
            " it. Return the tensor from the module, so that it is sent."
        )
    return (
        f"[smdp] {name} uses a placeholder. It stands for a tensor that a module on another rank has"
        f" kept{where} instead of returning it, or for one in a cache outside modules (functools.lru_cache, a"
        " global dict) that was filled on a rank which does not compute the module. Return the tensor from"
        " the module, so that it is sent; keep such a cache in an attribute of each module."
    )


def foreign_weight_text(name: str, stage: int, weight: str, wording: Wording, *, is_in_model: bool) -> str:
    """Returns the message for an operation of a stage on a parameter that is only on other stages."""
    fix = (
        f"{wording.traced}, so that the split knows which stages use it."
        if is_in_model
        else "The code around the model runs on the stage where the model ends: leave a penalty on weights to"
        " the optimizer (weight_decay), or compute what needs the parameter in the model's forward."
    )
    return f"[smdp] {name} on stage {stage} uses parameter {weight!r}, which is not on that stage. {fix}"


def strange_weight_text(name: str, parameter: Tensor) -> str:
    """Returns the message for a parameter that does not belong to the split model."""
    return (
        f"[smdp] {name} uses a parameter, {text_of(parameter)}, that is not part of the split model: each"
        " rank would train its own copy. Make it a parameter of the model, or call requires_grad_(False) on"
        " it if it is not trained here."
    )


def check_gives_inputs(operation: Operation, result: Any, given: Any) -> None:
    """Raises if an operation that returned an input unchanged while recording now returns other contents.

    Other ranks continue with the input. A tensor with equal contents is accepted, because the result of
    contiguous() depends on strides.

    Raises:
        RuntimeError: The contents differ.
    """
    inputs, tensors = leaves_in(given), tensors_in(result)
    for index, place in operation.same:
        if tensors[index] is not inputs[place] and not torch.equal(tensors[index], inputs[place]):
            raise RuntimeError(
                f"[smdp] {operation.name} returns a new tensor, but returned its input unchanged in the first"
                " microbatch with these shapes; other ranks continue with the input. If a number decides"
                " this, such as a dropout probability that is raised from 0, keep it in a float attribute of"
                " the module, or pass the step an argument that tells the two cases apart."
            )


def outliving_text(name: str, target: Tensor) -> str:
    """Returns the message for code around the model that adds a value with its graph to an older tensor."""
    return (
        f"[smdp] {name} writes a value of a pipeline stage with a gradient into {text_of(target)}, which"
        " existed before this microbatch, or was created by a constructor. Call detach() on the value, or"
        " create the tensor by torch.zeros() or a similar function within the step."
    )


def misplaced_text(name: str, wording: Wording) -> str:
    """Returns the message for backward() or register_hook() on a value of a stage."""
    if name == "backward":
        return (
            "[smdp] backward() was called on a value of a pipeline stage. The schedule runs the backward of"
            f" {wording.backward}."
        )
    return "[smdp] register_hook() was called on a value of a pipeline stage; put the hook on a module."


def add_place(error: Exception, operation: Operation) -> None:
    """Adds the place of an error in the user's code to the error."""
    if hasattr(error, "add_note"):  # from Python 3.11
        error.add_note(f"[smdp] in {operation.name!r} on stage {operation.stage}")
