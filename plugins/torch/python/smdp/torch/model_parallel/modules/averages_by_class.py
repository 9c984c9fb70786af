"""Averages gradients over RDP_GROUP or DP_GROUP, by the class of each parameter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import nn

from smdp.torch.data_parallel.backward_gradients import BackwardGradients
from smdp.torch.data_parallel.distributed_data_parallel import DistributedDataParallel
from smdp.torch.mesh.averages import Average, average_of, mark_average
from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.modules.slice_averages import average_later, class_of
from smdp.torch.model_parallel.nn.distributed_module import DistributedModule
from smdp.torch.process_group.process_group import ProcessGroupSmdp


def classify(model: nn.Module, *, is_sharded: bool) -> None:
    """Marks over which axis the gradient of each parameter is averaged.

    Slices and parameters that see the samples of all ranks of a tensor-parallel group are averaged over
    RDP_GROUP, and all others over DP_GROUP.

    Args:
        model: The model.
        is_sharded: Whether parameters are sharded over RDP_GROUP, so that a `SliceAverages` does the rest.
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
    model: nn.Module, mesh: ParallelMesh, options: Mapping[str, Any], *, takes_all: bool = False
) -> dict[Average, DistributedDataParallel]:
    """Returns what averages the gradients of a model. All ranks of the job call it together.

    Args:
        model: The model, whose parameters are marked.
        mesh: The ranks and groups.
        options: Options of DistributedDataParallel.
        takes_all: Whether to include a class whose parameters have only one replica.

    Returns:
        One DistributedDataParallel per class of parameters, by the axis over which it averages them. The last
        one calls the others.
    """
    named = list(model.named_parameters())
    axes: tuple[Average, ...] = ("rdp", "dp")
    used = [
        axis
        for axis in axes
        if any(each.requires_grad for _, each in named if average_of(each) == axis)
        and (takes_all or len(mesh.ranks(axis)) > 1)
    ]
    found: dict[Average, DistributedDataParallel] = {}
    call: Callable[..., Any] = model
    for axis in used:
        ignored = [name for name, each in named if average_of(each) != axis]
        if axis != used[-1]:  # the ranks of the last one start with the same buffers
            ignored += [name for name, _ in model.named_buffers()]
        made = DistributedDataParallel(
            _View(model, call, ignored), process_group=mesh.step_group(axis), **options
        )
        mesh.abort_also(made, DistributedDataParallel._abort)
        found[axis] = made
        call = made
    return found


class AveragesByClass:
    """The `AveragingModel` whose classes of parameters are averaged over different groups.

    Args:
        averages: What `averaged_by_class()` returns.
        mesh: The ranks and groups.

    Attributes:
        module: The model itself.
    """

    def __init__(self, averages: Mapping[Average, DistributedDataParallel], mesh: ParallelMesh) -> None:
        self._averages = averages
        self._mesh = mesh
        self._last = list(averages.values())[-1]
        self.module = self._last.module

    @property
    def process_group(self) -> ProcessGroupSmdp:
        """The ranks that hold the same slices."""
        return self._mesh.group("rdp")

    @property
    def stage_group(self) -> ProcessGroupSmdp:
        """The ranks with all slices."""
        return self._mesh.group("dp")

    def averaged_gradients(self, feature: str, trained: Collection[nn.Parameter]) -> BackwardGradients:
        """Returns the gradients, with a list for each class."""
        # Norms and state are collected outside of steps, so a failed step must not close their groups.
        lists = [
            (each.gradient_hooks(feature, takes_momentum=True), self._mesh.group(axis))
            for axis, each in self._averages.items()
        ]
        return BackwardGradients(lists, self._last)


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
