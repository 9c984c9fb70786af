"""Digests of the arguments of a step, which ranks compare instead of the arguments."""

from __future__ import annotations

import copyreg
import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.Size)


def digest(arguments: Any, *, with_contents: bool) -> bytes:
    """Returns a digest of containers, plain values, and shapes and dtypes of tensors.

    Other objects, such as a model or an argparse.Namespace, count only by their class, as each rank has its
    own.

    Args:
        arguments: The arguments of a step, in any structure.
        with_contents: Whether the contents of tensors and arrays also count.
    """
    found = hashlib.sha256()
    _add(arguments, found, with_contents)
    return found.digest()


def is_array(value: Any) -> bool:
    """Returns whether a value is a NumPy array or number."""
    return not isinstance(value, Tensor) and hasattr(value, "__array_interface__")


def is_plain(value: Any) -> bool:
    """Returns whether a value is a number, a string or similar, or a built-in container of only these."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(is_plain, value))
    if isinstance(value, Mapping):
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    return isinstance(value, _PLAIN)


def _add(value: Any, found: Any, with_contents: bool) -> None:
    kind = type(value)
    found.update(f"({kind.__qualname__}".encode())
    if isinstance(value, Tensor):
        found.update(f"{tuple(value.shape)} {value.dtype} {value.device.type}".encode())
        if with_contents and value.layout is torch.strided and not value.is_meta:
            whole = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
            found.update(whole.flatten().view(torch.uint8).numpy())
    elif is_array(value):
        found.update(f"{value.shape} {value.dtype}".encode())
        if with_contents and not value.dtype.hasobject:
            found.update(value.tobytes())
    elif isinstance(value, _PLAIN):
        found.update(repr(value).encode())
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(item, found, with_contents)
    elif isinstance(value, (set, frozenset)):
        # Digests are sorted, because the order of a set differs between processes.
        for each in sorted(digest(item, with_contents=with_contents) for item in value):
            found.update(each)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _add(key, found, with_contents)
            _add(item, found, with_contents)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _add(getattr(value, field.name), found, with_contents)
    elif callable(getattr(value, "smp_slice", None)):
        for name in (*getattr(value, "__dict__", ()), *copyreg._slotnames(kind)):  # type: ignore[attr-defined]
            found.update(name.encode())
            _add(getattr(value, name, None), found, with_contents)
    found.update(b")")
