"""The state dicts of a DistributedModel, before its model is cut and afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smdp.torch.model_parallel.job.collective_calls import meet
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.modules.distributed_parts import DistributedParts
from smdp.torch.model_parallel.modules.partitions import Partitions
from smdp.torch.model_parallel.modules.single_partition import SinglePartition
from smdp.torch.model_parallel.modules.whole_model import check_state

_PARTIAL = "_smp_is_partial"


class ModelState(DistributedParts):
    """Saves and loads. What is loaded before the model is cut, and cannot be copied yet, waits for that."""

    def __init__(self) -> None:
        super().__init__()
        self._deferred: list[tuple[Mapping[str, Any], bool, bool]] = []  # with strict and is_partial

    def local_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns this rank's part of the state dict; with the key `_smp_is_partial`."""
        return {**self._cut_body("local_state_dict()").local_state_dict(), _PARTIAL: True}

    def state_dict(self, *args: Any, gather_to_rank0: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Returns the whole model's state dict, under the names that it has without smdp.

        With several partitions, all ranks of the model-parallel group call it.

        Args:
            *args: As torch's, not used.
            gather_to_rank0: Others than the first rank of the group get an empty one.
            **kwargs: As torch's, not used.

        Raises:
            smdp.MismatchError: Another rank of the group has gone on to another call.
            RuntimeError: A part has been loaded, which arrives when the model is cut.
        """
        if self._body is None:
            if self._deferred:
                raise RuntimeError(
                    "[smdp] model.state_dict() is called between load_state_dict() and the first step, at"
                    " which loaded values arrive; call it after that step"
                )
            return dict(self._model.state_dict())
        if isinstance(self._body, Partitions):
            meet("model.state_dict()")
        return self._body.state_dict(to_first_only=gather_to_rank0)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, same_partition_load: bool = False
    ) -> Any:
        """Copies values into this rank's part of the model; when the model is cut, if they cannot be before.

        Args:
            state_dict: Of the whole model, or what local_state_dict() gave on this rank, wherever the model
                was cut then; with several partitions, all ranks of the model-parallel group load theirs.
            strict: Names must be those of the model.
            same_partition_load: Accepted.

        Raises:
            ValueError: A name or shape is wrong.
        """
        values = {name: value for name, value in state_dict.items() if name != _PARTIAL}
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
        """Takes over what was loaded before the model was cut."""
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
