"""An optimizer that updates the shard of this rank and sends it to the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.data_parallel.distributed_data_parallel import DistributedDataParallel
from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.process_group.profiling import ranged
from smdp.torch.sharding.elementwise import check_elementwise
from smdp.torch.sharding.shard_layout import ShardLayout
from smdp.torch.sharding.sharded_gradient import ShardedGradient, ShardOwners
from smdp.torch.sharding.whole_state import collect_state, cut_state

_SCOPES = ("world", "host")


class ShardedOptimizer(OptimizerLink):
    """Keeps the state of an optimizer once for all ranks instead of once per rank.

    Each rank owns an equal part of the parameters' bytes. After backward it has the mean gradients of its own
    part, updates it, and sends it to the other ranks. The traffic is that of data parallel training. With an
    optimizer whose update is elementwise, training gives the same bits as without sharding.

    The gradients of the model become `ShardedGradient`s: clipping, loss scaling and accumulation work on them
    as usual, and all ranks must call them together.

    Args:
        optimizer: An optimizer of the model's parameters whose update is elementwise, such as SGD, Adam or
            AdamW. It must not be used any more by itself.
        model: The wrapped model, on the CPU.
        scope: "world": each element has one owner among all ranks. "host": one owner on every host, which
            leaves less to send between hosts and keeps the state once per host.

    Raises:
        ValueError: The optimizer, the model or the scope is not supported.

    Example:
        >>> model = smdp.torch.DistributedDataParallel(model)  # doctest: +SKIP
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # doctest: +SKIP
        >>> optimizer = smdp.torch.ShardedOptimizer(optimizer, model)  # doctest: +SKIP
    """

    # GradScaler must unscale before step(), which then needs no scale.
    _step_supports_amp_scaling = False

    def __init__(self, optimizer: Optimizer, model: DistributedDataParallel, scope: str = "world") -> None:
        if scope not in _SCOPES:
            raise ValueError(f"[smdp] ShardedOptimizer: scope is {scope!r}; allowed: {', '.join(_SCOPES)}.")
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(
                f"[smdp] ShardedOptimizer got a {type(model).__name__}, but needs a model wrapped in"
                " smdp.torch.DistributedDataParallel."
            )
        if not isinstance(optimizer, Optimizer) or isinstance(optimizer, ShardedOptimizer):
            raise ValueError(
                f"[smdp] ShardedOptimizer got a {type(optimizer).__name__} in place of an optimizer. Pass a"
                " torch optimizer that is not sharded yet."
            )
        hooks = model.gradient_hooks("ShardedOptimizer")
        if hooks.deferral is not None or hooks.shards is not None:
            raise ValueError(
                "[smdp] this model is already in a StepInForward or a ShardedOptimizer. Create only one for a"
                " model."
            )
        super().__init__(optimizer)
        self._hooks = hooks
        self._names = {id(one): name for name, one in model.module.named_parameters()}
        self._index = {id(one): index for index, one in enumerate(hooks.parameters)}
        self._check_parameters(optimizer)
        check_elementwise(optimizer)
        copies = len(model.process_group.core.hosts) if scope == "host" else 1
        self._owners = ShardOwners(model.process_group, copies)
        self.layout = ShardLayout(hooks.shard(scope), hooks.parameters)
        self._groups = [dict(group) for group in optimizer.param_groups]
        self._pieces: dict[int, list[Parameter]] = {}  # of this rank, by index of the parameter
        for group in optimizer.param_groups:
            group["params"] = [piece for one in group["params"] for piece in self._cut(one)]
            group.pop("param_names", None)
        self._cut_existing_state()
        self._whole: dict[str, Any] | None = None
        hooks.shards = self

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups with the model's parameters, whose options may be changed."""
        return self._groups

    def mean(self, index: int, lent: Tensor | None) -> Tensor:
        """Returns the mean of a gradient, of which this rank has its pieces."""
        pieces = self.layout.means(index, lent)
        return ShardedGradient(self._hooks.parameters[index], self.layout.pieces[index], pieces, self._owners)

    def contribution(self, grad: Tensor) -> Tensor:
        """Returns what this rank adds to the next mean, given a parameter's gradient."""
        return grad.to_local() if isinstance(grad, ShardedGradient) else grad

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates this rank's shard, sends it to the other ranks, and receives theirs. Collective.

        Raises:
            RuntimeError: A gradient is not averaged.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._take_options()
            for index, pieces in self._pieces.items():
                self._give_gradients(index, pieces)
            self.inner.step()
            for pieces in self._pieces.values():
                for piece in pieces:
                    piece.grad = None
            self._whole = None
            self._send()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of the model's parameters."""
        for group in self._groups:
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
        pieces = [piece for one in group["params"] for piece in self._cut(one)]
        self.inner.add_param_group({**group, "params": pieces})
        added = self.inner.param_groups[-1]
        self._groups.append({**{key: value for key, value in added.items() if key != "params"}, **group})

    def consolidate(self, to: int = 0) -> None:
        """Collects the whole state on one rank, where `state_dict()` then returns it. Collective.

        Args:
            to: The rank.
        """
        self._take_options()
        whole = collect_state(
            self.inner, self._groups, self._pieces, self._index, self.layout, self._owners, to
        )
        self._whole = whole

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
        return self._whole

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes this rank's pieces of the state of an unsharded optimizer, or of a consolidated one.

        Raises:
            ValueError: The groups differ from this optimizer's.
        """
        self._groups = cut_state(self.inner, self._groups, self._pieces, self._index, self.layout, state_dict)
        self._whole = None

    def _send(self) -> None:
        """Sends the pieces of this rank, and waits for those of the others."""
        with ranged("gather parameters"):
            gather = self.layout.gather()
            for number in range(self.layout.size):
                gather.ready(number)
            gather.wait()

    def _cut(self, parameter: Parameter) -> list[Parameter]:
        """Returns this rank's pieces of a parameter as parameters of the wrapped optimizer."""
        index = self._index[id(parameter)]
        if index not in self._pieces:
            self._pieces[index] = [Parameter(view) for view in self.layout.views(index)]
        return self._pieces[index]

    def _cut_existing_state(self) -> None:
        """Replaces the state that the wrapped optimizer already has by this rank's pieces of it."""
        state = self.inner.state
        for parameter in list(state):
            index = self._index.get(id(parameter))
            if index is None:
                continue
            whole = state.pop(parameter)
            for place, piece in enumerate(self._pieces[index]):
                state[piece] = self.layout.cut(index, place, whole, parameter)

    def _take_options(self) -> None:
        """Copies the options that a scheduler may have changed to the wrapped optimizer."""
        for group, inner in zip(self._groups, self.inner.param_groups, strict=True):
            inner.update({key: value for key, value in group.items() if key not in ("params", "param_names")})

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
        for piece, own in zip(pieces, grad.averaged_pieces(), strict=True):
            piece.grad = own

    def _check_parameters(self, optimizer: Optimizer) -> None:
        seen: set[int] = set()
        for group in optimizer.param_groups:
            self._check_known(group["params"])
            seen.update(map(id, group["params"]))
        if not seen:
            raise ValueError("[smdp] ShardedOptimizer: the optimizer has no parameters.")

    def _check_known(self, parameters: Iterable[Parameter]) -> None:
        for one in parameters:
            if id(one) not in self._index:
                name = self._names.get(id(one), f"of shape {tuple(one.shape)}")
                raise ValueError(
                    f"[smdp] ShardedOptimizer: the optimizer has parameter {name!r}, whose gradient the model"
                    " does not average. Pass only parameters that required a gradient when the model was"
                    " wrapped."
                )
