"""Traces a model for the partitioner: its units in execution order, with times and bytes."""

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
    """Runs one microbatch through a model's own forward and measures each unit's calls one at a time.

    A model with real tensors is timed on the inputs of each call, so that the activations of at most one unit
    are in memory. Calls with the same classes and shapes share one time, the least of all their runs. Each
    call runs at least once: the calls lie apart in time, so a disturbance does not affect all of them.

    A model with meta parameters runs on fake tensors, which take no memory. Times are estimated from
    operations and bytes at `clocks.FLOPS_PER_SECOND` and `BYTES_PER_SECOND`. A unit whose shapes depend on
    values, as those of experts may, cannot run on fake tensors. It runs on random numbers, with only its own
    parameters in memory.

    The model's own operations on outputs of units, and those of the loss function, are measured one by one
    and added to the unit before them.

    Activation bytes are those of the distinct storages that autograd keeps for a call, and for the model's
    own operations between this call and the next, except parameters and buffers. Those of the last unit
    include a loss that the model computes. For cut bytes see ValueFlow. Further calls of a unit are units
    named "name#2" and so on, which share all their parameters with the first. A unit that is not called
    follows its predecessor in `units`, without times.

    The model's buffers, training flags and gradients, and torch's random generators, are restored. A model in
    evaluation mode is traced in training mode.

    Args:
        model: The model, with real or meta tensors.
        units: Names of units, as returned by find_units().
        args: Positional arguments of the model's forward for one microbatch; tensors must have values.
        kwargs: Keyword arguments of the model's forward.
        loss_fn: Called on the output, to measure its time and the values that it uses. Ignored for a model
            with meta parameters.
        repeats: Number of measured runs for each kind of call, after one warm-up run of each call. A kind
            with more calls than this has one measured run per call.

    Raises:
        SmdpError: A unit cannot run by itself, or the code between units of a meta model needs values; the
            message names it.
        ValueError: `units` or `repeats` is wrong.
    """
    if not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"[smdp] repeats must be an integer of at least 1, not {repeats!r}")
    check_units(model, units)
    tracer = Tracer(model, units, repeats)
    with tracer.prepared(), torch.no_grad():
        tracer.run(tuple(args), dict(kwargs or {}), loss_fn)
    return tracer.sampled(_microbatch_size((args, kwargs)))


def _microbatch_size(inputs: Any) -> int:
    """Returns the first dimension of the first tensor that has one, or 1."""
    sizes = (leaf.shape[0] for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim() > 0)
    return max(next(sizes, 1), 1)
