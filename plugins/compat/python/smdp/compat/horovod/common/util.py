"""`horovod.common.util`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from smdp.compat.horovod.build import *  # noqa: F403


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether a framework is installed and supported by smdp: "torch" or "tensorflow"."""
    return ext_base_name in ("torch", "tensorflow") and find_spec(ext_base_name) is not None


def check_extension(ext_name: str, *args: Any) -> None:
    """Does nothing: smdp has no extension that is built for a framework."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether the framework, "torch" or "tensorflow", sees a GPU in this process."""
    if ext_base_name == "torch":
        import torch

        return bool(torch.cuda.is_available())
    if ext_base_name == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    """Returns whether a number is a power of two: 1, 2, 4, and so on."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """Splits a list into `parts` parts. If they cannot be equal, the first ones have one item more."""
    each, more = divmod(len(items), parts)
    begins = [part * each + min(part, more) for part in range(parts + 1)]
    return [items[begin:end] for begin, end in pairwise(begins)]


def is_iterable(value: Any) -> bool:
    """Returns whether a value can be iterated over."""
    return isinstance(value, Iterable)
