"""Torch functions by property: those that only query metadata, and those that read values on the host."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Placeholders answer these like tensors.
_PROPERTIES = (
    "shape dtype device layout requires_grad is_leaf ndim names is_cuda is_cpu is_sparse is_quantized is_meta"
    " is_mkldnn is_mps is_nested is_xla itemsize nbytes grad_fn output_nr _version"
)
_METHODS = (
    "size stride dim ndimension numel nelement element_size is_contiguous is_floating_point is_complex"
    " is_signed get_device storage_offset __hash__ __len__"
)

# Placeholders answer these like tensors. Not every version of torch has all of them.
METADATA: frozenset[Any] = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in _PROPERTIES.split() if hasattr(Tensor, name)),
        *(getattr(Tensor, name) for name in _METHODS.split()),
        torch.is_floating_point,
        torch.is_complex,
        torch.is_tensor,
        torch.numel,
        torch.is_storage,
    ]
)

# These need the contents on the host.
READS = frozenset(
    [
        "item",
        "tolist",
        "numpy",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__complex__",
        "__repr__",
        "__str__",
        "__format__",
        "__array__",
        "__contains__",
        "__deepcopy__",
        "__reduce_ex__",
        "is_nonzero",
        "equal",
        "allclose",
        "data_ptr",
    ]
)

# In-place operators such as x += y.
_AUGMENTED = frozenset(
    f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
)

# These write to their second and third argument without declaring it: the running mean and variance.
KEEPS_STATISTICS = frozenset(["batch_norm", "instance_norm"])

# Idempotent: applying one twice has no further effect.
BOUNDING = frozenset(["clamp", "clamp_min", "clamp_max", "clip", "nan_to_num"])

# With max_norm these bound the rows of their weight, which no backward needs.
LOOKUPS = frozenset(["embedding", "embedding_bag", "embedding_renorm"])


def name_of(function: Any) -> str:
    """Returns a function's name; for a property, the name of the attribute."""
    name = str(getattr(function, "__name__", function))
    if name == "__get__":
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return name


def is_in_place(name: str) -> bool:
    """Returns whether a method of this name changes its tensor."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name in _AUGMENTED


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppresses torch's log messages about operations that cannot run on fake tensors."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
