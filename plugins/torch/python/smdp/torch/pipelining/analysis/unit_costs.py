"""Measures a call of a unit: seconds of its three passes, and the bytes kept from forward to backward."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from smdp.torch.pipelining.analysis.clocks import Clock, Reading, wall_clock, work_clock
from smdp.torch.pipelining.analysis.samples import Passes, Samples

# Objects of these types cannot be changed by a unit.
_CONSTANTS = (
    Tensor,
    torch.dtype,
    torch.device,
    torch.Generator,
    str,
    bytes,
    bool,
    int,
    float,
    complex,
    type(None),
)


@dataclass(frozen=True, slots=True)
class UnitCost:
    """The bytes that a call keeps from forward to backward, and its detached output."""

    activation_bytes: int
    output: Any


def measure(
    run: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    has_gradient: Callable[[Tensor], bool],
    parameters: Sequence[Tensor],
    resident: dict[int, torch.UntypedStorage],
    samples: Samples,
    repeats: int,
    clock: Clock = wall_clock,
) -> UnitCost:
    """Measures a unit's forward and backward in isolation, until its kind has enough samples.

    There is at least one run. The number of runs does not depend on the clock: a unit may communicate, so all
    ranks must run it equally often.

    Inputs that have a gradient are copied, so that a unit may change them in place. If torch cannot
    differentiate the unit by itself, as with reentrant checkpointing, each gradient is assumed to take as
    long as the forward.

    Args:
        run: The unit.
        args: Positional inputs.
        kwargs: Keyword inputs.
        has_gradient: Returns whether an input has a gradient.
        parameters: The parameters that the unit uses.
        resident: Storages, by `_cdata`, that are in memory in any case and do not count as activations, such
            as parameters and buffers. Kept inputs without a gradient are added, so that a mask counts once.
        samples: The samples of the unit's kind, to which this call adds its own.
        repeats: Number of measured runs that are enough for a kind. Before them, one run of each call warms
            up and counts bytes and operations. 0: only this run, for fake tensors.
        clock: The clock of the measured runs.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    activation_bytes, output, runs = 0, None, -1
    while runs < 0 or len(samples.times) < repeats or runs < min(repeats, 1):
        leaves: list[Tensor] = []

        def fresh(leaf: Any, leaves: list[Tensor] = leaves) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf if isinstance(leaf, _CONSTANTS) else _copied(leaf)
            if not (leaf.is_floating_point() or leaf.is_complex()) or not has_gradient(leaf):
                return leaf.detach()
            leaves.append(leaf.detach().requires_grad_())
            return leaves[-1].clone()

        with torch.enable_grad():
            inputs, options = tree_map(fresh, (args, kwargs))
            if runs < 0:
                kept: dict[int, torch.UntypedStorage] = {}
                with (
                    work_clock() as forward,
                    torch.autograd.graph.saved_tensors_hooks(_keep_in(kept), _give_back),
                ):
                    output = run(*inputs, **options)
                new = kept.keys() - resident.keys()
                activation_bytes = sum(kept[identity].nbytes() for identity in new)
                given = {_identity(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
                resident |= {identity: kept[identity] for identity in given & new}
                kept.clear()
                found = _backward(output, leaves, trained, work_clock, forward.seconds)
                samples.work.append(Passes(forward.seconds, *found))
            else:
                with clock() as forward:
                    output = run(*inputs, **options)
                found = _backward(output, leaves, trained, clock, forward.seconds)
                samples.times.append(Passes(forward.seconds, *found))
        output = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, output)
        runs += 1
    return UnitCost(activation_bytes, output)


def _backward(
    output: Any, leaves: list[Tensor], trained: list[Tensor], clock: Clock, forward_s: float
) -> tuple[float, float]:
    """Returns the seconds of the input gradient, and of both gradients."""
    outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not outputs or not leaves + trained:
        return 0.0, 0.0
    gradients = [torch.ones_like(each) for each in outputs]
    inward = both = Reading()
    try:
        if leaves:
            with clock() as inward:
                torch.autograd.grad(outputs, leaves, gradients, retain_graph=True, allow_unused=True)
        both = inward
        if trained:
            with clock() as both:
                found = torch.autograd.grad(outputs, leaves + trained, gradients, allow_unused=True)
                # Training adds each microbatch's gradients to .grad, so this addition is also measured.
                for parameter, gradient in zip(trained, found[len(leaves) :], strict=True):
                    if gradient is not None and gradient.layout is torch.strided:
                        gradient.add_(parameter.detach())
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return forward_s * bool(leaves), forward_s * (bool(leaves) + bool(trained))
    return inward.seconds, both.seconds


def _keep_in(kept: dict[int, torch.UntypedStorage]) -> Callable[[Tensor], Tensor]:
    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    return pack


def _identity(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _give_back(tensor: Tensor) -> Tensor:
    return tensor


def _copied(value: Any) -> Any:
    # Copied because a cache of keys and values would grow with each run.
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError):
        return value


def storages_of(tensors: Iterable[Tensor]) -> dict[int, torch.UntypedStorage]:
    """Returns the distinct storages of tensors, by their address in torch."""
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
