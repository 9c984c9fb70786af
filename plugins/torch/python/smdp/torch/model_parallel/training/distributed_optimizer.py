"""`smp.DistributedOptimizer`: an optimizer of the parameters that this rank keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from smdp.torch.model_parallel.job.collective_calls import meet
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.modules.repartitioned_state import gathered, rejoined
from smdp.torch.pipelining.tensors.values import weight_of
from smdp.torch.precision.clipping import clip_grad_norm_

_PARTIAL = "_smp_is_partial"
# Names in the model of a part's parameters, by group.
_PARAMETERS = "_smp_parameters"
# Optimizers that were made of named parameters keep the names beside them.
_NAMES = "param_names"


class DistributedOptimizer(Optimizer):
    """Wraps an optimizer made from the parameters of the model, before or after it was wrapped or cut.

    When the model is cut, the parameters of other ranks leave the optimizer. A rank with none left does
    nothing in step().

    Args:
        optimizer: Any of torch's kind.
        static_loss_scale: Goes with `fp16`, which comes later. It has no effect, as in SMP without fp16.
        dynamic_loss_scale: Likewise.
        **dynamic_loss_args: Likewise.

    Raises:
        ValueError: It is not an optimizer, is wrapped already, or has a parameter twice.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        static_loss_scale: float | None = 1.0,
        dynamic_loss_scale: bool = False,
        **dynamic_loss_args: Any,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError("[smdp] this optimizer is a smp.DistributedOptimizer already")
        if not isinstance(optimizer, Optimizer):
            raise ValueError(
                f"[smdp] smp.DistributedOptimizer got {type(optimizer).__name__}; allowed: a"
                " torch.optim.Optimizer"
            )
        given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if len(set(given)) < len(given):
            raise ValueError(
                "[smdp] the optimizer has a parameter twice, so its state has no names; allowed: each once"
            )
        # torch's own constructor would make groups and state of its own.
        self.__dict__["optimizer"] = optimizer
        self._names: list[list[str]] | None = None
        self._deferred: Mapping[str, Any] | None = None
        state.optimizer = self
        model = state.model
        if model is None or not model.partitioned:
            state.uncut_optimizers.append(self)
        else:
            own = set(model.parameters())
            kept = [each for each in given if each in own or weight_of(each) is None]
            self._keep({each: model.filled.get(each, each) for each in kept})

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the wrapped optimizer."""
        return list(self.optimizer.param_groups)

    @property
    def state(self) -> Any:
        """That of the wrapped optimizer."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:
        """Those of the wrapped optimizer."""
        return dict(self.optimizer.defaults)

    @property
    def overflow(self) -> bool:
        """Whether the last step was skipped for an overflow in fp16, which comes later."""
        return False

    def __getattr__(self, name: str) -> Any:
        """Give the wrapped optimizer's attributes."""
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update this rank's parameters."""
        if not any(group["params"] for group in self.param_groups):
            return None
        return self.optimizer.step() if closure is None else self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of gradients."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of this rank."""
        self.optimizer.add_param_group(param_group)

    def clip_master_grads(self, max_norm: float) -> Tensor:
        """Scale gradients so that their norm over all partitions is at most `max_norm`; gives the norm."""
        pipe = state.model.pipe
        return clip_grad_norm_(state.model.parameters() if pipe is None else pipe, max_norm)

    def keep_own(self, before: Mapping[nn.Parameter, str], own: Mapping[str, nn.Parameter]) -> None:
        """Drop the parameters of other ranks; the model calls it when it has been cut.

        Args:
            before: Names of all parameters, as the optimizer may have them.
            own: Those that this rank keeps, by name; they may be new objects.
        """
        groups = [group["params"] for group in self.param_groups]
        self._names = [[before[each] for each in group if each in before] for group in groups]
        # What is no parameter of the model stays: it is the script's own affair.
        others = {each: each for group in groups for each in group if each not in before}
        self._keep(others | {old: own[name] for old, name in before.items() if name in own})

    def take_filled(self, filled: Mapping[nn.Parameter, nn.Parameter]) -> None:
        """Takes parameters with values in place of empty ones; the model calls it when it is wrapped."""
        members = [parameter for group in self.param_groups for parameter in group["params"]]
        self._keep({each: filled.get(each, each) for each in members})

    def load_deferred(self) -> None:
        """Take over what was loaded before the model was cut; the model calls it when it has been."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            self._load(deferred)

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """Give this rank's part of the state; with the keys `_smp_is_partial` and `_smp_parameters`."""
        return {**self.optimizer.state_dict(), _PARTIAL: True, _PARAMETERS: self._own_names()}

    def state_dict(self) -> dict[str, Any]:
        """Give the state of the whole model's optimizer, as torch's without smdp would.

        With several partitions, all ranks of the model-parallel group call it.

        Raises:
            smdp.MismatchError: Another rank of the group has gone on to another call.
            RuntimeError: A state has been loaded, which arrives when the model is cut.
        """
        if self._deferred is not None:
            raise RuntimeError(
                "[smdp] optimizer.state_dict() is called between load_state_dict() and the first step, at"
                " which loaded values arrive; call it after that step"
            )
        if not self._is_cut():
            return dict(self.optimizer.state_dict())
        meet("optimizer.state_dict()")
        names = self._all_names()
        mine = {
            name: self.optimizer.state.get(parameter)
            for name, parameter in state.model.named_parameters()
            if parameter in self.optimizer.state
        }
        found: dict[str, Any] = {}
        for part in gathered(mine):
            for name, values in part.items():
                found.setdefault(name, values)
        place = {name: index for index, name in enumerate(name for group in names for name in group)}
        groups = self.optimizer.state_dict()["param_groups"]
        return {
            "state": {place[name]: found[name] for name in place if name in found},
            "param_groups": [
                {**group, "params": [place[name] for name in members], **_named(group, members)}
                for group, members in zip(groups, names, strict=True)
            ],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, whole or this rank's; before the model is cut, when it is.

        With several partitions, all ranks of the model-parallel group call it.

        Raises:
            ValueError: Its groups or parameters are others.
        """
        is_partial = bool(state_dict.get(_PARTIAL))
        if not self._is_cut() and state.cfg.partitions > 1:
            if not is_partial:
                _check_sizes(state_dict, [group["params"] for group in self.param_groups])
            self._deferred = dict(state_dict)
            return
        if self._is_cut():
            meet("optimizer.load_state_dict()")
        self._load(state_dict)

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        given = {key: value for key, value in state_dict.items() if key not in (_PARTIAL, _PARAMETERS)}
        if self._is_cut():
            saved = state_dict.get(_PARAMETERS)
            if not state_dict.get(_PARTIAL):
                names = self._all_names()
                _check_sizes(given, names)
                given = self._own_part(_by_name(given, names), given["param_groups"])
            elif saved is not None:
                part = _by_name(given, saved)
                whole = rejoined(part, is_own=saved == self._own_names())
                if whole is not part:
                    given = self._own_part(whole, given["param_groups"])
        self.optimizer.load_state_dict(given)

    def _own_part(self, whole: Mapping[str, Any], saved_groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
        lacking = [name for members in self._all_names() for name in members if name not in whole]
        if lacking or len(saved_groups) != len(self.param_groups):
            raise ValueError(
                f"[smdp] the optimizer's state has {len(saved_groups)} groups and {len(whole)} parameters,"
                f" and lacks {lacking[0] if lacking else 'a group'}; allowed: a state of the same model and"
                " groups, or the parts of all ranks"
            )
        groups, values, index = [], {}, 0
        for group, mine, members in zip(saved_groups, self.param_groups, self._own_names(), strict=True):
            for place, name in enumerate(members, index):
                if whole.get(name) is not None:
                    values[place] = whole[name]
            places = list(range(index, index + len(members)))
            groups.append({**group, "params": places, **_named(mine, mine.get(_NAMES, ()))})
            index += len(members)
        return {"state": values, "param_groups": groups}

    def _own_names(self) -> list[list[str]]:
        """Give the names of this rank's parameters, by group; "" for those that are none of the model."""
        own = {parameter: name for name, parameter in state.model.named_parameters()}
        return [[own.get(each, "") for each in group["params"]] for group in self.param_groups]

    def _all_names(self) -> list[list[str]]:
        """Give the names of all ranks' parameters, by group, in the order of the optimizer."""
        known = self._names or []
        later = self.param_groups[len(known) :]
        if later:
            own = {parameter: name for name, parameter in state.model.named_parameters()}
            mine = [[own[each] for each in group["params"] if each in own] for group in later]
            order = {
                name: index for index, (name, _) in enumerate(state.model.get_module().named_parameters())
            }
            parts = gathered(mine)
            self._names = known + [
                sorted({name for part in parts for name in part[index]}, key=order.__getitem__)
                for index in range(len(mine))
            ]
        return self._names or []

    def _is_cut(self) -> bool:
        return state.model is not None and state.model.pipe is not None

    def _keep(self, kept: Mapping[nn.Parameter, nn.Parameter]) -> None:
        for group in self.param_groups:
            members = group["params"]
            group["params"] = [kept[each] for each in members if each in kept]
            names = zip(group.get(_NAMES, ()), members, strict=False)
            group |= _named(group, [name for name, each in names if each in kept])
            for each in members:
                found = self.optimizer.state.pop(each, None)
                if found is not None and each in kept:
                    self.optimizer.state[kept[each]] = found


def _by_name(given: Mapping[str, Any], names: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Give the state of each parameter of the model, None where it has none."""
    return {
        name: given["state"].get(place)
        for group, members in zip(given["param_groups"], names, strict=True)
        for place, name in zip(group["params"], members, strict=True)
        if name
    }


def _check_sizes(whole: Mapping[str, Any], own: Sequence[Sequence[Any]]) -> None:
    sizes, wanted = [len(group["params"]) for group in whole["param_groups"]], [len(group) for group in own]
    if sizes != wanted:
        raise ValueError(
            f"[smdp] the optimizer's state has groups of {sizes} parameters, the optimizer of {wanted};"
            " allowed: a state of the same model and groups"
        )


def _named(group: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Give the names of a group's parameters, where it was made with names."""
    return {_NAMES: list(names)} if _NAMES in group else {}
