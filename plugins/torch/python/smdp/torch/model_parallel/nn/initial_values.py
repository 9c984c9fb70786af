"""Initial values of distributed modules: slices of what one process would draw."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from smdp.torch.mesh.averages import average_of, mark_average
from smdp.torch.mesh.cuts import cut_of, mark_cut
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


@contextlib.contextmanager
def same_random_numbers(axis: TensorAxis) -> Iterator[None]:
    """Makes all ranks of the axis draw the numbers of its first rank, on the CPU.

    Collective over the axis. If the ranks have different seeds, the others continue their own numbers
    afterwards, so `manual_seed(seed + smp.dp_rank())` and the same seed everywhere both work.
    """
    if axis.size == 1:
        yield
        return
    with _disable_current_modes():
        own = torch.get_rng_state()
        first = own.clone()
        dist.broadcast(first, axis.mesh.ranks("tp")[0], group=axis.group)
        is_same = torch.equal(own, first)
        if not is_same:
            torch.set_rng_state(first)
    try:
        yield
    finally:
        if not is_same:
            with _disable_current_modes():
                torch.set_rng_state(own)


def adopt(module: nn.Module, whole: Mapping[str, Tensor], *, are_trained: bool = True) -> None:
    """Fills a module on the meta device with its slices of whole tensors.

    Args:
        module: The module.
        whole: The whole tensors, by the names of its parameters. All of them are there.
        are_trained: Whether the parameters require a gradient.
    """
    made: dict[int, nn.Parameter] = {}
    for prefix, holder in module.named_modules():
        for name, parameter in holder._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                cut, given = cut_of(parameter), whole[f"{prefix}.{name}" if prefix else name].detach()
                value = given.clone() if cut is None or cut.slices is None else cut.slices.take(given)
                made[id(parameter)] = new = nn.Parameter(value, requires_grad=are_trained)
                if cut is not None:
                    mark_cut(new, cut)
                mark_average(new, average_of(parameter, "dp"))
            holder._parameters[name] = made[id(parameter)]
