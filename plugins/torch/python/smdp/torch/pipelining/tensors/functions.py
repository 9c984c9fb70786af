"""Which functions of torch ask only for metadata, and which read values on the host."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# What placeholders answer as well as tensors do.
_PROPERTIES = (
    "shape dtype device layout requires_grad is_leaf ndim names is_cuda is_cpu is_sparse is_quantized is_meta"
    " is_mkldnn is_mps is_nested is_xla itemsize nbytes grad_fn output_nr _version"
)
_METHODS = (
    "size stride dim ndimension numel nelement element_size is_contiguous is_floating_point is_complex"
    " is_signed get_device storage_offset __hash__ __len__"
)

# What placeholders answer as well as tensors do; versions of torch differ in which there are.
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

# The host needs the contents.
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

# x += y and its kin.
_AUGMENTED = frozenset(
    f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
)

# Functions that write to their second and third argument and do not declare it: running mean and variance.
KEEPS_STATISTICS = frozenset(["batch_norm", "instance_norm"])

# Done twice they change nothing more.
BOUNDING = frozenset(["clamp", "clamp_min", "clamp_max", "clip", "nan_to_num"])

# With max_norm they bound the rows of their weight, which no backward needs.
LOOKUPS = frozenset(["embedding", "embedding_bag", "embedding_renorm"])


def name_of(function: Any) -> str:
    """Give a function's name; a property's is that of its attribute."""
    name = str(getattr(function, "__name__", function))
    if name == "__get__":
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return name


def is_in_place(name: str) -> bool:
    """Tell whether a method of this name changes its tensor."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name in _AUGMENTED


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keeps torch from logging which operations cannot run on fake tensors."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
