"""Averages gradients over one group of ranks with the core's reducer, in host memory and on GPUs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp import _core
from smdp.torch.data_parallel.gradient_takers import Shards
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.process_group.profiling import ranged
from smdp.torch.process_group.registered_parameters import (
    Registered,
    check_gradient,
    described,
    has_same_order,
)


class GroupReduction:
    """Averages `.grad` of parameters over a group, each as soon as it is handed over.

    All ranks of the group must create it together.

    Args:
        group: The ranks that hold the same parameters.
        parameters: (name, parameter), the same list on all of these ranks.
        scope: Who owns the averages: "none", "world" or "host"; see `_core.GradientReducer`.
        first: The index of the first of these parameters among those of `shards`.
        whole: Indices among those of `shards` of the parameters whose averages have one owner.

    Attributes:
        reducer: The core's reducer.
        shards: The object that owns pieces of the averages, or None if every rank gets all of them.
    """

    def __init__(
        self,
        group: ProcessGroupSmdp,
        parameters: Sequence[tuple[str, Parameter]],
        *,
        scope: str = "none",
        first: int = 0,
        whole: Collection[int] = (),
    ) -> None:
        self.shards: Shards | None = None
        self._first = first
        self._parameters = list(parameters)
        self._registered = [Registered(name, each.dtype, each.numel()) for name, each in parameters]
        self.reducer = _core.GradientReducer(
            group.core,
            described(self._registered, [each for _, each in parameters], sparse=()),
            shards=scope,
            whole=[index for index in range(len(parameters)) if first + index in whole],
        )
        # Gradients, or dense copies of them, which the core reads and writes until the step ends. Python
        # deletes this dict after the reducer, whose destructor ends all operations in flight.
        self._lent: dict[int, Tensor] = {}

    def hand_over(self, index: int) -> None:
        """Starts to average the gradient of a parameter, which is complete on the current stream.

        Args:
            index: Index of the parameter.

        Raises:
            RuntimeError: The gradient cannot be averaged.
        """
        name, parameter = self._parameters[index]
        gradient = parameter.grad
        assert gradient is not None
        if self.shards is not None:
            gradient = self.shards.contribution(gradient)
        if gradient.layout is not torch.strided or gradient.device.type not in ("cpu", "cuda"):
            raise RuntimeError(
                f"[smdp] the gradient of parameter {name!r} is {gradient.layout} on {gradient.device}, but a"
                " pipeline with replicas can average only dense gradients on CPUs and CUDA devices. Create"
                " embeddings with sparse=False."
            )
        check_gradient(self._registered[index], parameter, gradient)
        # Replicas average elements in memory order, which must be that of the parameter on all ranks.
        if not has_same_order(gradient, parameter) or gradient.is_conj() or gradient.is_neg():
            gradient = torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(gradient)
        self._lent[index] = gradient
        if gradient.is_cuda:
            # The core waits for the event on its own stream, in parallel with what the device computes next.
            event = torch.cuda.current_stream(gradient.device).record_event()
            self.reducer.ready(index, gradient.data_ptr(), gradient.device.index, event.cuda_event)
        else:
            self.reducer.ready(index, gradient.data_ptr())

    def finish(self) -> None:
        """Waits until all gradients are averages.

        The host does not wait for averages to be copied back to a GPU; the current stream does.
        """
        self.reducer.finish()
        with ranged("wait for gradients"):
            self._wait()

    def deliver(self) -> None:
        """Gives each parameter its average, even if only another rank has a gradient of it."""
        for index, (_, parameter) in enumerate(self._parameters):
            lent = self._lent.pop(index, None)
            if self.shards is not None:
                if self.reducer.is_used(index):
                    parameter.grad = self.shards.mean(self._first + index, lent)
            elif lent is None:
                if self.reducer.is_used(index):
                    parameter.grad = self._read(index, parameter)
            elif lent is not parameter.grad and parameter.grad is not None:
                parameter.grad.copy_(lent)

    def abort(self, reason: str) -> None:
        """Aborts the reduction on all ranks, which may be waiting for gradients of this one."""
        self.reducer.abort(reason)

    def _wait(self) -> None:
        devices = {gradient.device for gradient in self._lent.values() if gradient.is_cuda}
        if not devices:
            self.reducer.wait()
            return
        last = devices.pop()  # a rank of a pipeline rarely has a second device
        for index, gradient in self._lent.items():
            if gradient.device in devices:
                stream = torch.cuda.current_stream(gradient.device)
                self.reducer.wait_for(index, gradient.device.index, stream.cuda_stream)
        self.reducer.wait(last.index, torch.cuda.current_stream(last).cuda_stream)

    def _read(self, index: int, parameter: Parameter) -> Tensor:
        # The core writes to host memory.
        mean = torch.empty_like(parameter, memory_format=torch.preserve_format, device="cpu")
        self.reducer.read(index, mean.data_ptr())
        return mean.to(parameter.device)
