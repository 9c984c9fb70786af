"""Hands gradients to the core's reducer as autograd produces them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import Node
from torch.nn import Parameter

from smdp import _core
from smdp.torch.data_parallel.gradient_takers import Deferral, Shards
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


class GradientHooks:
    """Averages the `.grad` of parameters over a group during every backward.

    Args:
        group: The core's group.
        parameters: Pairs of name and parameter, in the same order on all ranks. Each parameter requires a
            gradient and is on the CPU.
        is_wanted: Called when a gradient appears in a backward without `arm()`. If it returns False, the
            gradients are not averaged (`no_sync`).
        compression: "none", "fp16", "bf16", "int8" or "topk".
        bucket_cap_mb: The largest size of a fusion buffer in MiB.
        topk_ratio: The fraction of the gradient that "topk" sends.
        topk_momentum: The momentum of "topk", and the plain momentum of gradients that are sent in full.
        factor: Multiplies gradients before the sum; 0 computes the mean.
        ended: Called at the end of every backward that was armed or produced gradients.
        looked_for: Called before the first step ends, and before each step in which a parameter has no
            gradient on this rank. It may raise to refuse the step.
        is_static: Whether gradients may come several times in a backward, the same ones in every backward.
        sparse: Indices of the parameters whose gradients may be sparse, the same on all ranks. With None,
            these are the ones that are sparse on some rank in the first step; others are made dense.

    Attributes:
        compression: The format in which gradients travel between hosts.
        scale: A factor for the averaged gradients, initially 1.
        parameters: The parameters whose gradients are averaged, by index.
        registered: Name, dtype and element count of each parameter at registration.
        repeated: Tracks gradients that come several times in a backward.
        shared: Tracks the parameters that other models average as well.
        momentum: Momentum of the gradients that "topk" does not compress.
        deferral: The object that waits for the means in place of the end of backward, initially None.
        shards: The object that owns pieces of the means, initially None: every rank has all means.
        which: Tells users which parameters these are.
        lent: Gradients of this backward that the core uses, by index. `freed`: those it does not need.
        own: Memory for this rank's values of means that are not summed in the gradients, by index.
        scope: "world" or "host" once the means are owned in shards, initially "none".
    """

    which = "Pass only parameters that required a gradient when the model was wrapped."

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
        self.compression = compression
        self.parameters = [parameter for _, parameter in parameters]
        self._is_wanted = is_wanted
        self._ended = ended
        self._looked_for = looked_for
        self._is_first = True
        self.repeated = RepeatedGradients(is_static)
        self._is_added: dict[int, None] = {}  # gradients completed by this backward, in order
        self._has_come: set[int] = set()  # gradients handed to the reducer in this backward
        self._touched: set[int] = set()  # gradients that a backward has added to since the last step
        self._left: set[int] = set()  # gradients handed over in this step that no backward has added to
        self.freed: set[int] = set()
        self._backward = _NONE  # autograd's id of the backward under way, until finish()
        self._root: Node | None = None  # the node at which it passed the model's output
        is_coding = compression == "topk" and len(group.hosts) > 1
        is_coded = [is_coding and parameter.dtype is torch.float32 for parameter in self.parameters]
        self.momentum = UncodedMomentum(topk_momentum, is_coded)
        self.registered = [Registered(name, one.dtype, one.numel()) for name, one in parameters]
        self.scale = 1.0
        self._marks = OutputMarks(self)
        self.deferral: Deferral | None = None
        self.shards: Shards | None = None
        self.scope = "none"
        self.shared = SharedParameters(self, self.parameters)
        self.shared.check_none_is_taken([one.name for one in self.registered])
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
        # Assigned after the reducer, which ends its operations before this memory is freed.
        self.lent: dict[int, Tensor] = {}
        self.own: dict[int, Tensor] = {}
        self._hooks = ParameterHooks(self.parameters, partial(_taking, weakref.ref(self)))

    def shard(self, scope: str, whole: Collection[int]) -> _core.GradientReducer:
        """Replaces the reducer by one whose means are owned in shards. Collective.

        Args:
            scope: "world" or "host".
            whole: Indices of the parameters that must not be cut.
        """
        described_now = described(self.registered, self.parameters, self.sparse.indices)
        self._make_reducer = partial(self._make_reducer, shards=scope, whole=sorted(whole))
        self.reducer = self._make_reducer(described_now, replaced=[self.reducer.group_name])
        self.scope = scope
        return self.reducer

    def close(self) -> None:
        """Removes the hooks, once another object takes over all parameters."""
        self._root = None
        self._hooks.remove()
        self.shared.leave()

    def begin_forward(self) -> None:
        """Discards the state of a backward that failed midway."""
        if torch._C._current_graph_task_id() == _NONE:  # no backward is running
            self._backward = _NONE
            self._root = None

    def reduce_nothing(self) -> None:
        """Takes part in one step without gradients and discards the means."""
        self.reducer.finish()
        self.sparse.send(self.reducer)
        self.reducer.wait()
        self.sparse.forget()

    def rescale(self, factor: float) -> None:
        """Multiplies the values kept from earlier steps by the change of the loss scale."""
        if self.deferral is not None:
            self.deferral.settle()
        self.reducer.rescale(factor)
        self.momentum.rescale(factor)

    @property
    def is_deferred(self) -> bool:
        """Whether the optimizer steps in the next forward."""
        return self.deferral is not None and self.shards is None

    @property
    def is_sharded(self) -> bool:
        """Whether each rank has pieces of the means only."""
        return self.shards is not None

    def hook_id(self, index: int) -> int:
        """Returns torch's id of the hook on a parameter."""
        return self._hooks.id_of(index)

    def is_in_backward(self) -> bool:
        """Returns whether this object averages the gradients of the innermost running backward."""
        return self._backward != _NONE and self._backward == torch._C._current_graph_task_id()

    def has_begun(self) -> bool:
        """Returns whether this object averages the gradients of a running backward, perhaps an outer one.

        If several objects take part in one backward, the last to begin is the last to end, and then finds
        the means of the others.
        """
        return self._backward != _NONE

    def arm(self) -> None:
        """Averages the gradients of the running backward at its end.

        If reentrant checkpointing runs a backward inside a backward, the outer one is meant.
        """
        number = torch._C._current_graph_task_id()
        if number == self._backward:
            return
        self._backward = number
        self._root = torch._C._current_autograd_node()
        Variable._execution_engine.queue_callback(self._end_backward)

    def watch_output(self, tensors: Iterable[Tensor]) -> None:
        """Averages the gradients of every backward that passes these tensors of the model's output."""
        for tensor in tensors:
            tensor.register_hook(arming(weakref.ref(self)))

    def pass_on(self, grad: Tensor | None) -> Tensor | None:
        """Arms the running backward at a gradient of the output.

        Returns:
            The gradient with a mark if a graph of it is recorded, else None.
        """
        self.arm()
        if grad is None or not torch.is_grad_enabled():
            return None
        return self._marks.on(grad)

    def take(self, index: int, parameter: Tensor) -> None:
        """Starts averaging a gradient that backward has just completed, if it should be averaged."""
        self._touched.add(index)
        if self._backward == _NONE:
            if any(other.is_in_backward() for other, _ in self.shared.others(index)):
                return  # the gradient comes from the other model alone
            if not self._is_wanted() and not self._marks.are_passed():
                return
            self.arm()
        if self.deferral is not None and not self._is_added:
            self.deferral.settle()
        if index in self._is_added:
            self.repeated.come_again(index, self.registered[index].name, is_sent=index in self._has_come)
            return
        self._is_added[index] = None
        # A hook registered later may still change or consume the gradient; then the end of backward sends it.
        may_change = self._learns_sparse or self.repeated.may_come_again(index)
        if parameter.grad is not None and self.is_last(index) and not may_change:
            try:
                self.hand_over(index, parameter)
                if self.shards is not None:
                    self.shards.handed_over(index)
            except RuntimeError:
                if not self._has_come:  # nothing was sent
                    self._forget()
                raise

    def is_last(self, index: int) -> bool:
        """Returns whether no later hook on the parameter can change its gradient."""
        if not (after := self._hooks.after(index)):
            return True
        # The hooks of models that share the parameter do not change it before backward ends.
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
                # torch.autograd.grad() asked for other gradients.
                if self._ended is not None:
                    self._ended()
                return
            # No parameter was used on this rank, but other ranks may have gradients.
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
        self.freed.clear()
        self.repeated.forget()
        self.sparse.forget()

    def hand_over(self, index: int, parameter: Tensor, *, is_used: bool = True) -> None:
        """Starts averaging a gradient that is complete.

        Args:
            index: The parameter's.
            parameter: The parameter itself.
            is_used: Whether this rank has added to the gradient since the last step.
        """
        grad = parameter.grad
        assert grad is not None
        if self.shards is not None:
            grad = self.shards.contribution(grad)
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
        # All ranks must send the elements in the parameter's memory order, with no lazy sign or conjugation.
        if not has_same_order(grad, parameter) or grad.is_conj() or grad.is_neg():
            grad = torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(grad)
        elif not is_used or any(other.has_begun() for other, _ in self.shared.others(index)):
            # If no rank has used the parameter, its gradient must stay as it is. Other models that average
            # it need this rank's own values.
            grad = grad.clone()
        self.lent[index] = grad
        if self.shards is not None:
            self.shards.hand_over(index)
        self.reducer.ready(index, grad.data_ptr(), is_used=is_used)

    def _send(self) -> None:
        """Hands over the remaining gradients and ends this rank's part of the step."""
        self._backward = _NONE
        if self._looked_for is not None and (len(self._is_added) < len(self.parameters) or self._is_first):
            try:
                self._looked_for()
            except RuntimeError as error:
                if self._has_come:  # other ranks are waiting in this step
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
                # Either a later hook delayed the gradient, or an earlier backward left it.
                if index not in self._has_come and parameter.grad is not None:
                    # A gradient that is averaged already must not be averaged again unless some rank has
                    # added to it since.
                    is_used = index in self._touched or self.is_deferred
                    self.hand_over(index, parameter, is_used=is_used)
                    if not is_used:
                        self._left.add(index)
            self.reducer.finish()
            self.sparse.send(self.reducer)
        self._touched.clear()

    def _learn_sparse(self) -> None:
        """Determines which gradients are sparse. All ranks do so in the first step, before any is sent."""
        self._learns_sparse = False
        found = sparse_on_any_rank(self.reducer, [parameter.grad for parameter in self.parameters])
        if found:
            self.reducer = self._make_reducer(described(self.registered, self.parameters, found))
            self.sparse = SparseGradients(found, self.parameters)

    def deliver(self, index: int, grad: Tensor | None) -> Tensor | None:
        """Returns the mean of a gradient after the reducer has averaged it.

        Call it with gradient recording off.

        Args:
            index: The parameter's index.
            grad: This rank's gradient. If it is None, the reducer's step must have ended.

        Returns:
            The mean, or None if no rank had a gradient.
        """
        lent = self.lent.pop(index, None)
        if self.shards is not None:
            # With a gradient on this rank the answer is known, even before the reducer's step has ended.
            if grad is None and index not in self.freed and not self.reducer.is_used(index):
                return None
            mean = self.shards.mean(index, lent)
            return mean if self.scale == 1.0 else mean.mul_(self.scale)
        if (grad is None or index in self._left) and not self.reducer.is_used(index):
            return grad
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
        """Counts all existing gradients as used in this step, even those that no backward produced."""
        self._touched.update(range(len(self.parameters)))

    def finish(self) -> None:
        """Waits until the gradients that this backward produced on any rank are averaged."""
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
                    self.add_momentum()
        finally:
            self._forget()

    def add_momentum(self) -> None:
        """Adds the momentum that "topk" does not apply itself to the means of the step."""
        shards = self.shards
        found = [
            (index, [one.grad] if shards is None else shards.own(one.grad))
            for index, one in enumerate(self.parameters)
            if one.grad is not None and (index not in self._left or self.reducer.is_used(index))
        ]
        self.momentum.add(found, None if shards is None else shards.agree)


def _taking(hooks: weakref.ref[GradientHooks], index: int) -> Callable[[Tensor], None]:
    def ready(parameter: Tensor) -> None:
        if (found := hooks()) is not None:
            found.take(index, parameter)

    return ready
