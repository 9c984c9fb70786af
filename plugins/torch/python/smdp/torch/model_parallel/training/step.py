"""`smp.step`: a function that runs once per microbatch, in the order of the schedule."""

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
    """Make a function a step: one call runs it for every microbatch, forward and backward.

    In it, `model(...)` runs the DistributedModel, once, and `model.backward(loss)` takes the place of
    `loss.backward()`; without it, or under `torch.no_grad()`, only the forward runs. Code around the model
    runs on every rank of the pipeline and sees right values. The first call cuts the model, on the shapes of
    the first microbatch. When a call returns, `.grad` holds the mean over microbatches and replicas.

    Tensors among the arguments are cut along axis 0, also in lists, tuples, sets and mappings; all else is
    passed on. Where the ranks of a pipeline pass different arguments, those of `pp_rank()` 0 count: the
    others may pass empty tensors or None. Each combination of shapes and numbers is recorded once, which
    takes several times as long as a step: give a number that changes in every step as a tensor.

    Args:
        function: To be decorated; so `@smp.step` works, and `@smp.step(...)`.
        non_split_inputs: Names of parameters that stay whole.
        input_split_axes: Axes for parameters that are cut along another one, by name.
        detach_outputs: With one partition, returned tensors lose their graphs; with more, they always do.

    Returns:
        A function that returns a StepOutput for each tensor that `function` returns, a list over microbatches
        for anything else, in the same structure.

    Raises:
        ValueError: Arguments cannot be cut, there is no DistributedModel, or the model cannot be split so.
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
            f"[smdp] smp.step got {type(function).__name__}; allowed: a function, or the keyword arguments"
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
            "[smdp] a step is called, and there is no smp.DistributedModel; allowed: wrap the model first,"
            " model = smp.DistributedModel(model)"
        )
    return model
