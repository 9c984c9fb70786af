"""Optimizer steps in the next forward, so that the rest of the gradients may still travel then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from smdp.torch.deferred_optimizer import DeferredOptimizer
from smdp.torch.distributed_data_parallel import DistributedDataParallel
from smdp.torch.pending_gradient import PendingGradient

_LISTS = (nn.ModuleList, nn.Sequential)


class StepInForward:
    """Lets the next forward begin before all gradients of a step are averaged.

    `backward()` then does not wait, `optimizer.step()` only notes what it would do, and each unit's
    parameters are stepped right before the unit's next forward, as soon as their means are there. The front
    layers' means, which backward produces last and the forward needs first, overtake the others. Training
    gives the same bits.

    What optimizers keep they must keep per parameter (SGD, Adam, AdamW, RMSprop, ...). Until it is stepped, a
    parameter's `.grad` cannot be read: there is no clipping by the norm of all gradients and no GradScaler.
    The `state_dict()` of model and optimizers carries all steps out first; whatever else looks at parameters
    between `step()` and the next forward calls settle() before.

    Args:
        model: On the CPU; parameters of its units are used in their unit's forward only.
        *optimizers: Of parameters of the model.
        units: Modules whose parameters are stepped together. Default: every element of the model's outermost
            ModuleLists and Sequentials. Parameters outside all units are stepped before the model's forward.

    Raises:
        ValueError: The model, an optimizer or a unit cannot be used so.

    Example:
        >>> model = smdp.torch.DistributedDataParallel(model)  # doctest: +SKIP
        >>> smdp.torch.StepInForward(model, optimizer)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        *optimizers: Optimizer,
        units: Iterable[nn.Module] | None = None,
    ) -> None:
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(
                f"[smdp] StepInForward got a {type(model).__name__}; it needs a model that"
                " smdp.torch.DistributedDataParallel has wrapped."
            )
        root = model.module
        chosen = _default_units(root) if units is None else list(units)
        inside = {id(module) for module in root.modules()}
        for unit in chosen:
            if id(unit) not in inside:
                raise ValueError(
                    f"[smdp] StepInForward: a {type(unit).__name__} of units= is no part of the model."
                )
        self._names = {id(parameter): name for name, parameter in root.named_parameters()}
        self._hooks = model.gradient_hooks()
        self._parameters = self._hooks.parameters
        self._check(optimizers)
        self._held: dict[int, Tensor | None] = {}  # by index: gradients that have not been handed back
        self._is_over = True  # all means of the last backward are there
        self._placeholders = [PendingGradient(parameter) for parameter in self._parameters]
        self._watch: _Watch | None = _Watch(self)  # of the first forward with something to do
        self._hook(root, chosen)
        self._optimizers = [DeferredOptimizer(one, self.settle) for one in optimizers]
        self._settle_before_saving(model, optimizers)
        self._hooks.deferral = self

    def settle(self) -> None:
        """Wait for all gradients and carry out the steps that were noted."""
        self._settle(range(len(self._parameters)))

    def hold(self) -> None:
        """Take over the gradients of a backward that has just ended, which are on their way."""
        self._is_over = False
        for optimizer in self._optimizers:
            optimizer.forget()
        for index, parameter in enumerate(self._parameters):
            self._held[index] = parameter.grad
            parameter.grad = self._placeholders[index]  # also where only other ranks have one

    def name_of_pending(self, tensor: Tensor) -> str | None:
        """Give the name of a parameter that has not been stepped yet; None if it is something else."""
        if any(self._parameters[index] is tensor for index in self._held):
            return self._names.get(id(tensor))
        return None

    def _check(self, optimizers: Iterable[Optimizer]) -> None:
        if self._hooks.deferral is not None:
            raise ValueError("[smdp] this model is in a StepInForward already.")
        averaged = {id(parameter) for parameter in self._parameters}
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for parameter in (one for group in groups for one in group["params"]):
            if id(parameter) not in averaged:
                name = self._names.get(id(parameter), f"of shape {tuple(parameter.shape)}")
                raise ValueError(
                    f"[smdp] StepInForward: an optimizer has parameter {name!r}, whose gradient the model"
                    " does not average. Give that one an optimizer of its own."
                )

    def _hook(self, root: nn.Module, units: Iterable[nn.Module]) -> None:
        index_of = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        taken: set[int] = set()
        for unit in units:
            indices = [index_of[id(one)] for one in unit.parameters() if id(one) in index_of]
            taken.update(indices)
            unit.register_forward_pre_hook(_before(self._settle, indices), prepend=True)
        rest = [index for index in range(len(self._parameters)) if index not in taken]
        root.register_forward_pre_hook(_before(self._begin_forward, rest), prepend=True)
        root.register_forward_hook(torch.compiler.disable(self._end_forward), always_call=True)

    def _settle_before_saving(self, model: DistributedDataParallel, optimizers: Iterable[Optimizer]) -> None:
        for module in model.modules():
            module.register_state_dict_pre_hook(lambda *_: self.settle())
            module.register_load_state_dict_pre_hook(lambda *_: self.settle())
        for optimizer in optimizers:
            optimizer.register_state_dict_pre_hook(lambda _: self.settle())
            optimizer.register_load_state_dict_pre_hook(lambda *_: self.settle())

    def _begin_forward(self, rest: Iterable[int]) -> None:
        self._settle(rest)
        if self._watch is not None and self._held and not self._watch.is_open:
            self._watch.open()

    def _end_forward(self, *_: Any) -> None:
        if self._watch is not None and self._watch.is_open:
            self._watch.close()
            self._watch = None

    def _settle(self, indices: Iterable[int]) -> None:
        mine = [index for index in indices if index in self._held]
        if not mine:
            return
        # Whether another rank has used a parameter is known last.
        if len(mine) == len(self._held) or any(self._held[index] is None for index in mine):
            self._end()
        with torch.no_grad(), torch._C.DisableTorchFunction():
            left = {}  # None after zero_grad()
            for index in mine:
                if not self._is_over:
                    self._hooks.reducer.wait_for(index)
                mean = self._hooks.deliver(index, self._held.pop(index))
                parameter = self._parameters[index]
                left[index] = mean if parameter.grad is self._placeholders[index] else parameter.grad
                parameter.grad = mean
            for optimizer in self._optimizers:
                optimizer.step(self._parameters[index] for index in mine)
            for index, grad in left.items():
                self._parameters[index].grad = grad

    def _end(self) -> None:
        if not self._is_over:
            self._hooks.reducer.wait()
            self._is_over = True


def _before(settle: Callable[[Iterable[int]], None], indices: list[int]) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        settle(indices)

    outside_graphs: Callable[..., None] = torch.compiler.disable(hook)
    return outside_graphs


def _default_units(root: nn.Module) -> list[nn.Module]:
    if isinstance(root, _LISTS):
        return list(root)
    return [unit for child in root.children() for unit in _default_units(child)]


class _Watch(TorchFunctionMode):
    """Sees that no parameter is used before it has been stepped."""

    def __init__(self, steps: StepInForward) -> None:
        self._steps = steps
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self.__enter__()

    def close(self) -> None:
        self.is_open = False
        self.__exit__(None, None, None)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") != "__get__":  # of shape, dtype and the like
            for value in (*args, *(kwargs or {}).values()):
                name = self._steps.name_of_pending(value) if isinstance(value, Tensor) else None
                if name is not None:
                    raise RuntimeError(
                        f"[smdp] StepInForward: {name!r} is used before its unit's forward, so before its"
                        " step. Give units= whose parameters nothing else uses."
                    )
        return func(*args, **(kwargs or {}))
