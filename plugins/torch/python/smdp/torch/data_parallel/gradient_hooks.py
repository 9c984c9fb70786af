"""Autograd's side of the core's gradient reducer: hands gradients over as backward produces them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import Node
from torch.nn import Parameter

from smdp import _core
from smdp.torch.data_parallel.output_marks import OutputMarks, arming
from smdp.torch.data_parallel.parameter_hooks import ParameterHooks
from smdp.torch.data_parallel.plain_backward import is_plain_backward
from smdp.torch.data_parallel.reducer_options import check_rows_have_no_momentum
from smdp.torch.data_parallel.repeated_gradients import RepeatedGradients
from smdp.torch.data_parallel.shared_parameters import SharedParameters
from smdp.torch.data_parallel.sparse_gradients import SparseGradients, sparse_on_any_rank
from smdp.torch.data_parallel.uncoded_momentum import UncodedMomentum
from smdp.torch.process_group.profiling import ranged
from smdp.torch.process_group.registered_parameters import (
    Registered,
    check_gradient,
    check_unchanged,
    described,
    has_same_order,
    refuse_device,
    refuse_sparse,
)

_NONE = -1


class Deferral(Protocol):
    """Takes gradients over at the end of backward, before they are means."""

    def hold(self) -> None:
        """Take them; deliver() gives each back, and the reducer's wait() ends the step."""

    def settle(self) -> None:
        """End the step before, if it has not ended."""


class GradientHooks:
    """Averages `.grad` of parameters over a group at the end of every backward, while it runs.

    Args:
        group: The core's group.
        parameters: (name, parameter), the same list on all ranks; each requires a gradient and is on the CPU.
        is_wanted: Asked when a gradient appears in a backward that no arm() was called in; False leaves
            gradients alone (`no_sync`).
        compression: "none", "fp16", "bf16", "int8" or "topk".
        bucket_cap_mb: Most MiB of a fusion buffer.
        topk_ratio: Part of the gradient that "topk" sends.
        topk_momentum: Momentum correction of "topk"; plain momentum of what it does not code.
        factor: Multiplies gradients before the sum; 0 gives the mean.
        ended: Called at the end of every backward through arm() or with gradients.
        looked_for: Called before the first step goes on, and one in which a parameter has no gradient here.
        is_static: Gradients may come several times in a backward, the same ones in every one.
        sparse: Indices of parameters whose gradients may be sparse, the same on all ranks. None: those that
            are sparse on some rank in the first step; what comes sparse later is made dense.

    Attributes:
        scale: Multiplies what comes of it, 1 at first.
        parameters: Those whose gradients are averaged, by index.
        registered: (name, dtype, elements) of each, as the core knows them; they may be cast later.
        repeated: Gradients that come several times in a backward.
        shared: Which of the parameters other models average as well.
        momentum: Of what the codec of "topk" does not see.
        deferral: Who waits for the means instead of the end of backward; at first nobody.
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
        ended: Callable[[], None] | None = None,
        looked_for: Callable[[], None] | None = None,
        is_static: bool = False,
        sparse: Collection[int] | None = (),
    ) -> None:
        self.parameters = [parameter for _, parameter in parameters]
        self._is_wanted = is_wanted
        self._ended = ended
        self._looked_for = looked_for
        self._is_first = True
        self.repeated = RepeatedGradients(is_static)
        self._is_added: dict[int, None] = {}  # gradients that this backward has completed, in their order
        self._has_come: set[int] = set()  # those that the reducer has been handed
        self._touched: set[int] = set()  # that any backward has added to since the last step
        self._left: set[int] = set()  # in this step: left over from before, and not touched since
        self._backward = _NONE  # autograd's number of the one under way, which ends with finish()
        self._root: Node | None = None  # where it came through the model's output
        is_coding = compression == "topk" and len(group.hosts) > 1
        is_coded = [is_coding and parameter.dtype is torch.float32 for parameter in self.parameters]
        self.momentum = UncodedMomentum(topk_momentum, is_coded)
        self.registered = [Registered(name, one.dtype, one.numel()) for name, one in parameters]
        self.scale = 1.0
        self._marks = OutputMarks(self)
        self.deferral: Deferral | None = None
        self.shared = SharedParameters(self, self.parameters)
        self.shared.check_none_is_deferred([one.name for one in self.registered])
        self._make_reducer = partial(
            _core.GradientReducer,
            group,
            compression=compression,
            buffer_bytes=int(bucket_cap_mb * (1 << 20)),
            factor=factor,
            topk_ratio=topk_ratio,
            topk_momentum=topk_momentum,
        )
        self._learns_sparse = self._may_turn_dense = sparse is None
        known = frozenset(sparse or ())
        if known:
            check_rows_have_no_momentum(topk_momentum)
        self.reducer = self._make_reducer(described(self.registered, self.parameters, known))
        self.sparse = SparseGradients(known, self.parameters)
        # What the core reads and writes until a step is over, whatever becomes of `.grad`: gradients, or
        # copies of those that are not dense. After the reducer, which ends what is in flight before they go.
        self._lent: dict[int, Tensor] = {}
        self._hooks = ParameterHooks(self.parameters, partial(_taking, weakref.ref(self)))

    def close(self) -> None:
        """Takes the hooks away; done when another one takes over all parameters."""
        self._root = None
        self._hooks.remove()
        self.shared.leave()

    def begin_forward(self) -> None:
        """Forgets a backward that has failed half-way."""
        if torch._C._current_graph_task_id() == _NONE:  # what is left is of a backward that has failed
            self._backward = _NONE
            self._root = None

    def reduce_nothing(self) -> None:
        """Takes part in one step without any gradient, and throws the means away."""
        self.reducer.finish()
        self.sparse.send(self.reducer)
        self.reducer.wait()
        self.sparse.forget()

    def rescale(self, factor: float) -> None:
        """Multiply what is kept from steps before: the loss scale has been multiplied by `factor`."""
        if self.deferral is not None:
            self.deferral.settle()
        self.reducer.rescale(factor)
        self.momentum.rescale(factor)

    @property
    def is_deferred(self) -> bool:
        """Whether the optimizer steps in the next forward."""
        return self.deferral is not None

    def hook_id(self, index: int) -> int:
        """Returns the number that torch gave the hook of a parameter."""
        return self._hooks.id_of(index)

    def is_in_backward(self) -> bool:
        """Returns whether the backward under way is one whose gradients are averaged here."""
        return self._backward != _NONE and self._backward == torch._C._current_graph_task_id()

    def has_begun(self) -> bool:
        """Returns whether a backward whose gradients are averaged here is under way, perhaps around this one.

        Of several objects in one backward, the one that begins last also ends last. It then finds the means
        of those that began before.
        """
        return self._backward != _NONE

    def arm(self) -> None:
        """Say, within a backward, that its gradients are to be averaged at its end, if there are any.

        Where checkpoints run a backward in a backward, the outer one counts.
        """
        number = torch._C._current_graph_task_id()
        if number == self._backward:
            return
        self._backward = number
        self._root = torch._C._current_autograd_node()
        Variable._execution_engine.queue_callback(self._end_backward)

    def watch_output(self, tensors: Iterable[Tensor]) -> None:
        """Averages the gradients of every backward through these tensors of the model's output."""
        for tensor in tensors:
            tensor.register_hook(arming(weakref.ref(self)))

    def pass_on(self, grad: Tensor | None) -> Tensor | None:
        """Arms at a gradient of the model's output, and marks it; None where nothing came of that output."""
        self.arm()
        if grad is None or not torch.is_grad_enabled():
            return None
        return self._marks.on(grad)

    def take(self, index: int, parameter: Tensor) -> None:
        """Averages a gradient that backward has just completed, if it is wanted."""
        self._touched.add(index)
        if self._backward == _NONE:
            if any(other.is_in_backward() for other, _ in self.shared.others(index)):
                return  # it comes of the other model alone
            if not self._is_wanted() and not self._marks.are_passed():
                return
            self.arm()
        if self.deferral is not None and not self._is_added:
            self.deferral.settle()
        if index in self._is_added:
            self.repeated.come_again(index, self.registered[index].name, is_sent=index in self._has_come)
            return
        self._is_added[index] = None
        # Hooks that were registered later may yet change it, or use it up: then the end of backward takes it.
        if parameter.grad is not None and self.is_last(index) and not self._may_come_again(index):
            try:
                self.hand_over(index, parameter)
            except RuntimeError:
                if not self._has_come:  # nothing was sent
                    self._forget()
                raise

    def _may_come_again(self, index: int) -> bool:
        """Returns whether this gradient, or what is known of it, may change before the end of backward."""
        return self._learns_sparse or self.repeated.may_come_again(index)

    def is_last(self, index: int) -> bool:
        """Returns whether no hook of the parameter that may change its gradient comes after this object's."""
        if not (after := self._hooks.after(index)):
            return True
        # Those of other models that share the parameter do not change it before backward ends.
        theirs = {other.hook_id(number) for other, number in self.shared.others(index)}
        return all(one in theirs for one in after)

    def _end_backward(self) -> None:
        self._backward = _NONE
        root, self._root = self._root, None
        if not self._is_added:
            if (
                root is None
                or not any(one.requires_grad for one in self.parameters)
                or not is_plain_backward(root)
            ):
                # It was one for other gradients: torch.autograd.grad().
                if self._ended is not None:
                    self._ended()
                return
            # The model was passed by, here; other ranks have gradients.
            if self.deferral is not None:
                self.deferral.settle()
        if self._ended is not None:
            self._ended()
        if self.deferral is None:
            self.finish()
            return
        try:
            self._send()
            self.deferral.hold()
        finally:
            self._forget()

    def _forget(self) -> None:
        self._is_added.clear()
        self._has_come.clear()
        self._left.clear()
        self.repeated.forget()
        self.sparse.forget()

    def hand_over(self, index: int, parameter: Tensor, *, is_used: bool = True) -> None:
        """Starts averaging a gradient that is complete.

        Args:
            index: The parameter's.
            parameter: Whose gradient it is.
            is_used: Whether this rank has added to the gradient since the last step.
        """
        grad = parameter.grad
        assert grad is not None
        registered = self.registered[index]
        if not grad.is_cpu:
            refuse_device(registered.name, grad)
        if grad.layout is not torch.strided and index not in self.sparse.indices:
            if not self._may_turn_dense:
                refuse_sparse(registered.name, grad)
            parameter.grad = grad = grad.to_dense()
        check_gradient(registered, parameter, grad)
        self._has_come.add(index)
        if index in self.sparse.indices:
            self.sparse.give(index, grad)
            self.reducer.ready(index, 0, is_used=is_used)
            return
        # The order of elements in memory is that of the parameter, on all ranks, and so are their signs.
        if not has_same_order(grad, parameter) or grad.is_conj() or grad.is_neg():
            grad = torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(grad)
        elif not is_used or any(other.has_begun() for other, _ in self.shared.others(index)):
            # Nobody's use leaves a gradient as it is. Others that average it need what this rank has of it.
            grad = grad.clone()
        self._lent[index] = grad
        self.reducer.ready(index, grad.data_ptr(), is_used=is_used)

    def _send(self) -> None:
        """Hands over what backward has left, and ends this rank's part of the step."""
        self._backward = _NONE
        if self._looked_for is not None and (len(self._is_added) < len(self.parameters) or self._is_first):
            try:
                self._looked_for()
            except RuntimeError as error:
                if self._has_come:  # a step that nobody can end
                    self.reducer.abort(str(error).removeprefix("[smdp] "))
                raise
        self._is_first = False
        if self._learns_sparse:
            self._learn_sparse()
        if self._is_added:
            self.repeated.learn()
        for index in self._is_added.keys() - self._has_come:
            if not self.is_last(index):
                self._hooks.move_last(index)  # from the next step on
        with torch.no_grad():
            held = [index for index in self._is_added if index not in self._has_come]
            for index in itertools.chain(held, range(len(self.parameters))):
                parameter = self.parameters[index]
                # Left by an earlier backward, and not touched by this one, unless it was held.
                if index not in self._has_come and parameter.grad is not None:
                    # What is averaged already stays so where no rank has used the parameter since, but for
                    # what a codec has kept of it; else it belongs to the mean.
                    is_used = index in self._touched or self.deferral is not None
                    self.hand_over(index, parameter, is_used=is_used)
                    if not is_used:
                        self._left.add(index)
            self.reducer.finish()
            self.sparse.send(self.reducer)
        self._touched.clear()

    def _learn_sparse(self) -> None:
        """Finds out which gradients are sparse; all ranks do so in the first step, before any is sent."""
        self._learns_sparse = False
        found = sparse_on_any_rank(self.reducer, [parameter.grad for parameter in self.parameters])
        if found:
            self.reducer = self._make_reducer(described(self.registered, self.parameters, found))
            self.sparse = SparseGradients(found, self.parameters)

    def deliver(self, index: int, grad: Tensor | None) -> Tensor | None:
        """Completes a gradient that the reducer has averaged, without recording it.

        Args:
            index: The parameter's.
            grad: What it was before; None if this rank had none, which needs the end of the reducer's step.

        Returns:
            The mean; None where no rank had one.
        """
        lent = self._lent.pop(index, None)
        if index in self._left and not self.reducer.is_used(index):
            return grad
        if grad is None and not self.reducer.is_used(index):
            return None
        if index in self.sparse.indices:
            grad = self.sparse.take(index)
        elif grad is None:
            check_unchanged(self.registered[index], self.parameters[index])
            grad = torch.empty_like(self.parameters[index], memory_format=torch.preserve_format)
            self.reducer.read(index, grad.data_ptr())
        elif lent is not None and lent is not grad:
            grad.copy_(lent)
        return grad if self.scale == 1.0 else grad.mul_(self.scale)

    def use_all(self) -> None:
        """Take all gradients that are there for used in this step, whoever has put them there."""
        self._touched.update(range(len(self.parameters)))

    def finish(self) -> None:
        """Waits until the gradients that this backward has produced on any rank are averages."""
        try:
            self._send()
            with ranged("wait for gradients"):
                self.reducer.wait()
            with torch.no_grad():
                for index, parameter in enumerate(self.parameters):
                    grad = self.deliver(index, parameter.grad)
                    if parameter.grad is not grad:
                        parameter.grad = grad
                if self.momentum:
                    self._add_momentum()
        finally:
            self._forget()

    def _add_momentum(self) -> None:
        found = [
            (index, one.grad)
            for index, one in enumerate(self.parameters)
            if one.grad is not None and (index not in self._left or self.reducer.is_used(index))
        ]
        self.momentum.add(found)


def _taking(hooks: weakref.ref[GradientHooks], index: int) -> Callable[[Tensor], None]:
    def ready(parameter: Tensor) -> None:
        if (found := hooks()) is not None:
            found.take(index, parameter)

    return ready
