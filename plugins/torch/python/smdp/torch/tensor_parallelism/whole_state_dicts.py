"""Makes a divided model accept the state dict of the whole one."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from smdp.torch.mesh.cuts import cut_of


def accept_whole_state(model: nn.Module) -> None:
    """Makes `load_state_dict()` of a model take this rank's slices of whole tensors.

    The model does this for all of its modules, because the module around a divided layer may hold one of its
    parameters, too.
    """
    model.register_load_state_dict_pre_hook(_take_slices)


def _take_slices(model: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    for name, own in model.named_parameters(remove_duplicate=False):
        given, cut = state_dict.get(prefix + name), cut_of(own)
        if cut is None or cut.slices is None or not isinstance(given, Tensor):
            continue
        if given.shape == cut.slices.shape and given.shape != own.shape:
            state_dict[prefix + name] = cut.slices.take(given)
