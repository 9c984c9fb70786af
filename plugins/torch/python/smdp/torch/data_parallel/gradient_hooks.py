"""Autograd's side of the core's gradient reducer: hands gradients over as backward produces them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import takewhile
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from smdp import _core
from smdp.torch.data_parallel.reducer_options import check_rows_have_no_momentum
from smdp.torch.data_parallel.shared_parameters import SharedParameters
from smdp.torch.data_parallel.sparse_gradients import SparseGradients, sparse_on_any_rank
from smdp.torch.process_group.profiling import ranged
from smdp.torch.process_group.tensors import DTYPES

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
        shared: Which of the parameters other models average as well.
        velocity: Momentum of what the codec of "topk" does not see, by index.
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
        self.is_static = is_static
        self._seen_again: set[int] = set()  # gradients that came again in this backward
        self._repeated: set[int] | None = None  # in those before; None before the first
        self._is_added: dict[int, None] = {}  # gradients that this backward has completed, in their order
        self._has_come: set[int] = set()  # those that the reducer has been handed
        self._touched: set[int] = set()  # that any backward has added to since the last step
        self._left: set[int] = set()  # in this step: left over from before, and not touched since
        self._backward = _NONE  # autograd's number of the one under way, which ends with finish()
        self._root: Node | None = None  # where it came through the model's output
        self._momentum = topk_momentum
        is_coding = compression == "topk" and len(group.hosts) > 1
        self._is_coded = [is_coding and parameter.dtype is torch.float32 for parameter in self.parameters]
        self.velocity: dict[int, Tensor] = {}
        self.registered = [(name, one.dtype, one.numel()) for name, one in parameters]
        self.scale = 1.0
        self._marks: dict[torch.dtype, tuple[Tensor, Node]] = {}
        self.deferral: Deferral | None = None
        self.shared = SharedParameters(self, self.parameters)
        self._refuse_what_is_stepped_elsewhere()
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
        self.reducer = self._make_reducer(self._described(known))
        self.sparse = SparseGradients(known, self.parameters)
        # What the core reads and writes until a step is over, whatever becomes of `.grad`: gradients, or
        # copies of those that are not dense. After the reducer, which ends what is in flight before they go.
        self._lent: dict[int, Tensor] = {}
        self._handles = [self._hook(index) for index in range(len(self.parameters))]
        self._remove = weakref.finalize(self, _remove, self._handles)

    def _refuse_what_is_stepped_elsewhere(self) -> None:
        for index, (name, _, _) in enumerate(self.registered):
            if any(other.is_deferred for other, _ in self.shared.others(index)):
                raise ValueError(
                    f"[smdp] parameter {name!r} also belongs to a model in a StepInForward, which takes its"
                    " gradient out of backward. Leave StepInForward out where models share parameters."
                )

    def close(self) -> None:
        """Takes the hooks away; done when another one takes over all parameters."""
        self._root = None
        self._remove()
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
        for velocity in self.velocity.values():
            velocity.mul_(factor)

    @property
    def is_deferred(self) -> bool:
        """Whether the optimizer steps in the next forward."""
        return self.deferral is not None

    def hook_id(self, index: int) -> int:
        """Returns the number that torch gave the hook of a parameter."""
        number: int = self._handles[index].id
        return number

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

    def pass_on(self, grad: Tensor | None) -> Tensor | None:
        """Arm at a gradient of the model's output; None where nothing came of that output.

        With `create_graph=True` there may be a backward of what comes of it, which does not pass the output
        (a gradient penalty): a leaf that the gradient is multiplied with, one, tells of that.
        """
        self.arm()
        if grad is None or not torch.is_grad_enabled():
            return None
        if grad.dtype not in self._marks:
            leaf = torch.ones((), dtype=grad.dtype, device="cpu", requires_grad=True)
            leaf.register_post_accumulate_grad_hook(_marked(weakref.ref(self)))
            self._marks[grad.dtype] = (leaf, get_gradient_edge(leaf).node)
        return grad * self._marks[grad.dtype][0]

    def _is_past_output(self) -> bool:
        """Whether the backward under way is one of gradients that passed the model's output."""
        return any(torch._C._will_engine_execute_node(node) for _, node in self._marks.values())

    def take(self, index: int, parameter: Tensor) -> None:
        """Averages a gradient that backward has just completed, if it is wanted."""
        self._touched.add(index)
        if self._backward == _NONE:
            if any(other.is_in_backward() for other, _ in self.shared.others(index)):
                return  # it comes of the other model alone
            if not self._is_wanted() and not self._is_past_output():
                return
            self.arm()
        if self.deferral is not None and not self._is_added:
            self.deferral.settle()
        if index in self._is_added:
            if self.is_static and index not in self._has_come:
                self._seen_again.add(index)
                return
            if self.is_static:
                raise RuntimeError(
                    f"[smdp] the gradient of parameter {self.registered[index][0]!r} came more often than in"
                    " the first backward: with static_graph=True they must be alike."
                )
            raise RuntimeError(
                "[smdp] a parameter got its gradient twice in one backward (reentrant checkpointing or a "
                "shared graph: use torch.utils.checkpoint with use_reentrant=False, or static_graph=True), "
                "or the backward before this one has failed half-way (start again from a checkpoint)."
            )
        self._is_added[index] = None
        # Hooks that were registered later may yet change it, or use it up: then the end of backward takes it.
        if parameter.grad is not None and self._is_last(index) and not self._may_come_again(index):
            try:
                self.hand_over(index, parameter)
            except RuntimeError:
                if not self._has_come:  # nothing was sent
                    self._forget()
                raise

    def _may_come_again(self, index: int) -> bool:
        """Returns whether this gradient, or what is known of it, may change before the end of backward."""
        return self._learns_sparse or (self.is_static and (self._repeated is None or index in self._repeated))

    def _is_last(self, index: int) -> bool:
        """Returns whether no hook of the parameter comes after this object's."""
        hooks = getattr(self.parameters[index], "_post_accumulate_grad_hooks", None)
        own = self.hook_id(index)
        if not hooks or next(reversed(hooks)) == own:
            return True
        # Those of other models that share the parameter do not change its gradient before backward ends.
        theirs = {other.hook_id(number) for other, number in self.shared.others(index)}
        return all(one in theirs for one in takewhile(lambda one: one != own, reversed(hooks)))

    def _hook(self, index: int) -> RemovableHandle:
        return self.parameters[index].register_post_accumulate_grad_hook(_taking(weakref.ref(self), index))

    def _end_backward(self) -> None:
        self._backward = _NONE
        root, self._root = self._root, None
        if not self._is_added:
            if (
                root is None
                or not any(one.requires_grad for one in self.parameters)
                or not _is_for_all_leaves(root)
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
        self._seen_again.clear()
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
        name, dtype, numel = self.registered[index]
        if not grad.is_cpu:
            raise RuntimeError(
                f"[smdp] the gradient of parameter {name!r} is on {grad.device}, but its parameter was on "
                "the CPU when the model was wrapped. Move the model first, then wrap it (or make the "
                "optimizer)."
            )
        if grad.layout is not torch.strided and index not in self.sparse.indices:
            if not self._may_turn_dense:
                raise RuntimeError(
                    f"[smdp] the gradient of parameter {name!r} is {grad.layout}, but no nn.Embedding or"
                    " nn.EmbeddingBag had it with sparse=True when the model was wrapped. Make the gradient"
                    " dense, or derive the module that has the parameter from nn.Embedding, set its `sparse`"
                    " to True, and then wrap the model with DistributedDataParallel."
                )
            parameter.grad = grad = grad.to_dense()
        self._check_unchanged(index, parameter)
        if grad.dtype is not dtype or grad.numel() != numel:
            raise RuntimeError(
                f"[smdp] the gradient of parameter {name!r} is {grad.dtype} of {grad.numel()} elements, the "
                f"parameter {dtype} of {numel}; smdp's DistributedDataParallel averages gradients of their "
                "parameter's dtype. Leave grad_dtype alone, or use torch's class with smdp as its backend."
            )
        self._has_come.add(index)
        if index in self.sparse.indices:
            self.sparse.give(index, grad)
            self.reducer.ready(index, 0, is_used=is_used)
            return
        # The order of elements in memory is that of the parameter, on all ranks, and so are their signs.
        if not _has_same_order(grad, parameter) or grad.is_conj() or grad.is_neg():
            grad = torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(grad)
        elif not is_used or any(other.has_begun() for other, _ in self.shared.others(index)):
            # Nobody's use leaves a gradient as it is. Others that average it need what this rank has of it.
            grad = grad.clone()
        self._lent[index] = grad
        self.reducer.ready(index, grad.data_ptr(), is_used=is_used)

    def _check_unchanged(self, index: int, parameter: Tensor) -> None:
        name, dtype, numel = self.registered[index]
        if parameter.dtype is not dtype or parameter.numel() != numel:
            raise RuntimeError(
                f"[smdp] parameter {name!r} was {dtype} of {numel} elements when the model was wrapped and "
                f"is {parameter.dtype} of {parameter.numel()} now: it was cast or resized after wrapping. "
                "Wrap the model anew."
            )

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
        if self.is_static and self._is_added:
            self._repeated = self._seen_again | (self._repeated or set())
        for index in self._is_added.keys() - self._has_come:
            if not self._is_last(index):
                self._handles[index].remove()
                self._handles[index] = self._hook(index)  # the last one from the next step on
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
            self.reducer = self._make_reducer(self._described(found))
            self.sparse = SparseGradients(found, self.parameters)

    def _described(self, sparse: Collection[int]) -> list[tuple[str, int, int, str]]:
        """Returns what the core is told of each parameter; sparse gradients have no place in its buffers."""
        return [
            (name, 0, DTYPES[dtype], f"{_shape_of(one)} with sparse gradients")
            if index in sparse
            else (name, numel, DTYPES[dtype], _shape_of(one))
            for index, ((name, dtype, numel), one) in enumerate(
                zip(self.registered, self.parameters, strict=True)
            )
        ]

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
            self._check_unchanged(index, self.parameters[index])
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
                if self._momentum:
                    self._add_momentum()
        finally:
            self._forget()

    def _add_momentum(self) -> None:
        """Give gradients that the codec has not seen the momentum that the optimizer leaves out."""
        found = [
            (index, one.grad)
            for index, one in enumerate(self.parameters)
            if one.grad is not None and (index not in self._left or self.reducer.is_used(index))
        ]
        if not all(bool(torch.isfinite(grad).all()) for _, grad in found):
            return  # whoever scales the loss skips this step
        for index, grad in found:
            if self._is_coded[index]:
                continue
            if index not in self.velocity:
                self.velocity[index] = torch.zeros_like(grad)
            grad.copy_(self.velocity[index].mul_(self._momentum).add_(grad))


def _taking(hooks: weakref.ref[GradientHooks], index: int) -> Callable[[Tensor], None]:
    # The parameter keeps it where no garbage collector sees it: it must not keep what it calls.
    def ready(parameter: Tensor) -> None:
        if (found := hooks()) is not None:
            found.take(index, parameter)

    return ready


def _marked(hooks: weakref.ref[GradientHooks]) -> Callable[[Tensor], None]:
    def marked(leaf: Tensor) -> None:
        leaf.grad = None
        if (found := hooks()) is not None:
            found.arm()

    return marked


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _is_for_all_leaves(root: Node) -> bool:
    """Whether the backward under way is that of a plain `backward()`, with gradients for all leaves.

    Those of `torch.autograd.grad()` and of `backward(inputs=...)` are for some alone, and leave nothing to
    average, whatever else is behind `root`.
    """
    nodes, seen, is_found = [root], {root}, False
    while nodes:
        node = nodes.pop()
        if node.name() == "torch::autograd::AccumulateGrad":
            try:
                if not torch._C._will_engine_execute_node(node):
                    return False
            except RuntimeError:  # torch.autograd.grad() wants its gradient
                return False
            is_found = True
        behind = {one for one, _ in node.next_functions if one is not None} - seen
        nodes += behind
        seen |= behind
    return is_found


def _shape_of(parameter: Tensor) -> str:
    """For comparisons between ranks: elements are summed in their order in memory."""
    steps = [step for step, extent in zip(parameter.stride(), parameter.shape, strict=True) if extent != 1]
    strides = "" if parameter.is_contiguous() else f" with strides {steps}"
    return f"{list(parameter.shape)}{strides}"


def _has_same_order(grad: Tensor, parameter: Tensor) -> bool:
    if grad.is_contiguous() and parameter.is_contiguous():  # a tenth of the time of what follows
        return True
    return grad.stride() == parameter.stride() and bool(torch.ops.aten.is_non_overlapping_and_dense(grad))
