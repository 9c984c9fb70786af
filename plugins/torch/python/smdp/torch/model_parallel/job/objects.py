"""Conversion of objects to bytes. A tensor on a GPU arrives on the receiver's own GPU."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from smdp._shown import shown


def pack(what: Any, call: str) -> Tensor:
    """Returns an object as a uint8 tensor of shape [bytes].

    Raises:
        ValueError: The object cannot be pickled.
    """
    if type(what) is Tensor and what.layout is torch.strided:
        what = _without_rest(what)
    file = io.BytesIO()
    try:
        torch.save(what, file)
    except Exception as error:
        raise ValueError(
            f"[smdp] {call} got {shown(what)}, of type {type(what).__name__}, which cannot be pickled:"
            f" {type(error).__name__}: {error}"
        ) from error
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)


def unpack(data: Tensor, call: str) -> Any:
    """Returns the object that pack() converted. Use it only for data from this job's ranks: it may run code.

    Raises:
        ValueError: The object cannot be unpickled here, for example because its class cannot be imported.
    """
    try:
        return torch.load(io.BytesIO(data.numpy().tobytes()), map_location=_here, weights_only=False)
    except Exception as error:
        raise ValueError(
            f"[smdp] {call} cannot restore the object that it received: {type(error).__name__}: {error}. Its"
            " classes must be importable on all ranks."
        ) from error


def _without_rest(tensor: Tensor) -> Tensor:
    """Returns a view's elements without the rest of its storage, which would also be pickled."""
    if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size():
        return tensor
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _here(storage: Any, location: str) -> Any:
    is_there = location.startswith("cuda") and torch.cuda.is_available()
    return storage.cuda(torch.cuda.current_device()) if is_there else storage
