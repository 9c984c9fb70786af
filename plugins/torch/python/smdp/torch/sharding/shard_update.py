"""The update of this rank's shard, fusion buffer by fusion buffer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.data_parallel.averaged_gradients import AveragedGradients
from smdp.torch.optimizers.step_part import has_step_hooks, step_part
from smdp.torch.sharding.joined_reducers import JoinedGather
from smdp.torch.sharding.kept_values import keeps_per_group, kept_values
from smdp.torch.sharding.offloaded_state import OffloadedState
from smdp.torch.sharding.shard_layout import ShardLayout
from smdp.torch.sharding.shard_lists import ShardLists
from smdp.torch.sharding.sharded_gradient import ShardedGradient
from smdp.torch.sharding.sharded_state import ShardedState


class ShardUpdate:
    """Updates this rank's pieces and sends them, while means of other pieces still arrive.

    Each fusion buffer travels as soon as its pieces are updated. The first step with a gradient of a group is
    made as a whole, to find out whether the optimizer keeps something per group. Such an optimizer, and one
    with step hooks, always steps as a whole.

    Args:
        optimizer: The wrapped optimizer. Its groups have the parameters of the model.
        gradients: Have the gradients.
        layout: The fusion buffers.
        state: Has the pieces.
        lists: Have the means of the last backward.
        offloaded: Brings the state of a fusion buffer into memory for its update; None: it always is there.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        gradients: AveragedGradients,
        layout: ShardLayout,
        state: ShardedState,
        lists: ShardLists,
        offloaded: OffloadedState | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._gradients = gradients
        self._layout = layout
        self._state = state
        self._lists = lists
        self._offloaded = offloaded
        self._group_of: dict[int, int] = {}  # by index of the parameter
        self._known: set[int] = set()  # groups that had a gradient here in a step that was made as a whole
        self._is_per_group = False
        self._factor: Tensor | None = None

    def run(self, loss_scale: Tensor | None = None) -> JoinedGather:
        """Updates and sends all pieces. Collective.

        Args:
            loss_scale: What the gradients are to be divided by; None: nothing.

        Returns:
            The parameters on their way.

        Raises:
            RuntimeError: A gradient is not averaged; nothing is changed then. Or the optimizer has begun
                to keep something per group.
        """
        for index in self._state.pieces:
            self._check_gradient(index)
        for number, group in enumerate(self._optimizer.param_groups):
            for parameter in group["params"]:
                self._group_of[self._state.index_of[id(parameter)]] = number
        gather = self._layout.gather()
        # As torch's GradScaler computes it.
        self._factor = None if loss_scale is None else loss_scale.double().reciprocal().float()
        try:
            used = self._used_groups()
            if self._offloaded is not None:
                self._offloaded.begin()
                if not used <= self._known:  # a step as a whole would need the whole state in memory
                    self._is_per_group = self._is_per_group or keeps_per_group(self._optimizer)
                    self._known |= used
            is_known = bool(self._known) and used <= self._known
            if not is_known or self._is_per_group or has_step_hooks(self._optimizer):
                self._lists.end()
                self._step_whole()
                self._known |= used
                for number in range(self._layout.size):
                    gather.ready(number)
            else:
                for numbers in self._lists.in_order():
                    self._step_buffers(numbers)
                    for number in numbers:
                        gather.ready(number)
                self._lists.end()
            if self._offloaded is not None:
                self._offloaded.end()
        finally:
            self._take_gradients(self._state.pieces)
        return gather

    def _step_whole(self) -> None:
        if self._offloaded is not None:
            for number in range(self._layout.size):
                self._offloaded.bring(number)
        self._give_gradients(self._state.pieces)
        before = None if self._is_per_group else kept_values(self._optimizer)
        with self._pieces_in_groups():
            self._optimizer.step()
        if before is not None:
            self._is_per_group = kept_values(self._optimizer) != before
        self._state.round(self._state.pieces)
        if self._offloaded is not None:
            self._offloaded.put_away(range(self._layout.size))

    def _step_buffers(self, numbers: Sequence[int]) -> None:
        """Updates the pieces of fusion buffers, one after the other if their state comes from a file."""
        if self._offloaded is None:
            self._step_part(index for number in numbers for index in self._layout.members(number))
            return
        for number in numbers:
            members = self._layout.members(number)
            if any(self._gradients.parameters[index].grad is not None for index in members):
                self._offloaded.bring(number)
                self._step_part(members)
                self._offloaded.put_away([number])

    def _step_part(self, indices: Iterable[int]) -> None:
        groups = self._optimizer.param_groups
        parts: list[list[Parameter]] = [[] for _ in groups]
        mine = [index for index in indices if self._state.pieces.get(index)]
        self._give_gradients(mine)
        for index in mine:
            parts[self._group_of[index]] += self._state.pieces[index]
        if any(parts):
            key = step_part(self._optimizer, self._optimizer.step, groups, parts)
            if key is not None:
                name = type(self._optimizer).__name__
                raise RuntimeError(
                    f"[smdp] {name} has changed the option {key!r} of a parameter group in step(), and"
                    " not in its first step, so this step has changed it once per fusion buffer. Let the"
                    " first step() change it as well, or register a step hook, with which smdp always updates"
                    " all parameters together."
                )
            self._state.round(mine)
            self._take_gradients(mine)

    def _used_groups(self) -> set[int]:
        """Returns the numbers of the groups of which this rank has pieces with a gradient."""
        return {
            self._group_of[index]
            for index, pieces in self._state.pieces.items()
            if pieces and self._gradients.parameters[index].grad is not None
        }

    @contextlib.contextmanager
    def _pieces_in_groups(self) -> Iterator[None]:
        """Puts this rank's pieces in place of the parameters into the groups of the wrapped optimizer."""
        groups = list(self._optimizer.param_groups)
        whole = [group["params"] for group in groups]
        try:
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = [piece for one in parameters for piece in self._state.pieces_of(one)]
            yield
        finally:
            for group, parameters in zip(groups, whole, strict=True):
                group["params"] = parameters

    def _give_gradients(self, indices: Iterable[int]) -> None:
        for index in indices:
            grad = self._gradients.parameters[index].grad
            if isinstance(grad, ShardedGradient):
                self._state.follow(index)
                for piece, own in zip(self._state.pieces[index], grad.arriving(), strict=True):
                    given = self._layout.shaped(index, own).to(piece.dtype)
                    piece.grad = given if self._factor is None else given * self._factor

    def _take_gradients(self, indices: Iterable[int]) -> None:
        for index in indices:
            for piece in self._state.pieces[index]:
                piece.grad = None

    def _check_gradient(self, index: int) -> None:
        grad = self._gradients.parameters[index].grad
        if isinstance(grad, ShardedGradient):
            grad.check_averaged("step()")
        elif grad is not None:
            name = self._gradients.registered[index].name
            raise RuntimeError(
                f"[smdp] the gradient of parameter {name!r} is not averaged: it comes from no_sync(), from"
                " another model, or was assigned. Call step() after a backward that averages gradients."
            )
