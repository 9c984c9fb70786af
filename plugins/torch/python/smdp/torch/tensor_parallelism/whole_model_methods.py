"""Methods of whole models that would do something else to a divided one, and are errors there."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from smdp.torch.mesh.cuts import cut_of


def refuse_whole_model_methods(model: nn.Module) -> None:
    """Makes methods of transformers and peft that need whole tensors raise errors, or check what they get."""
    for module in list(model.modules()):
        own: Any = type(module)
        names = tuple(name for name in _METHODS if callable(getattr(own, name, None)))
        if names:
            changed: Any = module
            changed.__class__ = _derived(own, names)


def _resize_token_embeddings(self: Any, *args: Any, **kwargs: Any) -> Any:
    ends = [
        module
        for name in ("get_input_embeddings", "get_output_embeddings")
        if isinstance(module := getattr(self, name)(), nn.Module)
    ]
    if any(each is not None for each in (*args, *kwargs.values())):
        _refuse_if_divided(
            nn.ModuleList(ends),
            "resize_token_embeddings() cannot change embeddings that are divided over ranks",
            "Call it before tensor_parallel()",
        )
    return super(self._smdp_whole_model, self).resize_token_embeddings(*args, **kwargs)


def _save_pretrained(self: Any, *args: Any, **kwargs: Any) -> Any:
    # In transformers, the third argument.
    state = kwargs.get("state_dict", args[2] if len(args) > 2 else None)
    if not (isinstance(state, Mapping) and _is_whole(self, state)):
        _refuse_if_divided(
            self,
            "save_pretrained() would write this rank's slices",
            "Call smdp.torch.model_parallel.checkpoint.save_safetensors(path, model) on all ranks, and"
            " model.config.save_pretrained(path) on one. With LoRA, call merge_and_unload() before, or save"
            " all weights with checkpoint.save(path, model)",
        )
    return super(self._smdp_whole_model, self).save_pretrained(*args, **kwargs)


_METHODS = {"resize_token_embeddings": _resize_token_embeddings, "save_pretrained": _save_pretrained}


@functools.cache
def _derived(present: Any, names: tuple[str, ...]) -> Any:
    members: dict[str, Any] = {name: _METHODS[name] for name in names}
    members |= {"__module__": present.__module__, "__qualname__": present.__qualname__}
    made: Any = type(present.__name__, (present,), members)
    made._smdp_whole_model = made
    return made


def _refuse_if_divided(model: nn.Module, what: str, cure: str) -> None:
    for parameter in model.parameters():
        cut = cut_of(parameter)
        if cut is not None:
            shape = None if cut.slices is None else cut.slices.shape
            raise RuntimeError(
                f"[smdp] tensor_parallel: {what}: this rank has {tuple(parameter.shape)} of a parameter of"
                f" {shape}. {cure}."
            )


def _is_whole(model: nn.Module, state: Mapping[str, Any]) -> bool:
    """Returns whether a state dict has whole tensors under the names of divided parameters."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        cut, given = cut_of(parameter), state.get(name)
        whole = None if cut is None or cut.slices is None else cut.slices.shape
        if whole is not None and isinstance(given, Tensor) and given.shape != whole:
            return False
    return True
