"""`smp.DistributedOptimizer`: an optimizer of the parameters that this rank holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from smdp.torch.model_parallel.job.collective_calls import meet
from smdp.torch.model_parallel.job.ranks import tp_size
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.modules.repartitioned_state import gathered, rejoined
from smdp.torch.model_parallel.tensor_parallelism.marks import check_not_replaced
from smdp.torch.model_parallel.training.loss_scaling import LossScaling
from smdp.torch.model_parallel.training.optimizer_parts import by_name, check_sizes, own_part, whole_state
from smdp.torch.model_parallel.training.shards_of_parameters import gathered_shards, own_shards
from smdp.torch.model_parallel.training.shards_of_state import (
    is_shard,
    joined,
    shard_of,
    shared_part,
    slices_of,
)
from smdp.torch.model_parallel.training.slices_of_optimizer import joined_optimizer, own_slices_of_optimizer
from smdp.torch.pipelining.tensors.values import weight_of
from smdp.torch.precision.mixed_precision import STATE
from smdp.torch.precision.precision_optimizer import PrecisionOptimizer

_PARTIAL = "_smp_is_partial"
# Key with the names of a part's parameters in the model, by group.
_PARAMETERS = "_smp_parameters"


def joined_part(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what local_state_dict() returns without shards, given the shards of all replicas.

    Args:
        shards: The shards of the slices in `slices_of()`, one of this rank's slice first.

    Raises:
        ValueError: The shards are not those of all replicas.
    """
    names = shards[0][_PARAMETERS]
    scale = {STATE: shards[0][STATE]} if STATE in shards[0] else {}
    return {**joined(shards, names), **scale, _PARTIAL: True, _PARAMETERS: names}


class DistributedOptimizer(LossScaling):
    """Wraps an optimizer of the model's parameters.

    The optimizer may be created before or after the model is wrapped or cut.

    When the model is cut, the parameters of other ranks are removed from the optimizer. On a rank without
    parameters, step() does nothing.

    This is the outermost link of a chain that continues with precision and the script's optimizer, which may
    be a link itself. With `shard_optimizer_state`, a `ShardedOptimizer` comes between precision and the
    script's optimizer once the model is cut. All ranks of a stage must then call `state_dict()` and
    `local_state_dict(gather_if_shard=True)` together; the first replica gets the result.

    Args:
        optimizer: A torch optimizer.
        static_loss_scale: With `fp16`, the number that losses are multiplied by.
        dynamic_loss_scale: With `fp16`, whether the loss scale changes with overflows instead.
        dynamic_loss_args: The arguments of `smdp.torch.DynamicLossScale`, in a dict.
        **more_loss_args: Further ones.

    Raises:
        ValueError: `optimizer` is not an optimizer, is already wrapped, or contains a parameter twice.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        static_loss_scale: float | None = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: Mapping[str, Any] | None = None,
        **more_loss_args: Any,
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
        check_not_replaced(given)
        super().__init__(PrecisionOptimizer(optimizer))
        self.set_loss_scale(
            static_loss_scale,
            is_dynamic=bool(dynamic_loss_scale),
            arguments={**(dynamic_loss_args or {}), **more_loss_args},
        )
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
            self.shard()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates this rank's parameters."""
        # With fp16, all ranks decide together whether a step is skipped.
        is_alone = not self.master_params_created
        if is_alone and not any(group["params"] for group in self.param_groups):
            return None
        if state.model is not None:
            state.model.finish_gradients()
        return super().step(closure)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters. With sharded state, all ranks of the job must call this.

        Raises:
            smdp.MismatchError: Another rank made a different call.
        """
        if self.sharded is not None and self._is_cut():
            meet("optimizer.add_param_group()")
        super().add_param_group(param_group)

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
        """Returns this rank's part of the state, with added keys `_smp_is_partial` and `_smp_parameters`.

        Args:
            gather_if_shard: With sharded state, whether the first replica gets the state of all replicas, and
                the others an empty dict. Otherwise each gets its own shard.
        """
        marks = {_PARTIAL: True, _PARAMETERS: self._own_names()}
        if self.sharded is not None and not gather_if_shard:
            names = {parameter: name for name, parameter in state.model.named_parameters()}
            return {
                **shard_of(self.sharded, names, state.running.mesh),
                **self._loss_scale_entry(),
                **marks,
            }
        found = self._gathered_state()
        return {} if found is None else {**found, **marks}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the whole model's optimizer, as torch would return it without smdp.

        All ranks of the model-parallel group must call this. If the state or the parameters are
        sharded, all ranks of the job must, and replicas other than the first get an empty dict.

        Raises:
            smdp.MismatchError: Another rank of the group made a different call.
            RuntimeError: Loading of a state is postponed until the model is cut.
        """
        if self._deferred is not None:
            raise RuntimeError(
                "[smdp] optimizer.state_dict() is called between load_state_dict() and the first step, which"
                " applies the loaded values; call it after that step"
            )
        has_slices = tp_size() > 1
        if self._is_cut() or has_slices or state.cfg.sharded_data_parallel_degree > 1:
            meet("optimizer.state_dict()")
        found = self._gathered_state()
        if found is None:
            return {}
        if has_slices:
            found = joined_optimizer(found, self.param_groups, state.running.mesh)
        if not self._is_cut():
            return found
        mine = {name: each for name, each in by_name(found, self._own_names()).items() if each is not None}
        whole = whole_state(gathered(mine), self._all_names(), found["param_groups"])
        return {**whole, **self._loss_scale_entry()}

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
        if is_shard(state_dict):
            state_dict = self._with_other_shards(state_dict)
        given = {key: value for key, value in state_dict.items() if key not in (_PARTIAL, _PARAMETERS)}
        if self._is_cut():
            saved = state_dict.get(_PARAMETERS)
            whole: Mapping[str, Any] | None = None
            if not state_dict.get(_PARTIAL):
                check_sizes(given, self._all_names())
                whole = by_name(given, self._all_names())
            elif saved is not None:
                is_own = saved == self._own_names()
                if not all(gathered(is_own)):
                    whole = rejoined(by_name(given, saved), is_own=is_own)
            if whole is not None:
                own = own_part(
                    whole, given["param_groups"], self.param_groups, self._all_names(), self._own_names()
                )
                given = {**own, **{key: given[key] for key in (STATE,) if key in given}}
        if tp_size() > 1:
            given = own_slices_of_optimizer(given, self.param_groups)
        if state.model is not None and state.model.shards is not None:
            given = own_shards(given, self.param_groups)
        self.inner.load_state_dict(given)

    def _gathered_state(self) -> dict[str, Any] | None:
        """Returns the state of this rank's parameters; of a sharded one on the first replica only."""
        if self.sharded is not None:
            self.sharded.consolidate()
            if state.running.mesh.replica > 0:
                return None
        found = dict(self.inner.state_dict())
        return found if state.model is None or state.model.shards is None else gathered_shards(found)

    def _with_other_shards(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the state that this shard forms with those that the other replicas load."""
        mesh = state.running.mesh
        shards: list[Any] = [None] * mesh.replicas
        dist.all_gather_object(shards, dict(own), group=mesh.group("rdp"))
        if len(slices_of(own)) > 1:
            parts: list[Any] = [None] * len(mesh.ranks("dp"))
            dist.all_gather_object(parts, shared_part(own), group=mesh.group("dp"))
            others = zip(mesh.ranks("dp"), parts, strict=True)
            shards += [each for rank, each in others if rank not in mesh.ranks("rdp")]
        return joined_part(shards)

    def _loss_scale_entry(self) -> dict[str, Any]:
        """Returns the entry of a state that has the loss scale, if there is one."""
        scaler = self.loss_scaler
        return {} if scaler is None else {STATE: scaler.state()}

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
