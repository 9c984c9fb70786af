"""Compares how the ranks have created an optimizer before they divide its work."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from smdp.torch.data_parallel.averaged_gradients import AveragedGradients
from smdp.torch.mesh.agreement import on_every_rank

_Result = TypeVar("_Result")
_NOT_OPTIONS = ("params", "param_names")


def agreed(
    group: dist.ProcessGroup,
    feature: str,
    prepare: Callable[[], _Result],
    choices: Callable[[_Result], Sequence[str]],
) -> _Result:
    """Runs checks on every rank, and compares what the ranks have chosen. Collective.

    Args:
        group: The ranks that divide the work.
        feature: What the script has called, for the message.
        prepare: Checks what this rank was given.
        choices: Returns the choices of this rank as text, given what `prepare` has returned.

    Returns:
        What `prepare` has returned on this rank.

    Raises:
        Exception: The error of `prepare` on this rank.
        RuntimeError: `prepare` has raised an error only on other ranks.
        ValueError: The choices differ.
    """
    prepared: list[_Result] = []
    own: list[str] = []

    def digest() -> bytes:
        prepared.append(prepare())
        own.extend(choices(prepared[0]))
        return hashlib.sha256("\n".join(own).encode()).digest()

    digests = on_every_rank(digest, group)
    if len(set(digests)) > 1:
        ranks = dist.get_process_group_ranks(group)
        every = on_every_rank(lambda: own, group)
        place = next(place for place, each in enumerate(digests) if each != digests[0])
        pairs = zip_longest(every[0], every[place], fillvalue="nothing more")
        first, other = next(pair for pair in pairs if pair[0] != pair[1])
        raise ValueError(
            f"[smdp] {feature}: rank {ranks[0]} has {first}, and rank {ranks[place]} has {other}. Pass the"
            " same on all ranks."
        )
    return prepared[0]


def described(
    optimizer: Optimizer, groups: Sequence[Mapping[str, Any]], gradients: AveragedGradients
) -> list[str]:
    """Returns what must be the same on all ranks: the class, the parameters and the scalar options.

    Args:
        optimizer: The optimizer.
        groups: Its groups, or those that are added to it.
        gradients: The gradients that its model averages.
    """
    pairs = zip(gradients.parameters, gradients.registered, strict=True)
    name_of = {id(parameter): registered.name for parameter, registered in pairs}
    texts = [
        f"an optimizer of class {type(optimizer).__name__}",
        f"parameter groups of {[len(group['params']) for group in groups]} parameters",
    ]
    for number, group in enumerate(groups):
        for place, parameter in enumerate(group["params"]):
            texts.append(f"parameter {name_of[id(parameter)]!r} at place {place} of group {number}")
        for key in sorted(group.keys() - _NOT_OPTIONS):
            value = group[key]
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            if _is_scalar(value) or (isinstance(value, tuple | list) and all(map(_is_scalar, value))):
                texts.append(f"{key}={value!r} in group {number}")
    return texts


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | complex | str)
