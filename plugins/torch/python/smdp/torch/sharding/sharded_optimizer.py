"""An optimizer that updates the shard of this rank and sends it to the other ranks."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.data_parallel.averaged_gradients import AveragedGradients, AveragingModel
from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.process_group.profiling import ranged
from smdp.torch.sharding.elementwise import check_elementwise
from smdp.torch.sharding.shard_layout import ShardLayout, is_dense
from smdp.torch.sharding.shard_owners import ShardOwners
from smdp.torch.sharding.sharded_gradient import ShardedGradient
from smdp.torch.sharding.sharded_state import ShardedState

_SCOPES = ("world", "host")
_KEEPING = ("int8", "topk")


class ShardedOptimizer(OptimizerLink):
    """Keeps the state of an optimizer once for all ranks instead of once per rank.

    Each rank owns an equal part of the parameters' bytes. After backward it has the mean gradients of its own
    part, updates it, and sends it to the other ranks. Without compression, this is no more traffic between
    hosts than data parallel training has, and an optimizer whose update is elementwise trains to the same
    bits as without sharding.

    The gradients of the model become `ShardedGradient`s: clipping, loss scaling and accumulation work on them
    as usual, and all ranks must call them together. The wrapped optimizer's groups stay the same objects, so
    schedulers made before or after wrapping both work. `state` has this rank's pieces only.

    Args:
        optimizer: A torch optimizer of the model's parameters whose update is elementwise, such as SGD, Adam
            or AdamW. Its `step()` must not be called any more.
        model: A DistributedDataParallel of smdp, or the result of `smdp.torch.pipeline()`, on the CPU. The
            state of a pipeline's stage is distributed over its replicas.
        scope: "world": each element has one owner among all ranks. "host": one owner on every host, which
            leaves less to send between hosts and keeps the state once per host.

    Attributes:
        layout: Which pieces of the parameters this rank owns.

    Raises:
        ValueError: The optimizer, the model or the scope is not supported.

    Example:
        >>> model = smdp.torch.DistributedDataParallel(model)  # doctest: +SKIP
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # doctest: +SKIP
        >>> optimizer = smdp.torch.ShardedOptimizer(optimizer, model)  # doctest: +SKIP
    """

    # GradScaler must unscale before step(), which then needs no scale.
    _step_supports_amp_scaling = False

    def __init__(self, optimizer: Optimizer, model: AveragingModel, scope: str = "world") -> None:
        _check_arguments(optimizer, model, scope)
        given = [one for group in optimizer.param_groups for one in group["params"]]
        hooks = model.averaged_gradients("ShardedOptimizer", given)
        _check_hooks(hooks)
        super().__init__(optimizer)
        self._hooks = hooks
        self._names = {id(one): name for name, one in model.module.named_parameters()}
        self._index = {id(one): index for index, one in enumerate(hooks.parameters)}
        if not given and hooks.parameters:
            raise ValueError("[smdp] ShardedOptimizer: the optimizer has no parameters.")
        self._check_known(given)
        keys = check_elementwise(optimizer, optimizer.param_groups)
        reducer = hooks.shard(scope)
        owners = ShardOwners(model.process_group, scope, reducer, len(hooks.parameters))
        self._owners = owners
        self.layout = ShardLayout(reducer, hooks.parameters, [one.name for one in hooks.registered])
        self._state = ShardedState(optimizer, self.layout, owners, self._index)
        for one in given:
            self._state.add(one, keys)
        self._whole: dict[int, Any] | None = None
        hooks.shards = self

    @property
    def state(self) -> dict[Any, Any]:
        """The state of this rank's pieces, in a new dict."""
        return dict(self.inner.state)

    def mean(self, index: int, lent: Tensor | None) -> Tensor:
        """Returns the mean of a gradient, of which this rank has its pieces."""
        pieces = self.layout.means(index, lent)
        parameter = self._hooks.parameters[index]
        return ShardedGradient(parameter, index, self.layout.pieces[index], pieces, self._owners)

    def contribution(self, grad: Tensor) -> Tensor:
        """Returns what this rank adds to the next mean, given a parameter's gradient."""
        return grad.contribution() if isinstance(grad, ShardedGradient) else grad

    def agree(self, holds: bool) -> bool:
        """Returns whether something holds on all ranks that have pieces. Collective."""
        return self._owners.agree(holds)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates this rank's shard, sends it to the other ranks, and receives theirs. Collective.

        Raises:
            RuntimeError: A gradient is not averaged, or a parameter was converted.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self.layout.bring_back()
            try:
                for index, pieces in self._state.pieces.items():
                    self._give_gradients(index, pieces)
                with self._pieces_in_groups():
                    self.inner.step()
            finally:
                for pieces in self._state.pieces.values():
                    for piece in pieces:
                        piece.grad = None
            self._whole = None
            self._send()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of the model's parameters."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if set_to_none:
                        parameter.grad = None
                    else:
                        parameter.grad.zero_()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters that the model already averages, for example after unfreezing."""
        given = param_group["params"]
        group = {**param_group, "params": [given] if isinstance(given, Tensor) else list(given)}
        self._check_known(group["params"])
        keys = check_elementwise(self.inner, [{**self.inner.defaults, **group}])
        self.inner.add_param_group(group)
        for one in group["params"]:
            self._state.add(one, keys)
        self._whole = None

    def consolidate(self, to: int | None = None) -> None:
        """Collects the whole state on one rank, where `state_dict()` then returns it. Collective.

        For a pipeline, this is the state of this rank's stages.

        Args:
            to: The global rank. Default: the first rank that holds the same parameters.

        Raises:
            ValueError: That rank does not average the model's gradients.
        """
        ranks = torch.distributed.get_process_group_ranks(self._owners.group)
        to = ranks[0] if to is None else to
        if to not in ranks:
            raise ValueError(
                f"[smdp] consolidate(to={to}): the ranks of this optimizer are"
                f" {', '.join(map(str, ranks))}. Pass one of them."
            )
        self.layout.bring_back()
        self._whole = self._state.collect(to)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that `consolidate()` has collected, in the form of the unsharded optimizer's.

        Raises:
            RuntimeError: `consolidate()` was not called since the last step, or for another rank.
        """
        if self._whole is None:
            raise RuntimeError(
                "[smdp] the state of a ShardedOptimizer is distributed over the ranks. Call"
                " optimizer.consolidate(to=0) on all ranks, then state_dict() on rank 0."
            )
        return {"state": self._whole, "param_groups": self._state.groups()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes this rank's pieces of the state of an unsharded optimizer, or of a consolidated one.

        Raises:
            ValueError: The groups or the shapes differ from this optimizer's.
        """
        self.layout.bring_back()
        self._state.load(state_dict)
        self._whole = None

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses copies, which would own the same shards."""
        raise TypeError(
            "[smdp] a ShardedOptimizer cannot be copied or pickled, because its state is distributed over"
            " the ranks. Save what state_dict() returns after consolidate()."
        )

    @contextlib.contextmanager
    def _pieces_in_groups(self) -> Iterator[None]:
        """Puts this rank's pieces in place of the parameters into the groups of the wrapped optimizer."""
        groups = list(self.inner.param_groups)
        whole = [group["params"] for group in groups]
        try:
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = [piece for one in parameters for piece in self._state.pieces_of(one)]
            yield
        finally:
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = parameters

    def _send(self) -> None:
        """Sends the pieces of this rank, and waits for those of the others."""
        with ranged("gather parameters"):
            gather = self.layout.gather()
            for number in range(self.layout.size):
                gather.ready(number)
            gather.wait()
        for index in self._state.pieces:  # a graph that was recorded before must not be used any more
            torch.autograd.graph.increment_version(self._hooks.parameters[index])

    def _give_gradients(self, index: int, pieces: list[Parameter]) -> None:
        grad = self._hooks.parameters[index].grad
        if grad is None:
            return
        if not isinstance(grad, ShardedGradient):
            name = self._hooks.registered[index].name
            raise RuntimeError(
                f"[smdp] the gradient of parameter {name!r} is not averaged: it comes from no_sync(), from"
                " another model, or was assigned. Call step() after a backward that averages gradients."
            )
        for piece, own in zip(pieces, grad.averaged("step()"), strict=True):
            piece.grad = own

    def _check_known(self, parameters: Iterable[Parameter]) -> None:
        for one in parameters:
            if id(one) not in self._index:
                name = self._names.get(id(one))
                shown = f"of shape {tuple(one.shape)}" if name is None else repr(name)
                raise ValueError(
                    f"[smdp] ShardedOptimizer: the optimizer has parameter {shown}, whose gradient the model"
                    f" does not average. {self._hooks.which}"
                )


def _check_arguments(optimizer: object, model: object, scope: str) -> None:
    if scope not in _SCOPES:
        raise ValueError(f"[smdp] ShardedOptimizer: scope is {scope!r}; allowed: {', '.join(_SCOPES)}.")
    if not callable(getattr(model, "averaged_gradients", None)):
        raise ValueError(
            f"[smdp] ShardedOptimizer got a {type(model).__name__}, but needs a model wrapped in"
            " smdp.torch.DistributedDataParallel, or the result of smdp.torch.pipeline()."
        )
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, OptimizerLink):
        raise ValueError(
            f"[smdp] ShardedOptimizer got a {type(optimizer).__name__} in place of an optimizer. Pass a torch"
            " optimizer that is not sharded or wrapped yet; wrappers go around the ShardedOptimizer."
        )


def _check_hooks(hooks: AveragedGradients) -> None:
    """Checks that what the model averages can be sharded."""
    if hooks.shards is not None or (isinstance(hooks, GradientHooks) and hooks.deferral is not None):
        raise ValueError(
            "[smdp] this model is already in a StepInForward or a ShardedOptimizer. Create only one for a"
            " model."
        )
    if isinstance(hooks, GradientHooks):
        _check_reducer(hooks)
    for registered, parameter in zip(hooks.registered, hooks.parameters, strict=True):
        if not is_dense(parameter):
            raise ValueError(
                f"[smdp] ShardedOptimizer: parameter {registered.name!r} of shape {tuple(parameter.shape)}"
                f" with strides {parameter.stride()} has gaps in its memory. Make it from a contiguous"
                " tensor."
            )


def _check_reducer(hooks: GradientHooks) -> None:
    """Checks what only data parallel models may have."""
    if hooks.compression in _KEEPING:
        raise ValueError(
            f"[smdp] ShardedOptimizer cannot be used with compression={hooks.compression!r}, whose kept"
            " errors it would lose. Use 'none', 'fp16' or 'bf16'."
        )
    if hooks.shared.indices:
        gc.collect()  # a replaced wrapper is in a reference cycle with its hooks
    for index, registered in enumerate(hooks.registered):
        if hooks.shared.others(index):
            raise ValueError(
                f"[smdp] ShardedOptimizer: parameter {registered.name!r} also belongs to another wrapped"
                " model, which could not average its gradient. Use one wrapper for a parameter."
            )
