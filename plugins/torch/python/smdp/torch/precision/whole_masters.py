"""The update of 32-bit masters of a model's parameters on a rank that holds them as a whole."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.optimizers.step_part import has_step_hooks, step_part
from smdp.torch.sharding.kept_values import kept_values
from smdp.torch.sharding.master_parameters import LOW, MASTER, MasterParameters
from smdp.torch.sharding.per_tensor import updates_each_tensor_alone

# Of gradients with 32 bits at a time, unless a parameter is larger. These and the masters stay in a cache.
_MOST_BYTES = 1 << 20


class WholeMasters:
    """Updates a master of each 16-bit parameter, and rounds it into the parameter.

    The optimizer's groups have the parameters of the model, except while it steps, saves or loads. Its state
    belongs to the masters. Other parameters are updated themselves.

    A step is made for some parameters at a time, so that few gradients exist with 32 bits. The first step is
    made as a whole, to find out whether the optimizer keeps something for whole groups. Such an optimizer,
    one whose update of a tensor depends on others, and one with step hooks always step as a whole.

    Args:
        optimizer: The optimizer of the script.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._masters = MasterParameters(torch.float32)
        self._index: dict[Parameter, int] = {}
        self._numbers = itertools.count()
        self._made: dict[Parameter, Parameter] = {}
        self._known: int | None = None  # the number of parameters of the last step that was made as a whole
        self._is_per_group = False
        self.add_new()

    def add_new(self) -> None:
        """Makes masters of the parameters that the groups have and had not before, with their state."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in self._index or parameter.dtype not in LOW:
                    continue
                index = self._index[parameter] = next(self._numbers)
                (master,) = self._masters.pieces(index, [parameter.detach()], parameter.dtype)
                self._made[parameter] = master
                state = self._optimizer.state.pop(parameter, None)
                if state is not None:
                    self._optimizer.state[master] = {
                        key: each.float() if _is_like(each, parameter) else each
                        for key, each in state.items()
                        if key != MASTER
                    }

    def of(self, parameter: Parameter) -> Parameter:
        """Returns what the optimizer updates in place of a parameter."""
        return self._made.get(parameter, parameter)

    def keep(self, kept: Mapping[Parameter, Parameter]) -> None:
        """Drops the masters of parameters that an optimizer drops, and makes those of replacements."""
        for parameter, master in list(self._made.items()):
            replaced = kept.get(parameter)
            if replaced is parameter:
                continue
            del self._made[parameter], self._index[parameter]
            state = self._optimizer.state.pop(master, None)
            if replaced is not None and state is not None:
                self._optimizer.state[replaced] = state

    def step(self, factor: Tensor | None, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters that have a gradient.

        Args:
            factor: What gradients are multiplied by, with 32 bits; None: nothing.
            closure: Computes the gradients again, for an optimizer that calls it.

        Returns:
            What the optimizer's step has returned.
        """
        self.add_new()
        groups = self._optimizer.param_groups
        count = sum(len(group["params"]) for group in groups)
        if closure is not None or count != self._known or self._is_per_group:
            return self._step_whole(factor, closure, count)
        if has_step_hooks(self._optimizer):
            return self._step_whole(factor, None, count)
        self._step_in_parts(factor)
        return None

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimizer's state, with the masters under a key of their own once there was a step."""
        with self._in_groups():
            found = dict(self._optimizer.state_dict())
        if self._masters.have_changed:
            numbers = [number for group in found["param_groups"] for number in group["params"]]
            found["state"] = dict(found["state"])
            for number, parameter in zip(numbers, self._members(), strict=True):
                if parameter in self._made:
                    state = found["state"].get(number, {})
                    found["state"][number] = {**state, MASTER: self._made[parameter].detach()}
        return found

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Takes the state of an optimizer with or without masters.

        Raises:
            ValueError: The state is that of other parameters. Nothing is changed then.
        """
        self.add_new()
        sizes = [len(group["params"]) for group in self._optimizer.param_groups]
        theirs = [len(group["params"]) for group in given["param_groups"]]
        if sizes != theirs:
            raise ValueError(
                f"[smdp] MixedPrecision: the loaded state has parameter groups of {theirs} parameters, and"
                f" this optimizer of {sizes}. Create the optimizer with the same groups as when the state was"
                " saved."
            )
        numbers = [number for group in given["param_groups"] for number in group["params"]]
        masters: dict[Parameter, Tensor] = {}
        states = {number: dict(each) for number, each in given["state"].items()}
        for number, parameter in zip(numbers, self._members(), strict=True):
            saved = states.get(number, {}).pop(MASTER, None)
            if saved is not None and saved.shape != parameter.shape:
                raise ValueError(
                    f"[smdp] MixedPrecision: the state {MASTER!r} has shape {tuple(saved.shape)}, and its"
                    f" parameter has {tuple(parameter.shape)}. Load the state of an optimizer of the same"
                    " model."
                )
            if saved is not None:
                masters[parameter] = saved
            if not states.get(number, True):
                del states[number]  # of a parameter that has a master and no state
        with self._in_groups():
            self._optimizer.load_state_dict({**given, "state": states})
        with torch.no_grad():
            for parameter, index in self._index.items():
                self._masters.look_at(index, [parameter.detach()])
                self._masters.load(index, [self._made[parameter]], [masters.get(parameter)])
        self._masters.have_changed |= bool(masters)

    def state(self) -> dict[Any, Any]:
        """Returns the optimizer's state by the parameters of the model, with their masters."""
        of = {master: parameter for parameter, master in self._made.items()}
        found: dict[Any, Any] = {of.get(key, key): each for key, each in self._optimizer.state.items()}
        if self._masters.have_changed:
            for parameter, master in self._made.items():
                found[parameter] = {**found.get(parameter, {}), MASTER: master.detach()}
        return found

    def _members(self) -> list[Parameter]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _step_whole(self, factor: Tensor | None, closure: Callable[[], Any] | None, count: int) -> Any:
        before = None if self._is_per_group else kept_values(self._optimizer)
        members = self._members()
        own = [parameter.grad for parameter in members if parameter not in self._made]

        def again() -> Any:
            assert closure is not None
            self._round(members)
            with torch.enable_grad():
                loss = closure()
            self._give(members, factor)
            return loss

        if closure is None:
            self._give(members, factor)
        try:
            with self._in_groups():
                result = self._optimizer.step() if closure is None else self._optimizer.step(again)
            self._round(members)
        finally:
            self._take(members, own)
        if before is not None:
            is_kept = kept_values(self._optimizer) != before
            is_new = count != self._known
            self._is_per_group = is_kept or (is_new and not updates_each_tensor_alone(self._optimizer))
        self._known = count
        return result

    def _step_in_parts(self, factor: Tensor | None) -> None:
        groups = self._optimizer.param_groups
        part: list[tuple[int, Parameter]] = []
        size = 0
        for number, group in enumerate(groups):
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                part.append((number, parameter))
                size += 4 * parameter.numel()
                if size >= _MOST_BYTES:
                    self._step_part(part, factor)
                    part, size = [], 0
        if part:
            self._step_part(part, factor)

    def _step_part(self, part: list[tuple[int, Parameter]], factor: Tensor | None) -> None:
        groups = self._optimizer.param_groups
        lists: list[list[Parameter]] = [[] for _ in groups]
        for number, parameter in part:
            lists[number].append(self.of(parameter))
        members = [parameter for _, parameter in part]
        own = [parameter.grad for parameter in members if parameter not in self._made]
        self._give(members, factor)
        try:
            key = step_part(self._optimizer, self._optimizer.step, groups, lists)
            if key is not None:
                name = type(self._optimizer).__name__
                raise RuntimeError(
                    f"[smdp] {name} has changed the option {key!r} of a parameter group in step(), and not in"
                    " its first step, so this step has changed it several times. Let the first step() change"
                    " it as well, or register a step hook, with which smdp always updates all parameters"
                    " together."
                )
            self._round(members)
        finally:
            self._take(members, own)

    def _give(self, members: list[Parameter], factor: Tensor | None) -> None:
        for parameter in members:
            if parameter.grad is None:
                continue
            gradient, master = parameter.grad.detach(), self.of(parameter)
            if master is not parameter:
                self._follow(parameter, master)
                wide = gradient.to(master.dtype)
                master.grad = wide if factor is None else wide.mul_(factor.to(wide.device))
            elif factor is not None:
                parameter.grad = gradient * factor.to(gradient.device)

    def _follow(self, parameter: Parameter, master: Parameter) -> None:
        with torch.no_grad():
            index = self._index[parameter]
            self._masters.look_at(index, [parameter.detach()])
            self._masters.follow(index, [master])

    def _round(self, members: list[Parameter]) -> None:
        with torch.no_grad():
            for parameter in members:
                if parameter in self._made:
                    self._masters.have_changed = True
                    self._masters.round(self._index[parameter], [self._made[parameter]])

    def _take(self, members: list[Parameter], own: list[Tensor | None]) -> None:
        """Takes the gradients from the masters, and gives other parameters theirs back as they were."""
        rest = iter(own)
        for parameter in members:
            if parameter in self._made:
                self._made[parameter].grad = None
            else:
                parameter.grad = next(rest)

    @contextlib.contextmanager
    def _in_groups(self) -> Iterator[None]:
        """Puts the masters in place of the parameters into the groups of the optimizer."""
        of = {master: parameter for parameter, master in self._made.items()}
        for group in self._optimizer.param_groups:
            group["params"] = [self.of(each) for each in group["params"]]
        try:
            yield
        finally:
            # load_state_dict() replaces the groups.
            for group in self._optimizer.param_groups:
                group["params"] = [of.get(each, each) for each in group["params"]]


def _is_like(value: object, parameter: Parameter) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.shape == parameter.shape
