"""`smp.step`: runs a function once per microbatch, in the order of the schedule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from smdp.torch.model_parallel.job.ranks import pp_rank
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.modules.distributed_model import DistributedModel
from smdp.torch.model_parallel.training.microbatching import Slicer
from smdp.torch.model_parallel.training.step_output import gathered
from smdp.torch.pipelining.engine.recordings import code_of
from smdp.torch.pipelining.tensors.containers import map_tensors

_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def step(function: _Function) -> _Function: ...
@overload
def step(
    function: None = None,
    *,
    non_split_inputs: Collection[str] | None = None,
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Callable[[_Function], _Function]: ...


def step(
    function: Callable[..., Any] | None = None,
    *,
    non_split_inputs: Collection[str] | None = None,
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Any:
    """Decorates a function so that one call runs it for every microbatch, forward and backward.

    The function must call `model(...)`, with the DistributedModel, once. It calls `model.backward(loss)`
    instead of `loss.backward()`; without this call, or under `torch.no_grad()`, only the forward runs. Code
    around the model runs on every rank of the pipeline, with the correct values. The first call cuts the
    model, by the shapes of the first microbatch. When a call returns, `.grad` holds the mean gradient over
    microbatches and replicas.

    Tensors among the arguments are cut along axis 0, including those in lists, tuples, sets and mappings. All
    other arguments are passed unchanged. If the ranks of a pipeline pass different arguments, those of
    `pp_rank()` 0 are used: other ranks may pass empty tensors or None. The first step with a new combination
    of shapes and numbers is recorded, which takes several times as long as other steps. Pass a number that
    changes in every step as a tensor.

    Args:
        function: The function to decorate. Both `@smp.step` and `@smp.step(...)` work.
        non_split_inputs: Names of parameters that every microbatch gets whole.
        input_split_axes: The axis of each parameter that is not cut along axis 0, by name.
        detach_outputs: Whether returned tensors are detached, with one partition. With several partitions
            they always are.

    Returns:
        A function with the arguments of `function`. It returns a StepOutput in place of each tensor that
        `function` returns, and a list over microbatches in place of any other object, in the same structure.

    Raises:
        ValueError: Arguments cannot be cut, there is no DistributedModel, or the model cannot be split.
        RuntimeError: A step is called within a step.
    """
    if function is None:
        return functools.partial(
            step,
            non_split_inputs=non_split_inputs,
            input_split_axes=input_split_axes,
            detach_outputs=detach_outputs,
        )
    if not callable(function):
        raise ValueError(
            f"[smdp] smp.step got {type(function).__name__}; expected a function, or the keyword arguments"
            " non_split_inputs, input_split_axes and detach_outputs"
        )
    body = function
    slicer = Slicer(body, non_split_inputs or (), input_split_axes)

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        model = _model()
        model.check_not_in_step()
        given = functools.partial(slicer.given, args, kwargs, is_partial=pp_rank() > 0)
        agreed = model.agreed_inputs(code_of(body), slicer.name, given)
        parts = slicer.cut(agreed, state.cfg.microbatches)

        @functools.wraps(body)
        def program(part: Any) -> Any:
            return body(*part[0], **part[1])

        results = model.run_step(program, parts, is_training=torch.is_grad_enabled())
        if detach_outputs:
            results = map_tensors(Tensor.detach, results)
        return gathered(results)

    return run


def _model() -> DistributedModel:
    state.check_running()
    model: DistributedModel | None = state.model
    if model is None:
        raise ValueError(
            "[smdp] a step is called, but there is no smp.DistributedModel; wrap the model first, by"
            " model = smp.DistributedModel(model)"
        )
    return model
