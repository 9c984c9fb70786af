"""Averages gradients over RDP_GROUP or DP_GROUP, by the class of each parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from smdp.torch.data_parallel.distributed_data_parallel import DistributedDataParallel
from smdp.torch.mesh.averages import Average, average_of, mark_average
from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.modules.slice_averages import average_later, class_of
from smdp.torch.model_parallel.nn.distributed_module import DistributedModule


def classify(model: nn.Module, *, is_sharded: bool) -> None:
    """Marks over which axis the gradient of each parameter is averaged.

    Slices and parameters that see the samples of all ranks of a tensor-parallel group are averaged over
    RDP_GROUP, and all others over DP_GROUP.

    Args:
        model: The model.
        is_sharded: Whether gradients are sharded over RDP_GROUP, so that a `SliceAverages` does the rest.
    """
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            # A script's own class of distributed modules holds slices.
            is_own = isinstance(module, DistributedModule) and not type(module).__module__.startswith("smdp.")
            axis = "rdp" if cut_of(parameter) or is_own else class_of(parameter)
            if axis == "dp" and is_sharded:
                average_later(parameter)
            else:
                mark_average(parameter, axis)


def averaged_by_class(
    model: nn.Module, mesh: ParallelMesh, options: Mapping[str, Any]
) -> list[DistributedDataParallel]:
    """Returns what averages the gradients of a model. All ranks of the job call it together.

    Args:
        model: The model, whose parameters are marked.
        mesh: The ranks and groups.
        options: Options of DistributedDataParallel.

    Returns:
        One DistributedDataParallel per class of parameters, of which the last one calls the others.
    """
    found: list[DistributedDataParallel] = []
    call: Callable[..., Any] = model
    axes: tuple[Average, ...] = ("rdp", "dp")
    for axis in axes:
        own = {name for name, each in model.named_parameters() if average_of(each) == axis}
        trained = any(each.requires_grad for name, each in model.named_parameters() if name in own)
        if not trained or len(mesh.ranks(axis)) == 1:
            continue
        buffers = (name for name, _ in model.named_buffers() if axis == "rdp")
        ignored = [name for name, _ in model.named_parameters() if name not in own] + list(buffers)
        made = DistributedDataParallel(
            _View(model, call, ignored), process_group=mesh.step_group(axis), **options
        )
        mesh.abort_also(made, DistributedDataParallel._abort)
        found.append(made)
        call = made
    return found


class _View(nn.Module):
    """A module with the parameters of a model, which calls something else.

    Args:
        model: The model.
        call: What the forward calls.
        ignored: The names of parameters and buffers that are not averaged.
    """

    def __init__(self, model: nn.Module, call: Callable[..., Any], ignored: list[str]) -> None:
        super().__init__()
        self.__dict__ |= {name: vars(model)[name] for name in ("_modules", "_parameters", "_buffers")}
        self.__dict__["_call"] = call
        self._ddp_params_and_buffers_to_ignore = ignored
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)
