"""What one call of a unit costs: seconds of its three passes, and the bytes kept from forward to backward."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

# A CPU core with AVX2, in fp32. Only proportions between units matter, and those of work to memory traffic.
FLOPS_PER_SECOND = 50e9
BYTES_PER_SECOND = 10e9

_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
# They read as much as they write, however large what they pick from.
_PICKING = {"embedding", "gather", "index", "index_select"}
# Nothing in these can change under a unit's hands.
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


@dataclass(slots=True)
class Reading:
    """What a clock shows."""

    seconds: float = 0.0


Clock = Callable[[], AbstractContextManager[Reading]]


@dataclass(frozen=True, slots=True)
class UnitCost:
    """Costs of a call, in the units of smdp.partition.Unit, and what it gave, detached."""

    forward: float
    backward_input: float
    backward_weight: float
    activation_bytes: int
    output: Any


@contextmanager
def wall_clock() -> Iterator[Reading]:
    """Measure the seconds that pass, the device's work included."""
    reading = Reading()
    _wait_for_device()
    begin = time.perf_counter()
    yield reading
    _wait_for_device()
    reading.seconds = time.perf_counter() - begin


@contextmanager
def estimate_clock() -> Iterator[Reading]:
    """Add up what operations would take at FLOPS_PER_SECOND and BYTES_PER_SECOND, one after the other."""
    reading = Reading()
    with _Work() as work:
        yield reading
    reading.seconds = work.flops / FLOPS_PER_SECOND + work.nbytes / BYTES_PER_SECOND


def measure(
    run: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    has_gradient: Callable[[Tensor], bool],
    parameters: Sequence[Tensor],
    resident: dict[int, torch.UntypedStorage],
    clock: Clock,
    repeats: int,
) -> UnitCost:
    """Run a unit's forward and backward by itself, some times, and give the least of each time.

    Inputs that have a gradient are copied, so that a unit may change them in place. The weight gradient takes
    what both gradients take less what the input gradient takes alone. Where torch cannot differentiate the
    unit by itself (reentrant checkpointing), either gradient counts as one forward.

    Args:
        run: The unit.
        args: Positional inputs.
        kwargs: Keyword inputs.
        has_gradient: Tells for which inputs there is a gradient.
        parameters: That the unit uses.
        resident: Storages, by `_cdata`, that are in memory anyway and are no activations: parameters and
            buffers. Inputs without a gradient that are kept are added: a mask counts at its first use.
        clock: Measures or estimates.
        repeats: After a first run that counts bytes and warms up; 0: that one counts.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    best = [math.inf] * 3
    activation_bytes, output = 0, None
    for repeat in range(repeats + 1):
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
            if repeat == 0:
                kept: dict[int, torch.UntypedStorage] = {}
                with clock() as forward, torch.autograd.graph.saved_tensors_hooks(_keep_in(kept), _give_back):
                    output = run(*inputs, **options)
                new = kept.keys() - resident.keys()
                activation_bytes = sum(kept[identity].nbytes() for identity in new)
                given = {_identity(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
                resident |= {identity: kept[identity] for identity in given & new}
                kept.clear()
            else:
                with clock() as forward:
                    output = run(*inputs, **options)
            times = forward.seconds, *_backward(output, leaves, trained, clock, forward.seconds)
        output = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, output)
        if repeat > 0 or repeats == 0:
            best = [min(pair) for pair in zip(best, times, strict=True)]
    forward_s, input_s, both_s = best
    return UnitCost(forward_s, input_s, max(both_s - input_s, 0.0), activation_bytes, output)


def _backward(
    output: Any, leaves: list[Tensor], trained: list[Tensor], clock: Clock, forward_s: float
) -> tuple[float, float]:
    """Give seconds of the input gradient, and of both gradients."""
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
                # As training does: microbatch after microbatch is added to .grad.
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
    # A cache of keys and values grows with each run.
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError):
        return value


def _wait_for_device() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


class _Work(TorchDispatchMode):
    """Counts operations and bytes; views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        packet = func.overloadpacket
        name = packet.__name__
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=result)
        elif name == _CPU_ATTENTION:
            self.flops += sdpa_flop_count(*(tensor.shape for tensor in args[:3]))
        elif name == f"{_CPU_ATTENTION}_backward":
            self.flops += sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4]))
        if not func.is_view and any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            touched = tree_leaves((result, result) if name in _PICKING else (args, kwargs, result))
            self.nbytes += sum(leaf.nbytes for leaf in touched if isinstance(leaf, Tensor))
        return result
