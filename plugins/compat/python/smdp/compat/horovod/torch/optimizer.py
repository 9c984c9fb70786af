"""Optimizers that average the gradients of all ranks before each step."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Parameter

from smdp._arguments import number
from smdp.compat.horovod.torch.asynchronous import (
    Average,
    Sum,
    grouped_allreduce_async_,
    operation,
    synchronize,
)
from smdp.compat.horovod.torch.compression import Compression, NoneCompressor, compressor, name_in_core
from smdp.compat.horovod.torch.named_parameters import with_names
from smdp.compat.horovod.torch.sparse import RowSums
from smdp.compat.horovod.torch.world import ProcessSet, check_known, global_process_set
from smdp.torch.plugin_support import (
    GradientHooks,
    SparseGradients,
    empty_like,
    sparse_on_any_rank,
    stand_in_like,
)

# By id of a parameter: the optimizer that counts its gradients, which is the one that was wrapped last.
_owners: dict[int, weakref.ref[_DistributedOptimizer]] = {}


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns an optimizer of the same class, parameters and state that averages gradients during backward.

    On a GPU, or with a script's own compressor, it averages them at the end of backward. If a parameter gets
    gradients more than `backward_passes_per_step` times before step(), backward raises a RuntimeError.

    Args:
        optimizer: A torch optimizer.
        named_parameters: Names of the parameters, such as `model.named_parameters()`; they are checked.
        compression: Format in which float32 gradients are sent between hosts, a member of Compression. A
            script's own compressor, with compress() and decompress(), applies to all gradients on all ranks.
        backward_passes_per_step: Number of backward passes whose gradients add up before they are averaged.
        op: Average or Sum.
        gradient_predivide_factor: Not used; smdp's means do not need it.
        num_groups: Not used; fusion buffers depend on sizes.
        groups: Not used.
        sparse_as_dense: Whether to make sparse gradients dense before they are averaged. By default, their
            rows are gathered, and they stay sparse.
        process_set: The ranks that take part; all by default.

    Raises:
        TypeError: `optimizer` is not a torch optimizer.
        ValueError: An argument is wrong, the names do not match the optimizer, or the set was not added.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"[smdp] DistributedOptimizer got a {type(optimizer).__name__} instead of an optimizer of"
            " torch.optim."
        )
    check_known(process_set)
    kind = operation(op, None)
    if kind not in ("average", "sum"):
        raise ValueError(f"[smdp] DistributedOptimizer: op is {op!r}; allowed: Average, Sum.")
    _check_passes(backward_passes_per_step)
    base = type(optimizer)
    cls: Any = type(base.__name__, (_DistributedOptimizer, base), {})
    made = cls.__new__(cls)
    # A scheduler that was created before puts its step() into the instance, which would hide this class's.
    made.__dict__.update({name: value for name, value in optimizer.__dict__.items() if name != "step"})
    parameters = with_names(optimizer, named_parameters)
    made._attach(
        parameters,
        compressor(compression),
        backward_passes_per_step,
        kind,
        process_set,
        _sparse_of(optimizer, len(parameters), as_dense=sparse_as_dense),
    )
    return made


def _sparse_of(optimizer: torch.optim.Optimizer, count: int, *, as_dense: bool) -> set[int] | None:
    """Returns the indices of sparse gradients among `count`, or None if only the first step can tell."""
    if as_dense:
        return set()
    return set(range(count)) if isinstance(optimizer, torch.optim.SparseAdam) else None


def _check_passes(given: Any) -> None:
    if not number("DistributedOptimizer: backward_passes_per_step", given) >= 1:
        raise ValueError(
            f"[smdp] DistributedOptimizer: backward_passes_per_step is {given}; it must be at least 1."
        )


class _DistributedOptimizer:
    """Mixin that comes before the optimizer's own class."""

    def _attach(
        self,
        parameters: list[tuple[str, Parameter]],
        compression: Any,
        passes: int,
        kind: str,
        members: ProcessSet,
        sparse: set[int] | None,
    ) -> None:
        self._parameters = [parameter for _, parameter in parameters]
        self._kind, self._members, self._passes = kind, members, passes
        self._compression = compression
        self._sparse = sparse
        self._skips_synchronize = False
        self._begin_step()
        self._hooks: GradientHooks | None = None
        self._known = {id(parameter) for parameter in self._parameters}
        self._is_member = members.included()
        self._takes_part = bool(self._is_member and parameters)
        if not self._takes_part:
            return
        self._replace_others()
        me = weakref.ref(self)
        for parameter in self._parameters:
            if not isinstance(self, torch.optim.SparseAdam):  # SparseAdam takes no dense gradients
                _give_zeros(parameter)
            _owners[id(parameter)] = me
            parameter.register_post_accumulate_grad_hook(_counting(me))
        is_world = members is global_process_set
        group = dist.distributed_c10d._get_default_group() if is_world else members.group
        self._core = group.core
        name = name_in_core(compression)
        if name is None:
            return
        if not all(_is_on_cpu(parameter) for parameter in self._parameters):
            if name in ("int8", "topk"):
                raise ValueError(f"[smdp] compression {name!r} needs a model on the CPU.")
            return
        if sparse == set():
            for parameter in self._parameters:
                parameter.register_post_accumulate_grad_hook(_densify)
        self._hooks = GradientHooks(
            group.core,
            parameters,
            self._is_wanted,
            compression=name,
            factor=1.0 if kind == Sum else 0.0,
            sparse=sparse,
        )

    def _replace_others(self) -> None:
        """Takes over parameters from optimizers that were wrapped before.

        Raises:
            ValueError: Another optimizer keeps other parameters too, and op=Sum would sum shared ones twice.
        """
        uses = (_owners.get(key, lambda: None)() for key in self._known)
        others = {id(other): other for other in uses if other is not None}
        for other in others.values():
            if other._known <= self._known:
                if other._hooks is not None:
                    other._hooks.close()
            elif Sum in (self._kind, other._kind):
                raise ValueError(
                    f"[smdp] DistributedOptimizer shares {len(other._known & self._known)} of its"
                    f" {len(self._known)} parameters with another optimizer, and op=Sum would sum their"
                    " gradients twice. Pass them to only one of the two, or use Average."
                )

    def _begin_step(self) -> None:
        self._pass = 0
        self._is_in_backward = False  # also if the last backward failed
        self._is_reduced = False
        self._is_synchronized = False
        self._counts: dict[int, int] = {}

    def _count(self, parameter: torch.Tensor) -> None:
        if self._hooks is None:
            self._begin_backward()
        # Counted per parameter: two backwards may reach different ones, as with reentrant checkpoints.
        count = self._counts[id(parameter)] = self._counts.get(id(parameter), 0) + 1
        if count > self._passes:
            raise RuntimeError(
                f"[smdp] gradients were computed more than backward_passes_per_step={self._passes} times"
                " before step(). Set DistributedOptimizer(backward_passes_per_step=...) to the number of"
                " backwards per step, or call the optimizer's step(), synchronize() or zero_grad() between"
                " them."
            )

    def _check_sum(self) -> None:
        # Averaging twice does not change a mean, but gradients that were summed must not be summed again.
        if self._kind == Sum and self._is_reduced:
            raise RuntimeError(
                "[smdp] op=Sum: gradients came after others of the same step had been summed. Make every"
                " backward reach all parameters (torch.utils.checkpoint with use_reentrant=False), or use"
                " Average."
            )
        self._is_reduced = True

    def _begin_backward(self) -> None:
        if not self._is_in_backward:
            self._is_in_backward = True
            self._is_synchronized = False  # a synchronize() that no step() followed no longer counts
            self._pass += 1
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _is_wanted(self) -> bool:
        self._begin_backward()
        if self._pass % self._passes:
            return False
        self._check_sum()
        return True

    def _end_backward(self) -> None:
        self._is_in_backward = False
        # Reduces in backward, which all ranks run, and not in step(), which a rank may skip.
        if self._hooks is None and not self._pass % self._passes:
            self._check_sum()
            self._reduce_now()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes per step, beginning with the next step."""
        self._passes = passes
        self._begin_step()

    def synchronize(self) -> None:
        """Waits until the gradients are averaged.

        After the last backward of a step they already are. If this rank has run fewer backward passes, it
        contributes the gradients that it has, because the other ranks wait for it.

        Raises:
            RuntimeError: A parameter has a gradient that is not averaged.
        """
        if self._is_synchronized:  # called again: there are no new gradients
            return
        self._check_known()
        if self._takes_part and (self._pass == 0 or self._pass % self._passes):
            self._check_sum()
            if self._hooks is not None:
                self._hooks.use_all()
                self._hooks.finish()
            else:
                self._reduce_now()
        self._fill_in_zeros()
        self._begin_step()
        self._is_synchronized = True

    def _fill_in_zeros(self) -> None:
        # As in Horovod, a parameter that no rank used gets a gradient of zeros. SparseAdam needs none.
        if not self._takes_part or isinstance(self, torch.optim.SparseAdam):
            return
        sparse = (self._sparse or ()) if self._hooks is None else self._hooks.sparse.indices
        for index, parameter in enumerate(self._parameters):
            if parameter.requires_grad and parameter.grad is None:
                # A sparse gradient that the next backward adds to dense zeros would become dense.
                parameter.grad = empty_like(parameter) if index in sparse else torch.zeros_like(parameter)

    def _check_known(self) -> None:
        for group in self.param_groups:  # type: ignore[attr-defined]
            for parameter in group["params"]:
                is_trained = parameter.requires_grad and parameter.grad is not None
                if self._is_member and is_trained and id(parameter) not in self._known:
                    raise RuntimeError(
                        f"[smdp] DistributedOptimizer: a parameter of shape {list(parameter.shape)} has a"
                        " gradient that is not averaged, because it was frozen when the optimizer was wrapped"
                        " or added later by add_param_group(). Wrap the optimizer again after the change."
                    )

    def _reduce_now(self) -> None:
        with torch.no_grad():
            summing = RowSums(self._core, self._kind)
            if self._sparse is None:
                own = [parameter.grad for parameter in self._parameters]
                self._sparse = sparse_on_any_rank(summing, own)
            rows = SparseGradients(self._sparse, self._parameters)
            gradients: list[torch.Tensor] = []
            for index, parameter in enumerate(self._parameters):
                if index in rows.indices:
                    if parameter.grad is not None:
                        rows.give(index, parameter.grad)
                    continue
                if parameter.grad is None:  # all ranks reduce the same list
                    parameter.grad = torch.zeros_like(parameter)
                _densify(parameter)
                gradients.append(parameter.grad)
            wires = [self._wire_of(gradient) for gradient in gradients]
            pairs = [wire.compress(gradient) for wire, gradient in zip(wires, gradients, strict=True)]
            small = [tensor for tensor, _ in pairs]
            try:
                rows.send(summing)
                synchronize(grouped_allreduce_async_(small, op=self._kind, process_set=self._members))
                for wire, gradient, (reduced, ctx) in zip(wires, gradients, pairs, strict=True):
                    _take_back(wire, gradient, wire.decompress(reduced, ctx))
                for index in self._sparse:
                    self._parameters[index].grad = rows.take(index)
            finally:
                rows.forget()  # a script's decompress() may raise while the core reads them

    def _wire_of(self, gradient: torch.Tensor) -> Any:
        is_own = name_in_core(self._compression) is None
        return self._compression if is_own or gradient.dtype == torch.float32 else NoneCompressor

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Makes step() skip synchronize(), which the script has called already, while the context is open."""
        self._skips_synchronize = True
        try:
            yield
        finally:
            self._skips_synchronize = self._is_synchronized = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Averages the gradients and runs the step of the optimizer."""
        if self._is_synchronized and not self._skips_synchronize:
            warnings.warn(
                "[smdp] step() was called after synchronize() and outside skip_synchronize(). smdp uses the"
                " gradients as they are, but Horovod would reduce them a second time. Call step() inside"
                " `with optimizer.skip_synchronize():`.",
                stacklevel=2,
            )
        elif not self._skips_synchronize and (
            closure is None or self._pass
        ):  # otherwise the closure runs backward
            self.synchronize()
        self._is_synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, as the optimizer does, and restarts the count of backward passes."""
        self._begin_step()
        super().zero_grad(set_to_none)  # type: ignore[misc]


def _give_zeros(parameter: Parameter) -> None:
    """Sets a gradient of zeros, as Horovod does, for scripts that read it before the first backward.

    The first gradient that is computed replaces it, because a sparse one would not stay sparse if it were
    added to zeros.
    """
    if parameter.grad is not None:
        return
    zeros = parameter.grad = stand_in_like(parameter)
    me = weakref.ref(parameter)

    def make_way(_: torch.Tensor) -> None:
        handle.remove()
        found = me()
        if found is not None and found.grad is zeros and not zeros.any():
            found.grad = None

    handle = parameter.register_hook(make_way)


def _take_back(wire: Any, gradient: torch.Tensor, whole: torch.Tensor) -> None:
    if whole.shape != gradient.shape:  # copy_() would broadcast a smaller one
        raise ValueError(
            f"[smdp] decompress() of {wire} returned shape {list(whole.shape)} for a gradient of"
            f" shape {list(gradient.shape)}."
        )
    if gradient is not whole:
        gradient.copy_(whole)


def _is_on_cpu(parameter: torch.Tensor) -> bool:
    return bool(parameter.device.type == "cpu")


def _counting(optimizer: weakref.ref[_DistributedOptimizer]) -> Callable[[torch.Tensor], None]:
    # A weak reference: the garbage collector does not see the hooks that the parameter holds.
    def count(parameter: torch.Tensor) -> None:
        found = optimizer()
        if found is not None and _owners[id(parameter)] is optimizer:
            found._count(parameter)

    return count


def _densify(parameter: torch.Tensor) -> None:
    if parameter.grad is not None and parameter.grad.layout is not torch.strided:
        parameter.grad = parameter.grad.to_dense()
