"""The state dicts of a DistributedModel, before and after its model is cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smdp.torch.model_parallel.job.collective_calls import meet
from smdp.torch.model_parallel.job.ranks import tp_size
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.modules.distributed_parts import DistributedParts
from smdp.torch.model_parallel.modules.partitions import Partitions
from smdp.torch.model_parallel.modules.sharded_partition import ShardedPartition
from smdp.torch.model_parallel.modules.single_partition import SinglePartition
from smdp.torch.model_parallel.modules.slices_of_state import own_slices
from smdp.torch.model_parallel.modules.whole_model import check_state

_PARTIAL = "_smp_is_partial"


class ModelState(DistributedParts):
    """Saves and loads state dicts. If they cannot be loaded before the model is cut, loading is postponed."""

    def __init__(self) -> None:
        super().__init__()
        self._deferred: list[tuple[Mapping[str, Any], bool, bool]] = []  # values, strict, is_partial

    def local_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns this rank's part of the state dict, with the additional key `_smp_is_partial`.

        With sharded data parallelism, this is the whole slice, and all ranks of the job must call this.
        """
        body = self._cut_body("local_state_dict()")
        if isinstance(body, ShardedPartition):
            meet("model.local_state_dict()")
        return {**body.local_state_dict(), _PARTIAL: True}

    def state_dict(self, *args: Any, gather_to_rank0: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Returns the whole model's state dict, with the names that it has without smdp.

        With several partitions, all ranks of the model-parallel group must call this; with sharded data
        parallelism, all ranks of the job.

        Args:
            *args: Ignored; accepted for compatibility with torch.
            gather_to_rank0: Whether only the first rank of the group gets the entries; the others get an
                empty dict.
            **kwargs: Ignored; accepted for compatibility with torch.

        Raises:
            smdp.MismatchError: Another rank of the group made a different call.
            RuntimeError: Loading of a state dict is postponed until the model is cut.
        """
        if self._body is None:
            if self._deferred:
                raise RuntimeError(
                    "[smdp] model.state_dict() is called between load_state_dict() and the first step, which"
                    " applies the loaded values; call it after that step"
                )
            return dict(self._model.state_dict())
        if isinstance(self._body, Partitions | ShardedPartition) or tp_size() > 1:
            meet("model.state_dict()")
        return self._body.state_dict(to_first_only=gather_to_rank0)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, same_partition_load: bool = False
    ) -> Any:
        """Copies values into this rank's part of the model, now or at the first step.

        Values are applied at the first step if the model is not cut yet, and they are a rank's part or the
        model's parameters have no values.

        Args:
            state_dict: The whole model's state dict, or one that local_state_dict() returned on this rank for
                any cut of the model. With several partitions, all ranks of the model-parallel group must load
                their own.
            strict: Whether the names must match those of the model.
            same_partition_load: Has no effect.

        Raises:
            ValueError: A name or shape is wrong.
        """
        values = {name: value for name, value in state_dict.items() if name != _PARTIAL}
        values = own_slices(values, self._model)
        is_partial = bool(state_dict.get(_PARTIAL))
        if self._body is not None:
            if is_partial and isinstance(self._body, Partitions):
                meet("model.load_state_dict()")
                values = self._body.rejoined(values)
            return self._body.load_state_dict(values, strict=strict)
        found = check_state(self._model, values, strict=strict, is_partial=is_partial)
        if is_partial or self._deferred or self._is_delayed():
            self._deferred.append((values, strict, is_partial))
        else:
            self._model.load_state_dict(values, strict=False)
        return found

    def _load_deferred(self) -> None:
        """Loads state dicts that were postponed until the model is cut."""
        deferred, self._deferred = self._deferred, []
        optimizers, state.uncut_optimizers = state.uncut_optimizers, []
        body = self._cut_body("load_state_dict()")
        for values, strict, is_partial in deferred:
            if is_partial and isinstance(body, Partitions):
                body.load_state_dict(body.rejoined(values), strict=strict)
            else:
                body.load_state_dict(values, strict=strict)
        for optimizer in optimizers:
            optimizer.load_deferred()

    def _cut_body(self, what: str) -> SinglePartition | Partitions:
        if self._body is None:
            raise RuntimeError(
                f"[smdp] {what} is called before the first step, which cuts the model; call it afterwards, or"
                " in a hook of register_post_partition_hook()"
            )
        return self._body

    def _is_delayed(self) -> bool:
        return any(parameter.is_meta for parameter in self._model.parameters())
