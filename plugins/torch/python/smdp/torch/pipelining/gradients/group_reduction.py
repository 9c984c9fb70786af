"""Gradients of one group of ranks, averaged by the core's reducer: in host memory and on GPUs alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp import _core
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.process_group.profiling import ranged
from smdp.torch.process_group.tensors import DTYPES


class GroupReduction:
    """Averages `.grad` of parameters over a group, each as soon as it is handed over.

    All ranks of the group make it together.

    Args:
        group: Ranks that hold the same parameters.
        parameters: (name, parameter), the same list on all of these ranks.
    """

    def __init__(self, group: ProcessGroupSmdp, parameters: Sequence[tuple[str, Parameter]]) -> None:
        self._parameters = list(parameters)
        described = [
            (name, parameter.numel(), DTYPES[parameter.dtype], _layout_of(parameter))
            for name, parameter in parameters
        ]
        self._reducer = _core.GradientReducer(group.core, described)
        # What the core reads and writes until the step ends: gradients, or dense copies of them.
        # Python deletes them after the reducer, which ends what is in flight.
        self._lent: dict[int, Tensor] = {}

    def hand_over(self, index: int) -> None:
        """Begins to average the gradient of a parameter, which is complete on the current stream.

        Args:
            index: Of the parameter.

        Raises:
            RuntimeError: The gradient is not one that can be averaged.
        """
        name, parameter = self._parameters[index]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided or gradient.dtype is not parameter.dtype:
            raise RuntimeError(
                f"[smdp] the gradient of parameter {name!r} is {gradient.dtype} with layout"
                f" {gradient.layout}, the parameter is {parameter.dtype} with layout {parameter.layout}."
                " Replicas of a pipeline average dense gradients of their parameters' dtypes: leave"
                " grad_dtype alone, and make embeddings with sparse=False."
            )
        # The order of elements in memory is that of the parameter, on all ranks, and so are their signs.
        if not _has_layout_of(gradient, parameter) or gradient.is_conj() or gradient.is_neg():
            gradient = torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(gradient)
        self._lent[index] = gradient
        if gradient.is_cuda:
            # The core waits for the event on a stream of its own, beside what the device computes next.
            event = torch.cuda.current_stream(gradient.device).record_event()
            self._reducer.ready(index, gradient.data_ptr(), gradient.device.index, event.cuda_event)
        else:
            self._reducer.ready(index, gradient.data_ptr())

    def finish(self) -> None:
        """Waits until all gradients are averages.

        The host does not wait until the averages have been copied back to a GPU; the current stream does.
        A parameter that has a gradient on another rank alone gets the mean as well.
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
        """Ends it on all ranks: they may wait for gradients of this one."""
        self._reducer.abort(reason)

    def _wait(self) -> None:
        devices = {gradient.device for gradient in self._lent.values() if gradient.is_cuda}
        if not devices:
            self._reducer.wait()
            return
        last = devices.pop()  # a rank of a pipeline rarely has another one
        for index, gradient in self._lent.items():
            if gradient.device in devices:
                stream = torch.cuda.current_stream(gradient.device)
                self._reducer.wait_for(index, gradient.device.index, stream.cuda_stream)
        self._reducer.wait(last.index, torch.cuda.current_stream(last).cuda_stream)

    def _read(self, index: int, parameter: Parameter) -> Tensor:
        # The core writes to memory of the host.
        mean = torch.empty_like(parameter, memory_format=torch.preserve_format, device="cpu")
        self._reducer.read(index, mean.data_ptr())
        return mean.to(parameter.device)


def _layout_of(parameter: Tensor) -> str:
    """Returns what ranks compare: elements are summed in the order in which they lie in memory."""
    steps = [step for step, extent in zip(parameter.stride(), parameter.shape, strict=True) if extent != 1]
    strides = "" if parameter.is_contiguous() else f" with strides {steps}"
    return f"{list(parameter.shape)}{strides}"


def _has_layout_of(gradient: Tensor, parameter: Tensor) -> bool:
    if gradient.is_contiguous() and parameter.is_contiguous():  # takes a tenth of the time of what follows
        return True
    return gradient.stride() == parameter.stride() and bool(
        torch.ops.aten.is_non_overlapping_and_dense(gradient)
    )
