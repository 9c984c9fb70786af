"""Autograd's side of the core's gradient reducer: hands gradients over as backward produces them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.nn import Parameter

from smdp import _core
from smdp.torch.profiling import ranged
from smdp.torch.tensors import DTYPES

# Who averages a parameter's gradient, by its id: a second one would sum the same memory at the same time.
_owners: dict[int, weakref.ref[GradientHooks]] = {}


class GradientHooks:
    """Averages `.grad` of parameters over a group at the end of every backward, while it runs.

    Args:
        group: The core's group.
        parameters: (name, parameter), the same list on all ranks; each requires a gradient and is on the CPU.
        is_wanted: Asked when a gradient appears; False leaves gradients alone (`no_sync`).
        compression: "none", "fp16", "bf16", "int8" or "topk".
        bucket_cap_mb: Most MiB of a fusion buffer.
        topk_ratio: Part of the gradient that "topk" sends.
        topk_momentum: Momentum correction of "topk".
        factor: Multiplies gradients before the sum; 0 gives the mean.

    Attributes:
        scale: Multiplies what comes of it, 1 at first.
    """

    def __init__(
        self,
        group: _core.Group,
        parameters: Sequence[tuple[str, Parameter]],
        is_wanted: Callable[[], bool],
        *,
        compression: str = "none",
        bucket_cap_mb: float = 25,
        topk_ratio: float = 0.01,
        topk_momentum: float = 0.0,
        factor: float = 0.0,
    ) -> None:
        self._parameters = [parameter for _, parameter in parameters]
        self._is_wanted = is_wanted
        self._has_come: set[int] = set()
        self._is_in_backward = False
        self._is_closed = False
        self.scale = 1.0
        # What the core writes to: the gradients themselves, or copies of those that are not dense.
        self._dense: dict[int, Tensor] = {}
        self.reducer = _core.GradientReducer(
            group,
            [(name, parameter.numel(), DTYPES[parameter.dtype]) for name, parameter in parameters],
            compression,
            int(bucket_cap_mb * (1 << 20)),
            factor,
            topk_ratio=topk_ratio,
            topk_momentum=topk_momentum,
        )
        for parameter in self._parameters:
            older = _owners.get(id(parameter), lambda: None)()
            if older is not None:
                older.close()
            _owners[id(parameter)] = weakref.ref(self)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(index))
            for index, parameter in enumerate(self._parameters)
        ]

    def close(self) -> None:
        """Take the hooks away; done when another one takes over a parameter."""
        self._is_closed = True
        for handle in self._handles:
            handle.remove()

    def check(self) -> None:
        """Ask before a forward whether gradients will be averaged.

        Raises:
            RuntimeError: The model has been wrapped again since.
        """
        if self._is_closed:
            raise RuntimeError(
                "[smdp] this model has been wrapped a second time, and its gradients are averaged there."
                " Use the newer wrapper."
            )

    def reduce_nothing(self) -> None:
        """Take part in one step without any gradient; what it gives is thrown away."""
        self.reducer.finish()
        self.reducer.wait()

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            if not self._is_wanted():
                return
            if not self._is_in_backward:
                self._is_in_backward = True
                Variable._execution_engine.queue_callback(self.finish)
            if index in self._has_come:
                raise RuntimeError(
                    "[smdp] a parameter got its gradient twice in one backward (reentrant checkpointing or a "
                    "shared graph: use torch.utils.checkpoint with use_reentrant=False), or the backward "
                    "before this one has failed half-way (start again from a checkpoint)."
                )
            self.hand_over(index, parameter)

        return ready

    def hand_over(self, index: int, parameter: Tensor) -> None:
        """Start averaging a gradient that is complete."""
        grad = parameter.grad
        assert grad is not None
        if grad.layout is not torch.strided:
            raise RuntimeError(
                "[smdp] a gradient is sparse (an embedding with sparse=True); smdp's DistributedDataParallel "
                "averages dense gradients only. Set sparse=False."
            )
        self._has_come.add(index)
        # The order of elements in memory is that of the parameter, on all ranks.
        if grad.stride() != parameter.stride() or not _is_dense(grad):
            self._dense[index] = grad = torch.empty_like(
                parameter, memory_format=torch.preserve_format
            ).copy_(grad)
        self.reducer.ready(index, grad.data_ptr())

    def finish(self) -> None:
        """Wait until the gradients that this backward has produced on any rank are averages."""
        self._is_in_backward = False
        try:
            with torch.no_grad():
                for index, parameter in enumerate(self._parameters):
                    # Left by an earlier backward without synchronisation, and not touched by this one.
                    if index not in self._has_come and parameter.grad is not None:
                        self.hand_over(index, parameter)
                self.reducer.finish()
                with ranged("wait for gradients"):
                    self.reducer.wait()
                for index, dense in self._dense.items():
                    grad = self._parameters[index].grad
                    assert grad is not None
                    grad.copy_(dense)
                for index, parameter in enumerate(self._parameters):
                    # Unused here, used on another rank.
                    if parameter.grad is None and self.reducer.is_used(index):
                        parameter.grad = torch.empty_like(parameter, memory_format=torch.preserve_format)
                        self.reducer.read(index, parameter.grad.data_ptr())
                    if self.scale != 1.0 and parameter.grad is not None:
                        parameter.grad.mul_(self.scale)
        finally:
            self._has_come.clear()
            self._dense.clear()


def _is_dense(tensor: Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))
