"""Optimizer steps in the next forward, which overlaps with the averaging of the remaining gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from torch import Tensor, nn
from torch.optim import Optimizer

from smdp.torch.data_parallel.distributed_data_parallel import DistributedDataParallel
from smdp.torch.forward_waits.forward_waits import ForwardWaits, default_units, end_at_exit
from smdp.torch.forward_waits.pending_watch import Words
from smdp.torch.process_group import completion
from smdp.torch.process_group.profiling import ranged
from smdp.torch.step_in_forward.deferred_optimizer import DeferredOptimizer
from smdp.torch.step_in_forward.pending_gradient import PendingGradient

_WORDS = Words(
    feature="StepInForward",
    event="its step",
    missed="their last step",
    cure="Pass units=[...] whose parameters are used only in their own forward.",
)


class StepInForward:
    """Starts the next forward before all gradients of a step are averaged.

    `backward()` no longer waits, `optimizer.step()` only records the step, and the parameters of each unit
    are stepped right before the unit's next forward, when their gradients are averaged. The gradients of the
    first layers, which backward produces last and the forward needs first, are sent before the others.
    Training gives the same bits.

    Optimizers must keep their state per parameter, as SGD, Adam, AdamW and RMSprop do. A parameter's `.grad`
    cannot be read until the parameter is stepped, so neither GradScaler nor clipping by the norm of all
    gradients is possible. `state_dict()` of the model and of the optimizers carries out all steps first. Call
    `settle()` before any other code that uses parameters between `step()` and the next forward, such as an
    average of weights, `copy.deepcopy` or `torch.save(model)`.

    If the network fails during a forward, some units have taken the last step and others have not. Continue
    from a checkpoint in a new process.

    Args:
        model: The wrapped model, on the CPU. The parameters of a unit may be used only in its forward.
        *optimizers: Optimizers of the model's parameters, without step hooks.
        units: Modules whose parameters are stepped together. Default: every element of the model's outermost
            ModuleLists and Sequentials. Parameters outside all units are stepped before the model's forward.

    Raises:
        ValueError: The model, an optimizer or a unit is not supported.

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
        self._is_over = True  # all gradients of the last backward are averaged
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(
                f"[smdp] StepInForward got a {type(model).__name__}, but needs a model wrapped in"
                " smdp.torch.DistributedDataParallel."
            )
        for optimizer in optimizers:
            if not isinstance(optimizer, Optimizer):
                raise ValueError(
                    f"[smdp] StepInForward got a {type(optimizer).__name__} in place of an optimizer. Pass"
                    " torch optimizers, and modules as units=[...]."
                )
            if getattr(optimizer, "needs_all_gradients", False):
                raise ValueError(
                    f"[smdp] StepInForward got a {type(optimizer).__name__}, which needs all gradients before"
                    " it updates any. Use it without StepInForward."
                )
        root = model.module
        chosen = default_units(root) if units is None else list(units)
        inside = {id(module) for module in root.modules()}
        for unit in chosen:
            if id(unit) not in inside:
                raise ValueError(
                    f"[smdp] StepInForward: units contains a {type(unit).__name__} that is not part of the"
                    " model. Pass submodules of the wrapped model."
                )
        self._names = {id(parameter): name for name, parameter in root.named_parameters()}
        self._hooks = model.gradient_hooks("StepInForward")
        self._parameters = self._hooks.parameters
        self._check(optimizers)
        self._held: dict[int, Tensor | None] = {}  # gradients that are still being averaged, by index
        self._placeholders = [PendingGradient(parameter) for parameter in self._parameters]
        self._waits = ForwardWaits(root, self._parameters, self._held, self._step, _WORDS, chosen)
        self._optimizers = [DeferredOptimizer(one, self.settle) for one in optimizers]
        self._waits.settle_before_saving((*model.modules(), *optimizers))
        self._hooks.deferral = self
        end_at_exit(self)

    def __del__(self) -> None:
        """Ends the step under way, which uses memory that this object holds."""
        if self._is_over:
            return
        with contextlib.suppress(Exception):
            if completion.is_current_thread():  # waiting here could block the thread that ends the step
                self._hooks.reducer.abort("a StepInForward was collected in the middle of a step")
            else:
                self.end()

    def settle(self) -> None:
        """Waits for all gradients and carries out the recorded steps.

        Raises:
            RuntimeError: An earlier error has kept some units from their step.
        """
        self._waits.settle()

    def hold(self) -> None:
        """Replaces the gradients of a backward that has just ended with placeholders."""
        self._is_over = False
        for optimizer in self._optimizers:
            optimizer.forget()
        for index, parameter in enumerate(self._parameters):
            self._held[index] = parameter.grad
            parameter.grad = self._placeholders[index]  # even if only other ranks have a gradient

    def end(self) -> None:
        """Waits until all gradients are averaged."""
        if not self._is_over:
            with ranged("wait for gradients"):
                self._hooks.reducer.wait()
            self._is_over = True

    def _check(self, optimizers: Iterable[Optimizer]) -> None:
        if self._hooks.deferral is not None or self._hooks.shards is not None:
            raise ValueError(
                "[smdp] this model is already in a StepInForward or a ShardedOptimizer. Create only one for a"
                " model."
            )
        for index, parameter in enumerate(self._parameters):
            if self._hooks.shared.others(index):
                raise ValueError(
                    f"[smdp] StepInForward: parameter {self._names[id(parameter)]!r} also belongs to"
                    " another wrapped model, from whose backward StepInForward would remove its gradient."
                    " Models that share parameters cannot use StepInForward."
                )
        averaged = {id(parameter) for parameter in self._parameters}
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for parameter in (one for group in groups for one in group["params"]):
            if id(parameter) not in averaged and parameter.requires_grad:
                name = self._names.get(id(parameter), f"of shape {tuple(parameter.shape)}")
                raise ValueError(
                    f"[smdp] StepInForward: an optimizer has parameter {name!r}, whose gradient the model"
                    " does not average. Use a separate optimizer for this parameter."
                )

    def _step(self, indices: list[int]) -> None:
        # Whether another rank has used a parameter is known only when the reducer's step has ended.
        if len(indices) == len(self._held) or any(self._held[index] is None for index in indices):
            self.end()
        left = {}  # the value of .grad after the step; None after zero_grad()
        for index in indices:
            if not self._is_over:
                with ranged("wait for gradients"):
                    self._hooks.reducer.wait_for(index)
            mean = self._hooks.deliver(index, self._held.pop(index))
            parameter = self._parameters[index]
            left[index] = mean if parameter.grad is self._placeholders[index] else parameter.grad
            parameter.grad = mean
        for optimizer in self._optimizers:
            optimizer.step(self._parameters[index] for index in indices)
        for index, grad in left.items():
            self._parameters[index].grad = grad
