"""`smp.DistributedOptimizer`: an optimizer of the parameters that this rank holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from smdp.torch.model_parallel.job.collective_calls import meet
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.modules.repartitioned_state import gathered, rejoined
from smdp.torch.model_parallel.training.optimizer_parts import by_name, check_sizes, own_part, whole_state
from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.pipelining.tensors.values import weight_of
from smdp.torch.precision.precision_optimizer import PrecisionOptimizer

_PARTIAL = "_smp_is_partial"
# Key with the names of a part's parameters in the model, by group.
_PARAMETERS = "_smp_parameters"


class DistributedOptimizer(OptimizerLink):
    """Wraps an optimizer of the model's parameters.

    The optimizer may be created before or after the model is wrapped or cut.

    When the model is cut, the parameters of other ranks are removed from the optimizer. On a rank without
    parameters, step() does nothing.

    This is the outermost link of a chain that continues with precision and the script's optimizer, which may
    be a link itself.

    Args:
        optimizer: A torch optimizer.
        static_loss_scale: Has no effect, as in SMP without `fp16`, which is not supported yet.
        dynamic_loss_scale: Has no effect, like static_loss_scale.
        **dynamic_loss_args: Have no effect, like static_loss_scale.

    Raises:
        ValueError: `optimizer` is not an optimizer, is already wrapped, or contains a parameter twice.
    """

    inner: PrecisionOptimizer

    def __init__(
        self,
        optimizer: Optimizer,
        static_loss_scale: float | None = 1.0,
        dynamic_loss_scale: bool = False,
        **dynamic_loss_args: Any,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError("[smdp] this optimizer is already an smp.DistributedOptimizer")
        if not isinstance(optimizer, Optimizer):
            raise ValueError(
                f"[smdp] smp.DistributedOptimizer got {type(optimizer).__name__}; expected a"
                " torch.optim.Optimizer"
            )
        given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if len(set(given)) < len(given):
            raise ValueError(
                "[smdp] the optimizer contains a parameter twice, so its state cannot be saved by name; each"
                " parameter must be in it once"
            )
        # Sharding of the state will be another link, around the script's optimizer.
        super().__init__(PrecisionOptimizer(optimizer))
        self._names: list[list[str]] | None = None
        self._deferred: Mapping[str, Any] | None = None
        state.optimizer = self
        model = state.model
        if model is None or not model.partitioned:
            state.uncut_optimizers.append(self)
        else:
            own = set(model.parameters())
            kept = [each for each in given if each in own or weight_of(each) is None]
            self.keep_parameters({each: model.filled.get(each, each) for each in kept})

    @property
    def overflow(self) -> bool:
        """Whether the last step was skipped because of an fp16 overflow. fp16 is not supported yet."""
        return self.inner.overflow

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates this rank's parameters."""
        if not any(group["params"] for group in self.param_groups):
            return None
        return super().step(closure)

    def clip_master_grads(self, max_norm: float) -> Tensor:
        """Clips the norm of gradients over all partitions to `max_norm`; returns the norm before clipping."""
        pipe = state.model.pipe
        return self.inner.clip_master_grads(max_norm, state.model.parameters() if pipe is None else pipe)

    def keep_own(self, before: Mapping[nn.Parameter, str], own: Mapping[str, nn.Parameter]) -> None:
        """Removes the parameters of other ranks. The model calls this when it has been cut.

        Args:
            before: The names of all parameters, as the optimizer may contain them.
            own: The parameters that this rank keeps, by name; they may be new objects.
        """
        groups = [group["params"] for group in self.param_groups]
        self._names = [[before[each] for each in group if each in before] for group in groups]
        # Parameters that do not belong to the model stay; the script is responsible for them.
        others = {each: each for group in groups for each in group if each not in before}
        self.keep_parameters(others | {old: own[name] for old, name in before.items() if name in own})

    def take_filled(self, filled: Mapping[nn.Parameter, nn.Parameter]) -> None:
        """Replaces empty parameters by those with values. The model calls this when it is wrapped."""
        members = [parameter for group in self.param_groups for parameter in group["params"]]
        self.keep_parameters({each: filled.get(each, each) for each in members})

    def load_deferred(self) -> None:
        """Applies a state that was loaded before the model was cut. Called by the model after cutting."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            self._load(deferred)

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """Returns this rank's part of the state, with added keys `_smp_is_partial` and `_smp_parameters`."""
        return {**self.inner.state_dict(), _PARTIAL: True, _PARAMETERS: self._own_names()}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the whole model's optimizer, as torch would return it without smdp.

        With several partitions, all ranks of the model-parallel group must call this.

        Raises:
            smdp.MismatchError: Another rank of the group made a different call.
            RuntimeError: Loading of a state is postponed until the model is cut.
        """
        if self._deferred is not None:
            raise RuntimeError(
                "[smdp] optimizer.state_dict() is called between load_state_dict() and the first step, which"
                " applies the loaded values; call it after that step"
            )
        if not self._is_cut():
            return dict(self.inner.state_dict())
        meet("optimizer.state_dict()")
        names = self._all_names()
        mine = {
            name: self.inner.state.get(parameter)
            for name, parameter in state.model.named_parameters()
            if parameter in self.inner.state
        }
        return whole_state(gathered(mine), names, self.inner.state_dict()["param_groups"])

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads the state of the whole model or of this rank. Before the model is cut, loading is postponed.

        With several partitions, all ranks of the model-parallel group must call this.

        Raises:
            ValueError: The state has other groups or parameters.
        """
        is_partial = bool(state_dict.get(_PARTIAL))
        if not self._is_cut() and state.cfg.partitions > 1:
            if not is_partial:
                check_sizes(state_dict, [group["params"] for group in self.param_groups])
            self._deferred = dict(state_dict)
            return
        if self._is_cut():
            meet("optimizer.load_state_dict()")
        self._load(state_dict)

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        given = {key: value for key, value in state_dict.items() if key not in (_PARTIAL, _PARAMETERS)}
        if self._is_cut():
            saved = state_dict.get(_PARAMETERS)
            whole: Mapping[str, Any] | None = None
            if not state_dict.get(_PARTIAL):
                check_sizes(given, self._all_names())
                whole = by_name(given, self._all_names())
            elif saved is not None:
                part = by_name(given, saved)
                joined = rejoined(part, is_own=saved == self._own_names())
                whole = None if joined is part else joined
            if whole is not None:
                groups = given["param_groups"]
                given = own_part(whole, groups, self.param_groups, self._all_names(), self._own_names())
        self.inner.load_state_dict(given)

    def _own_names(self) -> list[list[str]]:
        """Returns the names of this rank's parameters, by group; "" for those that are not in the model."""
        own = {parameter: name for name, parameter in state.model.named_parameters()}
        return [[own.get(each, "") for each in group["params"]] for group in self.param_groups]

    def _all_names(self) -> list[list[str]]:
        """Returns the names of all ranks' parameters, by group, in the order of the optimizer."""
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
