"""The rule for a budget: measures modules in their first calls, and then recomputes as few as possible.

The first forward recomputes every module, which takes the least memory of all rules that need no costs. Each
call is timed, and the tensors that it would keep are counted. When all modules have been called, or at the
latest in the first backward, the modules to recompute are chosen, or a budget that is too small is refused.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from smdp._shown import counted
from smdp.torch.mesh.told_failures import tell_failure
from smdp.torch.recompute.budget import Cost, groups_within, least_budget
from smdp.torch.recompute.policies import Policy
from smdp.torch.recompute.recomputed_group import RecomputedGroup
from smdp.torch.recompute.rules import FixedRule

_log = logging.getLogger(__name__)
Groups = list[tuple[int, int]]


class BudgetRule:
    """Recomputes the modules for which a budget is met with the fewest seconds.

    Args:
        policy: The budget, for this process.
        modules: The modules, by name.
        argument: The argument with which the user set the policy, for errors.
        in_flight: Most calls of a module whose backward has not run yet: microbatches in a pipeline.
        agree: Returns the groups of the first of the ranks that must recompute the same modules, because
            these communicate. None: there are no such ranks.
    """

    def __init__(
        self,
        policy: Policy,
        modules: Mapping[str, nn.Module],
        *,
        argument: str = "policy",
        in_flight: float = 1,
        agree: Callable[[Any], Any] | None = None,
    ) -> None:
        self._policy = policy
        self._argument = argument
        self._modules = modules
        self._in_flight = in_flight
        self._agree = agree
        self._each = FixedRule()
        self._forget()

    def _forget(self) -> None:
        self._costs: dict[str, Cost] = {}
        self._kinds: dict[str, Any] = {}
        self._elements = 0
        self._chosen: dict[str, FixedRule] | None = None
        # Held while measuring, so that the address of a freed tensor is not taken for a known one.
        self._shared: dict[int, torch.UntypedStorage] = {}

    def run(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a call; see Rule."""
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(isinstance(leaf, FakeTensor) for leaf in leaves):  # a prediction, which computes nothing
            return call(*args, **kwargs)
        if name == next(iter(self._costs), name):  # the first module of a forward
            elements = sum(leaf.numel() for leaf in leaves)
            if elements > self._elements:
                self._forget()
                self._elements = elements
        if self._chosen is None and name not in self._costs:
            result = self._measured(name, call, args, kwargs, leaves)
            if len(self._costs) == len(self._modules):
                self._choose()
            return result
        # Before the choice, another forward has begun. After it, the first one had left this module out.
        if self._chosen is None or name not in self._costs:
            return self._each.run(name, call, args, kwargs)
        rule = self._chosen.get(name)
        return call(*args, **kwargs) if rule is None else rule.run(name, call, args, kwargs)

    def _measured(
        self, name: str, call: Callable[..., Any], args: Any, kwargs: Any, leaves: list[Tensor]
    ) -> Any:
        module = self._modules[name]
        own = {_address(tensor) for tensor in (*module.parameters(), *module.buffers())}
        kept: dict[int, torch.UntypedStorage] = {}

        def watch(tensor: Tensor) -> None:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage

        given = {_address(leaf): leaf.untyped_storage() for leaf in leaves}
        _synchronize(leaves)
        costs = self._costs

        def choose() -> None:
            if self._chosen is None and self._costs is costs:
                self._choose()

        begin = time.perf_counter()
        result = RecomputedGroup(watch=watch, before_again=choose).run(name, call, args, kwargs)
        _synchronize(leaves)
        seconds = time.perf_counter() - begin
        new = {key: storage for key, storage in given.items() if key not in self._shared}
        size = sum(
            storage.nbytes() for key, storage in kept.items() if key not in own and key not in self._shared
        )
        # What all modules get, such as a mask, is there in any case.
        self._shared |= {_address(leaf): given[_address(leaf)] for leaf in leaves if not leaf.requires_grad}
        self._costs[name] = Cost(seconds, size, sum(storage.nbytes() for storage in new.values()))
        self._kinds[name] = (
            type(module),
            tuple(leaf.shape for leaf in leaves),
            tuple(tensor.shape for tensor in module.parameters()),
        )
        return result

    def _choose(self) -> None:
        names, costs = list(self._costs), self._pooled()
        plain = round(self._in_flight * sum(cost.kept for cost in costs))
        budget = self._policy.bytes if self._policy.part is None else self._policy.part * plain
        assert budget is not None
        found = groups_within(costs, budget, self._in_flight)
        if self._agree is not None:
            found = self._agree(found)
        if found is None:
            least = least_budget(costs, self._in_flight)
            error = ValueError(
                f"[smdp] {self._argument} = {self._policy.name} cannot be met:"
                f" {counted(len(names), 'module')} keep {plain} bytes without recomputation, and at least"
                f" {least} with it, but {round(budget)} are allowed. Allow {least} bytes, use smaller batches"
                " or microbatches, or offload activations."
            )
            # Ranks whose inputs are smaller may meet it, and wait for this rank in backward.
            tell_failure(nn.ModuleList(self._modules.values()), error)
            raise error
        self._chosen = {}
        for begin, end in found:
            together = FixedRule(None)
            self._chosen |= dict.fromkeys(names[begin:end], together)
        self._shared.clear()
        _log.info(
            "[smdp] %s = %s: recomputing %d of %d modules, in %s: %s",
            self._argument,
            self._policy.name,
            len(self._chosen),
            len(names),
            counted(len(found), "group"),
            ", ".join(self._chosen) or "none",
        )

    def _pooled(self) -> list[Cost]:
        """Returns the costs with the median time of modules that do the same work."""
        times = defaultdict[Any, list[float]](list)
        for name, cost in self._costs.items():
            times[self._kinds[name]].append(cost.seconds)
        return [
            cost._replace(seconds=statistics.median(times[self._kinds[name]]))
            for name, cost in self._costs.items()
        ]


def is_budgeted(modules: Collection[nn.Module]) -> bool:
    """Returns whether a module follows a budget."""
    return any(isinstance(getattr(vars(each).get("forward"), "rule", None), BudgetRule) for each in modules)


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _synchronize(tensors: list[Tensor]) -> None:
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.synchronize(device)
