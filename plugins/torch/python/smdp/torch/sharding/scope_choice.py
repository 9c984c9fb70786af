"""Decides which ranks share an optimizer's state: all of them, or those of each host."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn import Parameter

from smdp import _core, _kernel_files
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.sharding.master_parameters import MasterParameters
from smdp.torch.sharding.trial import StateKeys

_log = logging.getLogger("smdp.torch")
# The fraction of the available memory that the state may take; activations need the rest.
_MARGIN = 0.8
_UNKNOWN = 2**62


class Demand(NamedTuple):
    """What the optimizer updates and keeps, all ranks together.

    Attributes:
        parameters: Bytes of the parameters.
        state: Bytes of the state.
        is_overlapped: Whether parameters return during the next forward.
    """

    parameters: int
    state: int
    is_overlapped: bool


class Choice(NamedTuple):
    """A scope and the reason for it."""

    scope: str
    reason: str


def demand_of(
    parameters: Sequence[Parameter], keys: StateKeys, masters: MasterParameters, *, is_overlapped: bool
) -> Demand:
    """Returns what an optimizer needs for its parameters.

    Args:
        parameters: The parameters.
        keys: What it stores for each of them.
        masters: The copies that the optimizer updates in place of parameters.
        is_overlapped: Whether parameters return during the next forward.
    """
    state = sum(masters.state_bytes(one, len(keys.per_element)) for one in parameters)
    return Demand(sum(one.nbytes for one in parameters), state, is_overlapped)


def check_host_scope(hosts: Sequence[Sequence[int]]) -> None:
    """Checks that the ranks of each host can share the state.

    Raises:
        ValueError: There are several hosts, and one of them has a single rank.
    """
    fewest = min(map(len, hosts))
    if len(hosts) > 1 and fewest == 1:
        raise ValueError(
            f"[smdp] ShardedOptimizer: scope='host' divides the state by the ranks of a host, and of these"
            f" {len(hosts)} hosts one has a single rank, which would keep all of it. Use scope='world', or"
            " start several ranks on every host."
        )


def chosen(
    demand: Demand, hosts: Sequence[Sequence[int]], speed: tuple[float, float, float], available: int
) -> Choice:
    """Returns the scope with the shorter time between backward and the next forward whose state fits.

    Args:
        demand: What the optimizer needs.
        hosts: The ranks of each host.
        speed: What `GradientReducer.speed()` returns.
        available: Bytes of memory that the host with the least of it can still use.
    """
    count, local = len(hosts), min(map(len, hosts))
    if count == 1:
        return Choice("world", "all ranks are on one host")
    if local == 1:
        return Choice("world", f"one of {count} hosts has a single rank, which would keep all of the state")
    if demand.state > _MARGIN * available:
        return Choice(
            "world",
            f"a whole state of {demand.state / 1e6:.0f} MB on every host is more than {_MARGIN:g} of the"
            f" {available / 1e6:.0f} MB that are available",
        )
    latency, bandwidth, reduction = speed
    # An update reads parameters, their gradients, and the state.
    update = (2 * demand.parameters + demand.state) / reduction
    # Parameters return in one of the two hops of an all_reduce.
    gather = 0.0 if demand.is_overlapped else latency + demand.parameters / bandwidth / 2
    seconds = {"world": update / (count * local) + gather, "host": update / local}
    scope = min(seconds, key=lambda name: (seconds[name], name != "world"))
    other = "host" if scope == "world" else "world"
    return Choice(
        scope,
        f"between backward and the next forward, this takes about {1e3 * seconds[scope]:.1f} ms, and"
        f" {other!r} {1e3 * seconds[other]:.1f} ms",
    )


def choose(demand: Demand, group: ProcessGroupSmdp, reducer: _core.GradientReducer | None) -> str:
    """Returns the same scope on all ranks, and logs it once. Collective.

    Args:
        demand: What the optimizer needs.
        group: The ranks that average the gradients.
        reducer: Has measured the network; None: nothing is known of it, and all ranks share.
    """
    hosts = group.core.hosts
    if reducer is None:
        choice = Choice("world", "the model is a pipeline")
    else:
        found = _kernel_files.available_memory()
        least = torch.tensor([_UNKNOWN if found is None else found])
        dist.all_reduce(least, dist.ReduceOp.MIN, group=group)
        choice = chosen(demand, hosts, reducer.speed(), int(least))
    if group.rank() == 0:
        _log.info("[smdp] ShardedOptimizer: scope='auto' is %r: %s.", choice.scope, choice.reason)
    return choice.scope
