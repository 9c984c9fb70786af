"""A model's trace for the partitioner: its units in execution order, with times and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from smdp.torch.pipelining.analysis.sampled_trace import SampledTrace
from smdp.torch.pipelining.analysis.tracer import Tracer
from smdp.torch.pipelining.analysis.unit_traces import check_units


def trace(
    model: nn.Module,
    units: Sequence[str],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: Callable[[Any], Any] | None = None,
    repeats: int = 4,
) -> SampledTrace:
    """Runs one microbatch through a model's own forward and measures each unit's calls, one at a time.

    A real model's times are measured, on the inputs that a call got, so that no more than one unit's
    activations live. Calls of the same class and shapes have one time, the least of all their runs. There is
    one run of each call at least: calls lie apart, and what disturbs some does not disturb all. A model with
    meta parameters runs on fake tensors that take no memory, and times are estimated from operations and
    bytes at `clocks.FLOPS_PER_SECOND` and `BYTES_PER_SECOND`. A unit whose shapes depend on
    values, as those of experts may, cannot run so: it runs on random numbers, for which its own parameters,
    and no others, are in memory.

    The model's own operations on what units gave, and those of the loss function, are measured one by one and
    belong to the unit before them.

    Activation bytes are those of the distinct storages that autograd keeps of a call, and of the model's own
    operations from there to the next call, parameters and buffers excepted: the last unit's include those of
    a loss that the model computes. For cut bytes see ValueFlow. Further calls of a unit are units of their
    own, "name#2" and so on, tied to the first by all their parameters. A unit that is not called stands
    behind the one that is before it in `units`, without times.

    The model is left as it was: buffers, training flags, gradients; so are torch's random generators. A model
    in evaluation mode is traced in training mode.

    Args:
        model: Real or meta.
        units: As find_units() gives them.
        args: Of the model's forward: tensors with values, of one microbatch.
        kwargs: Of the model's forward.
        loss_fn: Called with the output, for its time and what it consumes; not for a model with meta
            parameters.
        repeats: Runs of a kind of call, unless it has more calls, after one of each call to warm up.

    Raises:
        SmdpError: A unit cannot run by itself, or the model's own code between units needs values that a meta
            model has not; the message names it.
        ValueError: `units` or `repeats` is wrong.
    """
    if not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"[smdp] repeats must be an integer of 1 or more, not {repeats!r}")
    check_units(model, units)
    tracer = Tracer(model, units, repeats)
    with tracer.prepared(), torch.no_grad():
        tracer.run(tuple(args), dict(kwargs or {}), loss_fn)
    return tracer.sampled(_microbatch_size((args, kwargs)))


def _microbatch_size(inputs: Any) -> int:
    """Returns the first dimension of the first tensor that has one."""
    sizes = (leaf.shape[0] for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim() > 0)
    return max(next(sizes, 1), 1)
