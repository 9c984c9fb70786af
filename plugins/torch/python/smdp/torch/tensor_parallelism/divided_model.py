"""The mesh of a model whose layers are divided."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from smdp.torch.mesh.cuts import cut_of, mark_cut
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.tensor_parallelism.layers.divided import Divided
from smdp.torch.tensor_parallelism.same_forwards import SameForwards
from smdp.torch.tensor_parallelism.same_parameters import SameParameters
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


def axis_of_model(model: nn.Module) -> TensorAxis | None:
    """Returns the axis over which a model is divided, or None."""
    return next((module.tensor_axis for module in model.modules() if isinstance(module, Divided)), None)


def join_mesh(model: nn.Module, mesh: ParallelMesh) -> None:
    """Makes a divided model use the groups of another mesh, whose tensor axis has the same ranks.

    The owner of the mesh must then see to it that ranks run the same forwards.
    """
    axis = axis_of_model(model)
    if axis is None:
        return
    assert axis.mesh.ranks("tp") == mesh.ranks("tp")
    axis.mesh = mesh
    for number, hook in list(model._forward_pre_hooks.items()):
        if isinstance(hook, SameForwards):
            hook.check_modules(model)
            del model._forward_pre_hooks[number]
            model._forward_pre_hooks_with_kwargs.pop(number, None)
    for number, after in list(model._forward_hooks.items()):
        if isinstance(after, SameParameters):
            del model._forward_hooks[number]
    for parameter in model.parameters():
        cut = cut_of(parameter)
        if cut is not None:
            mark_cut(parameter, replace(cut, mesh=mesh))
