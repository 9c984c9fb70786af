"""`horovod.common.util`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from smdp.compat.horovod.build import *  # noqa: F403


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether smdp works with a framework, "torch" or "tensorflow", that is installed."""
    return ext_base_name in ("torch", "tensorflow") and find_spec(ext_base_name) is not None


def check_extension(ext_name: str, *args: Any) -> None:
    """Nothing: smdp has no extension that is built for a framework."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework, "torch" or "tensorflow", has a GPU here."""
    if ext_base_name == "torch":
        import torch

        return bool(torch.cuda.is_available())
    if ext_base_name == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number is 1, 2, 4 and so on."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """Give so many parts of a list, the first of which have one more."""
    each, more = divmod(len(items), parts)
    begins = [part * each + min(part, more) for part in range(parts + 1)]
    return [items[begin:end] for begin, end in pairwise(begins)]


def is_iterable(value: Any) -> bool:
    """Whether it can be iterated over."""
    return isinstance(value, Iterable)
