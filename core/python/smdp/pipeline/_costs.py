"""Validation of arguments: costs per virtual stage, lists of integers, names, and payloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import SupportsIndex

from smdp import _core
from smdp._arguments import integer as integer
from smdp._arguments import number as number
from smdp._arguments import text as text
from smdp._shown import shown

PerStage = float | Sequence[float]


def per_stage(name: str, value: PerStage, stages: int) -> list[float]:
    """Returns a list with one number per virtual stage.

    Raises:
        TypeError: The value is neither a number nor a sequence of numbers.
        ValueError: The sequence has a different length.
    """
    try:
        values = _numbers(name, value) if isinstance(value, Iterable) else [number(name, value)] * stages
    except TypeError:
        raise TypeError(
            f"[smdp] {name} = {shown(value)} is not valid; allowed: a number, or one number for each of "
            f"the {stages} virtual stages"
        ) from None
    if len(values) != stages:
        raise ValueError(
            f"[smdp] {name} is a list of {len(values)} numbers; allowed: one number for each of the {stages} "
            "virtual stages, or one number for all"
        )
    return values


def _numbers(name: str, values: Iterable[object]) -> list[float]:
    if isinstance(values, (str, bytes, Mapping, Set)):  # sets have no order; iterating a mapping yields keys
        raise TypeError
    return [number(name, value) for value in values]


def integers(name: str, values: Iterable[SupportsIndex], count: int | None = None) -> list[int]:
    """Returns a list of ints, of length `count` unless that is None.

    Raises:
        TypeError: The value is not a list of integers.
        ValueError: The length differs, or an integer is too large.
    """
    allowed = "integers" if count is None else f"{count} integers"
    try:
        found = list(values)
    except TypeError:
        raise TypeError(f"[smdp] {name} = {shown(values)} is not valid; allowed: {allowed}") from None
    if isinstance(values, (str, bytes)) or (count is not None and len(found) != count):
        raise ValueError(f"[smdp] {name} = {shown(values)} is not valid; allowed: {allowed}")
    return [integer(f"{name}[{index}]", value) for index, value in enumerate(found)]


def lists(name: str, values: Iterable[Iterable[SupportsIndex]], count: int | None = None) -> list[list[int]]:
    """Returns a list of lists of ints; see integers().

    Raises:
        TypeError: The value is not a list of lists of integers.
        ValueError: As in integers().
    """
    try:
        found = list(values)
    except TypeError:
        raise TypeError(
            f"[smdp] {name} = {shown(values)} is not valid; allowed: a list of lists of integers"
        ) from None
    return [integers(f"{name}[{index}]", value, count) for index, value in enumerate(found)]


def names(name: str, value: str | Iterable[str]) -> list[str]:
    """Returns a list of names, from a list or from a single name.

    Raises:
        TypeError: The value is neither a name nor a list of names.
        ValueError: As in text().
    """
    try:
        found = [value] if isinstance(value, str) else list(value)
    except TypeError:
        raise TypeError(f"[smdp] {name} = {shown(value)} is not valid; allowed: a list of names") from None
    return [text(f"{name}[{index}]", one) for index, one in enumerate(found)]


def payloads(name: str, value: Mapping[tuple[int, int], str]) -> list[tuple[int, int, str]]:
    """Returns the payloads of edges as (source, target, payload).

    Raises:
        TypeError: The value is not a mapping from pairs of integers to str.
        ValueError: As in integers() and text().
    """
    if not isinstance(value, Mapping):
        raise TypeError(
            f"[smdp] {name} = {shown(value)} is not valid; allowed: a mapping from (source, target) to str"
        )
    found = []
    for key, payload in value.items():
        source, target = integers(f"a key of {name}", key, 2)
        found.append((source, target, text(f"{name}[{shown(key)}]", payload)))
    return found


def make(
    stages: int,
    *,
    forward: PerStage,
    backward_input: PerStage,
    backward_weight: PerStage,
    activation_bytes: PerStage,
    stash_bytes: PerStage | None = None,
    receive_bytes: PerStage = 0.0,
    hop: float = 0.0,
    unshard: float = 0.0,
    reduce_grad: float = 0.0,
    reduce_tied: float = 0.0,
    reduce_norm: float = 0.0,
    offload: float = 0.0,
    reload: float = 0.0,
) -> _core.PipelineCosts:
    """Returns the core's costs; see simulate() for their meaning."""
    return _core.PipelineCosts(
        forward=per_stage("forward", forward, stages),
        backward_input=per_stage("backward_input", backward_input, stages),
        backward_weight=per_stage("backward_weight", backward_weight, stages),
        activation_bytes=per_stage("activation_bytes", activation_bytes, stages),
        stash_bytes=[] if stash_bytes is None else per_stage("stash_bytes", stash_bytes, stages),
        receive_bytes=[]
        if isinstance(receive_bytes, (int, float)) and receive_bytes == 0
        else per_stage("receive_bytes", receive_bytes, stages),
        hop=number("hop", hop),
        unshard=number("unshard", unshard),
        reduce_grad=number("reduce_grad", reduce_grad),
        reduce_tied=number("reduce_tied", reduce_tied),
        reduce_norm=number("reduce_norm", reduce_norm),
        offload=number("offload", offload),
        reload=number("reload", reload),
    )
