"""Averages gradients over one group of ranks with the core's reducer, in host memory and on GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp import _core
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
    """

    def __init__(self, group: ProcessGroupSmdp, parameters: Sequence[tuple[str, Parameter]]) -> None:
        self._parameters = list(parameters)
        self._registered = [Registered(name, each.dtype, each.numel()) for name, each in parameters]
        self._reducer = _core.GradientReducer(
            group.core, described(self._registered, [each for _, each in parameters], sparse=())
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
            self._reducer.ready(index, gradient.data_ptr(), gradient.device.index, event.cuda_event)
        else:
            self._reducer.ready(index, gradient.data_ptr())

    def finish(self) -> None:
        """Waits until all gradients are averages.

        The host does not wait for averages to be copied back to a GPU; the current stream does. A parameter
        that has a gradient only on another rank also gets the mean.
        """
        self._reducer.finish()
        with ranged("wait for gradients"):
            self._wait()
        for index, (_, parameter) in enumerate(self._parameters):
            lent = self._lent.pop(index, None)
            if lent is None:
                if self._reducer.is_used(index):
                    parameter.grad = self._read(index, parameter)
            elif lent is not parameter.grad and parameter.grad is not None:
                parameter.grad.copy_(lent)

    def abort(self, reason: str) -> None:
        """Aborts the reduction on all ranks, which may be waiting for gradients of this one."""
        self._reducer.abort(reason)

    def _wait(self) -> None:
        devices = {gradient.device for gradient in self._lent.values() if gradient.is_cuda}
        if not devices:
            self._reducer.wait()
            return
        last = devices.pop()  # a rank of a pipeline rarely has a second device
        for index, gradient in self._lent.items():
            if gradient.device in devices:
                stream = torch.cuda.current_stream(gradient.device)
                self._reducer.wait_for(index, gradient.device.index, stream.cuda_stream)
        self._reducer.wait(last.index, torch.cuda.current_stream(last).cuda_stream)

    def _read(self, index: int, parameter: Parameter) -> Tensor:
        # The core writes to host memory.
        mean = torch.empty_like(parameter, memory_format=torch.preserve_format, device="cpu")
        self._reducer.read(index, mean.data_ptr())
        return mean.to(parameter.device)
