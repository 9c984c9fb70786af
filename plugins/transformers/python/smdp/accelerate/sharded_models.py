"""Wraps models in smdp's ShardedDataParallel, and adapts an Accelerator to them."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.plugin_support import (
    GatheredStates,
    ProcessGroupSmdp,
    ShardedDataParallel,
    clip_grad_norm_,
    whole_values,
)


class ShardedModels:
    """Distributes the parameters of models over ranks, and lets their optimizers follow.

    Args:
        options: Keyword arguments of ShardedDataParallel.
        group: The ranks that train the models.
        dtype: The type in which units compute, if it is another one.
    """

    def __init__(
        self, options: Mapping[str, Any], group: ProcessGroupSmdp, dtype: torch.dtype | None
    ) -> None:
        self._options = options
        self._group = group
        self._dtype = dtype
        self._models: list[weakref.ref[ShardedDataParallel]] = []
        self._states: list[tuple[weakref.ref[Optimizer], GatheredStates]] = []

    def wrapper_of(self, model: nn.Module) -> ShardedDataParallel | None:
        """Returns the wrapper of a model, or a wrapper itself, or None if the model is not sharded."""
        for reference in self._models:
            wrapper = reference()
            if wrapper is not None and (model is wrapper or model is wrapper.module):
                return wrapper
        return None

    def shard(
        self, model: nn.Module, optimizers: Iterable[Optimizer] = (), **options: Any
    ) -> ShardedDataParallel:
        """Wraps a model, and gives its shards to optimizers that were created before.

        Args:
            model: The model, which is changed in place.
            optimizers: Optimizers that may have parameters of it.
            **options: Further arguments of ShardedDataParallel.

        Raises:
            ValueError: The model cannot be sharded, or an optimizer has made steps already.
        """
        with _following(model, list(optimizers)):
            wrapper = ShardedDataParallel(
                model, dtype=self._dtype, process_group=self._group, **self._options, **options
            )
        self._models.append(weakref.ref(wrapper))
        return wrapper

    def gather_states(self, optimizer: Optimizer) -> None:
        """Makes an optimizer of shards save and load whole states."""
        self._states.append((weakref.ref(optimizer), GatheredStates(optimizer)))

    def collect(self, is_writing: bool) -> None:
        """Collects the states of optimizers where they will be written. Collective.

        Args:
            is_writing: Whether this rank writes a checkpoint.
        """
        self._states = [pair for pair in self._states if pair[0]() is not None]
        for _, states in self._states:
            states.collect(is_kept=is_writing)

    def change(self, accelerator: Accelerator) -> None:
        """Makes an Accelerator unwrap, clip and save sharded models."""
        # The methods of the class, because the Trainer's plugins replace those of the object one by one.
        plain = type(accelerator)
        here = weakref.ref(accelerator)

        def unwrap_model(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
            wrapper = self.wrapper_of(model)
            inner = model if wrapper is None else wrapper.module
            return plain.unwrap_model(here(), inner, *args, **kwargs)

        def get_state_dict(model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
            wrapper = self.wrapper_of(model)
            if wrapper is None:
                found: dict[str, Any] = plain.get_state_dict(here(), model, unwrap)
                return found
            return whole_values(wrapper.module, is_kept=writes(accelerator))

        def clip(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
            return clip_grad_norm_(parameters, max_norm, norm_type)

        def load(models: list[Any], _: str) -> None:
            models[:] = [one if self.wrapper_of(one) is None else _InFiles(one) for one in models]

        accelerator.register_load_state_pre_hook(load)
        accelerator.unwrap_model = unwrap_model
        accelerator.get_state_dict = get_state_dict
        accelerator.clip_grad_norm_ = clip


class _InFiles:
    """A sharded model for safetensors, which finds tied parameters by the memory of their tensors."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Tensor]:
        """Returns a small tensor for each name, the same one for names of the same parameter."""
        made: dict[int, Tensor] = {}
        values = self._model.state_dict(keep_vars=True)
        return {name: made.setdefault(id(value), torch.empty(1)) for name, value in values.items()}

    def load_state_dict(self, state_dict: dict[str, Any], **options: Any) -> Any:
        """Loads whole tensors into the shards."""
        return self._model.load_state_dict(state_dict, **options)


def writes(accelerator: Accelerator) -> bool:
    """Returns whether this rank writes the checkpoints of an Accelerator."""
    everywhere = accelerator.project_configuration.save_on_each_node
    return bool(accelerator.is_local_main_process if everywhere else accelerator.is_main_process)


@contextlib.contextmanager
def _following(model: nn.Module, optimizers: list[Optimizer]) -> Iterator[None]:
    """Replaces the parameters of optimizers by those that the model has after the context.

    Raises:
        ValueError: An optimizer has a state of the parameters.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    places: list[tuple[dict[str, Any], list[Parameter | str]]] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if not any(id(one) in names for one in group["params"]):
                continue
            if optimizer.state:
                raise ValueError(
                    f"[smdp] shard_parameters: {type(optimizer).__name__} has made steps with the whole"
                    " parameters, and its state cannot follow them into shards. Create it again, and load its"
                    " state after prepare()."
                )
            places.append((group, [names.get(id(one), one) for one in group["params"]]))
    for group, _ in places:
        group["params"] = []  # so that whole parameters are freed one by one
    try:
        yield
    finally:
        made = dict(model.named_parameters())  # the old ones after an error
        for group, place in places:
            group["params"] = [made[one] if isinstance(one, str) else one for one in place]
