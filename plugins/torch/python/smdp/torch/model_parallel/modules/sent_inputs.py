"""Sends the arguments of a step from the first stage of a pipeline to the others."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from smdp.torch.model_parallel.modules.input_digest import is_array, is_plain

# Objects of the script that every rank creates for itself. They are not inputs.
_OWN = (nn.Module, Optimizer, torch.amp.GradScaler, torch.Generator)


class _IsOwnError(Exception):
    """The argument contains an object that is not sent, because every rank has its own."""


@dataclass(frozen=True)
class _Layout:
    """The layout of a tensor that a receiver allocates."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    requires_grad: bool


def broadcast(arguments: Mapping[Any, Any], group: Any) -> tuple[dict[Any, Any], frozenset[Any]]:
    """Sends the arguments of the first rank of a pipeline to the others. All of its ranks must call this.

    Arguments that consist of tensors, containers and plain values are sent, and so are objects that contain
    tensors. Other objects, such as the model or an argparse.Namespace, are not sent, because every rank has
    its own.

    Args:
        arguments: This rank's arguments, by their place in the call.
        group: The ranks of the pipeline.

    Returns:
        The arguments of the first rank, and the places of those that are not sent. In these places the
        returned arguments contain those of this rank, if there are any.

    Raises:
        ValueError: An argument of the first rank contains tensors and cannot be pickled.
    """
    is_first = dist.get_rank(group) == 0
    tensors: list[Tensor] = []
    told: list[Any] = [None]
    if is_first:
        told = [_packed(arguments, tensors)]
    dist.broadcast_object_list(told, group=group, group_src=0)
    if isinstance(told[0], str):
        raise ValueError(told[0])
    packed, layouts = told[0]
    if not is_first:
        tensors = [_room(layout) for layout in layouts]
    for tensor in tensors:
        if tensor.numel() > 0:
            wire = _memory(tensor)
            dist.broadcast(wire, group=group, group_src=0)
    own = frozenset(place for place, data in packed.items() if data is None)
    if is_first:
        return dict(arguments), own
    for tensor, layout in zip(tensors, layouts, strict=True):
        tensor.requires_grad_(layout.requires_grad)
    found = {}
    for place, data in packed.items():
        if data is not None:
            found[place] = _Unpickler(io.BytesIO(data), tensors).load()
        elif place in arguments:
            found[place] = arguments[place]
    return found, own


def _packed(arguments: Mapping[Any, Any], tensors: list[Tensor]) -> Any:
    """Returns pickled arguments, or None for those that are not sent, and layouts; or an error message."""
    packed: dict[Any, bytes | None] = {}
    places: dict[int, int] = {}
    for place, value in arguments.items():
        file, before = io.BytesIO(), len(places)
        pickler = _Pickler(file, tensors, places)
        try:
            pickler.dump(value)
        except _IsOwnError:
            packed[place] = None
        except Exception as error:  # noqa: BLE001 - pickling runs code of any class
            if pickler.has_tensors:
                return (
                    "[smdp] the ranks of a pipeline passed different arguments to a step, so those of"
                    f" pp_rank 0 are used, but its argument {place[0]!r} contains tensors and cannot be"
                    f" pickled: {type(error).__name__}: {error}. Pass tensors in lists, tuples, dicts or"
                    " dataclasses, and other objects as separate arguments."
                )
            packed[place] = None
        else:
            is_input = pickler.has_tensors or is_plain(value) or isinstance(value, torch.device)
            packed[place] = file.getvalue() if is_input else None
        if packed[place] is None:
            # Tensors found only in this argument need not be sent.
            for identity in list(places)[before:]:
                del places[identity]
            del tensors[before:]
    return packed, [_layout_of(tensor) for tensor in tensors]


class _Pickler(pickle.Pickler):
    """Replaces tensors, which are sent separately, by references."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor], places: dict[int, int]) -> None:
        super().__init__(file)
        self._tensors = tensors
        self._places = places
        self.has_tensors = False

    def persistent_id(self, what: Any) -> Any:
        if isinstance(what, _OWN):
            raise _IsOwnError
        if isinstance(what, Tensor) or is_array(what):
            self.has_tensors = True
        if type(what) is Tensor and what.layout is torch.strided:
            if id(what) not in self._places:
                self._places[id(what)] = len(self._tensors)
                self._tensors.append(what)
            return "tensor", self._places[id(what)]
        if isinstance(what, torch.device):
            return "device", what.type
        return None


class _Unpickler(pickle.Unpickler):
    """Replaces references by the received tensors."""

    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, what: Any) -> Any:
        kind, value = what
        return self._tensors[value] if kind == "tensor" else _here(value)


def _here(kind: str) -> torch.device:
    """Returns this rank's device of a kind."""
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def _layout_of(tensor: Tensor) -> _Layout:
    # Only a dense tensor keeps its strides; any other one arrives contiguous.
    stride = torch.empty_like(tensor, device="meta").stride()
    return _Layout(tuple(tensor.shape), stride, tensor.dtype, tensor.device.type, tensor.requires_grad)


def _room(layout: _Layout) -> Tensor:
    return torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=_here(layout.device))


def _memory(tensor: Tensor) -> Tensor:
    """Returns the bytes of a tensor in memory order; of a copy if the tensor is not dense."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    stride = torch.empty_like(tensor, device="meta").stride()
    if tensor.stride() != stride:
        tensor = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(
            tensor
        )
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
