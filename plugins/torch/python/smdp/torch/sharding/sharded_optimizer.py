"""An optimizer that updates the shard of this rank and sends it to the other ranks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.data_parallel.averaged_gradients import AveragingModel
from smdp.torch.forward_waits.awaited_parameters import AwaitedParameters
from smdp.torch.forward_waits.forward_waits import end_at_exit
from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.process_group import completion
from smdp.torch.sharding.accepted_arguments import Accepted, accept, check_model, names_of, ways_to_add
from smdp.torch.sharding.host_parameters import HostParameters, tell_unusable
from smdp.torch.sharding.master_parameters import MasterParameters
from smdp.torch.sharding.offloaded_state import OffloadedState
from smdp.torch.sharding.readable_state import ReadableState
from smdp.torch.sharding.returning_parameters import ReturningParameters, awaited_parameters
from smdp.torch.sharding.same_choices import agreed, described
from smdp.torch.sharding.scope_choice import check_host_scope, choose, demand_of
from smdp.torch.sharding.shard_layout import Piece, ShardLayout
from smdp.torch.sharding.shard_lists import ShardLists
from smdp.torch.sharding.shard_update import ShardUpdate
from smdp.torch.sharding.sharded_gradient import ShardedGradient
from smdp.torch.sharding.sharded_state import ShardedState
from smdp.torch.sharding.write_watch import WriteWatch


class ShardedOptimizer(OptimizerLink):
    """Keeps the state of an optimizer once for all ranks instead of once per rank.

    Each rank owns an equal part of the parameters' bytes, or whole tensors if the optimizer needs them. After
    backward it has the mean gradients of its own part, updates it, and sends it to the other ranks. Without
    compression, this is no more traffic between hosts than data parallel training has, and trains to the same
    bits.

    The gradients of the model become `ShardedGradient`s: clipping, loss scaling and accumulation work on them
    as usual, and all ranks must call them together. The wrapped optimizer's groups stay the same objects, so
    schedulers made before or after wrapping both work. `state` has this rank's pieces only.

    Args:
        optimizer: A torch optimizer of the model's parameters that updates each element by itself, such as
            SGD, Adam or AdamW, or each tensor, such as Muon or Adafactor. Its `step()` must not be called any
            more.
        model: A DistributedDataParallel of smdp, or the result of `smdp.torch.pipeline()`, on the CPU. The
            state of a pipeline's stage is distributed over its replicas.
        scope: "world": each element has one owner among all ranks. "host": one owner on every host, which
            leaves less to send between hosts and keeps the state once per host. "auto": the one with which
            less time passes between backward and the next forward, by the cost model, if its state fits in
            memory.
        master_dtype: `torch.float32`: the owners keep 16-bit parameters in 32 bits, and update these masters.
            The gradients and the parameters travel with 16 bits. Other parameters have no masters.
        overlap_forward: Whether `step()` returns while parameters travel back, those of the front layers
            first. The next forward awaits them, and so does any operation that reads them before. Call
            `settle()` before a C++ extension or another thread's `torch.func` reads parameters, and if views
            of them were made earlier. Turn it off if only some forwards read parameters of other modules by
            `torch.func` or a C++ extension. `step()` does not return early in a pipeline, with
            `share_parameters`, or after the process has compiled code with torch.compile.
        share_parameters: Whether the ranks of a host keep one copy of the parameters, in shared memory.
            Writing to them outside of `step()` changes those of all ranks.
        offload: "disk:/DIRECTORY": this rank's state and masters are in a file on a local disk, except for
            the few fusion buffers that are updated next. What reads the state, such as a checkpoint, reads
            the file. An optimizer with step hooks, or one that keeps something per group, has all of its
            state in memory during `step()`. Writes by `.data` are lost. Default: the state is in memory.

    Attributes:
        layout: Which pieces of the parameters this rank owns.
        readable: The state of each parameter, for checkpoints.
        keeps_masters: Whether 16-bit parameters are updated in 32 bits.

    Raises:
        ValueError: The optimizer, the model or the scope is not supported, or the ranks have passed different
            ones.
        RuntimeError: Another rank has raised an error.

    Example:
        >>> model = smdp.torch.DistributedDataParallel(model)  # doctest: +SKIP
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # doctest: +SKIP
        >>> optimizer = smdp.torch.ShardedOptimizer(optimizer, model)  # doctest: +SKIP
    """

    takes_loss_scale = True

    def __init__(
        self,
        optimizer: Optimizer,
        model: AveragingModel,
        scope: str = "world",
        *,
        master_dtype: torch.dtype | None = None,
        share_parameters: bool = False,
        overlap_forward: bool = True,
        offload: str | None = None,
    ) -> None:
        check_model(model)
        group = model.process_group
        options = [
            f"scope={scope!r}",
            f"master_dtype={master_dtype}",
            f"share_parameters={share_parameters}",
            f"overlap_forward={overlap_forward}",
            f"offload={None if offload is None else 'a directory'}",
        ]
        gradients, given, ways, _ = accepted = agreed(
            model.stage_group,
            "ShardedOptimizer",
            lambda: accept(optimizer, model, scope, master_dtype, offload),
            lambda found: options + described(optimizer, optimizer.param_groups, found.gradients),
        )
        super().__init__(optimizer)
        self._gradients = gradients
        self._names = names_of(model)
        self._index = {id(one): index for index, one in enumerate(gradients.parameters)}
        self._common = None
        if share_parameters:
            names = [one.name for one in gradients.registered]
            self._common = HostParameters(group, gradients.parameters, names)
        is_overlapped = overlap_forward and gradients.called is not None and not share_parameters
        self._masters = MasterParameters(master_dtype)
        self.keeps_masters = master_dtype is not None
        if scope == "auto":
            demand = demand_of(given, ways.keys, self._masters, is_overlapped=is_overlapped)
            scope = choose(demand, group, gradients.hooks[0].reducer if gradients.hooks else None)
        elif scope == "host":
            check_host_scope(group.core.hosts)
        # Parameters of groups that are added later are treated as the others are.
        uncut = gradients.parameters if ways.is_whole else ways.whole
        self._uncut = frozenset(self._index[id(one)] for one in uncut)
        self._group, self._stage_group = group, model.stage_group
        self._lists = ShardLists(gradients, group, scope, self._uncut)
        try:
            self._take_over(model, optimizer, accepted, is_overlapped=is_overlapped)
        except BaseException as error:  # nothing else would take the means of these reducers
            self._lists.reducer.abort(f"a ShardedOptimizer could not be created: {error}")
            raise

    def _take_over(
        self,
        model: AveragingModel,
        optimizer: Optimizer,
        accepted: Accepted,
        *,
        is_overlapped: bool,
    ) -> None:
        """Moves parameters and state to where they are updated, and the means to their owners."""
        gradients, given, ways, pool = accepted
        names, lists = [one.name for one in gradients.registered], self._lists
        self.layout = ShardLayout(lists.reducer, gradients.parameters, names, self._uncut, self._common)
        self._watch = None
        if self._common is not None:
            self._watch = WriteWatch(model.module, gradients.parameters, names, self._common.await_host)
            self._common.trim()
        self._state = ShardedState(
            optimizer, self.layout, lists.owners, lists.groups, self._index, self._masters
        )
        for one in given:
            self._state.add(one, ways.keys)
        self._whole: dict[int, Any] | None = None
        self.readable = ReadableState(self._state, self.layout, lists.owners)
        self._returning = ReturningParameters(
            self.layout, gradients.parameters, self._state.pieces, self._watch
        )
        self._offloaded: OffloadedState | None = None
        if pool is not None:
            self._offloaded = OffloadedState(pool, self.layout, self._state, optimizer)
            self._offloaded.put_all_away()
        self._update = ShardUpdate(optimizer, gradients, self.layout, self._state, lists, self._offloaded)
        self._waits: AwaitedParameters | None = None
        if is_overlapped and gradients.called is not None:
            self._waits = awaited_parameters(gradients.called, gradients.parameters, self._returning)
        gradients.shards = self
        lists.take_over(self.layout)
        end_at_exit(self)

    def __del__(self) -> None:
        """Ends what is under way, which uses memory that this object holds."""
        returning = self.__dict__.get("_returning")
        if returning is None:
            return
        with contextlib.suppress(Exception):
            if self._waits is not None:
                self._waits.remove_hooks()
            if not self._lists.is_over or returning.pending:
                if completion.is_current_thread():  # waiting here could block the thread that ends it
                    self._lists.reducer.abort("a ShardedOptimizer was collected in the middle of a step")
                else:
                    self.end()
            if self._common is not None and not sys.is_finalizing():
                self._common.leave(self._gradients.parameters)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a loss scaler leaves gradients as they are, because it refuses to unscale those in fp16."""
        return bool(self._masters)

    @property
    def state(self) -> dict[Any, Any]:
        """The state of this rank's pieces, in a new dict."""
        return dict(self.inner.state)

    def settle(self) -> None:
        """Waits until all gradients of the last backward and all parameters of the last step have arrived.

        Functions of torch that read parameters wait by themselves; see `overlap_forward`.

        Raises:
            RuntimeError: An earlier error has left parts of the model without their new values.
        """
        self._lists.end()
        self._settle_parameters()

    def end(self) -> None:
        """Waits until nothing is under way, without a look at earlier errors."""
        self._lists.end()
        self._returning.receive_all()
        if self._waits is not None:
            self._waits.release()

    def owned(self) -> dict[str, list[tuple[Piece, Parameter]]]:
        """Returns this rank's pieces of the optimizer's parameters by name, and where they are.

        The pieces are views of the parameters, and the keys of `state`.
        """
        return {
            self._gradients.registered[index].name: list(zip(self.layout.pieces[index], pieces, strict=True))
            for index, pieces in self._state.pieces.items()
        }

    @property
    def shared_by_slices(self) -> frozenset[str]:
        """The names of the parameters of which ranks with other slices own pieces as well."""
        owners = zip(self.layout.names, self._lists.owners, strict=True)
        return frozenset(name for name, each in owners if each.spans_slices)

    @property
    def keys_per_parameter(self) -> frozenset[Any]:
        """The keys of the state that are not cut into pieces."""
        return self._state.keys.per_parameter

    def mean(self, index: int, lent: Tensor | None) -> Tensor:
        """Returns the mean of a gradient, of which this rank has its pieces."""
        own = self._lists.take(index, lent, is_alone=self.layout.is_alone(index))
        parameter, ranges = self._gradients.parameters[index], self.layout.pieces[index]
        means, owners = self.layout.means(index, lent, own), self._lists.owners[index]
        return ShardedGradient(parameter, index, ranges, means, owners)

    def hand_over(self, index: int) -> None:
        """Makes memory for the mean of a gradient."""
        self._lists.hand_over(index)

    def handed_over(self, index: int) -> None:
        """Frees gradients that are summed already."""
        self._lists.handed_over(index)

    def contribution(self, grad: Tensor) -> Tensor:
        """Returns what this rank adds to the next mean, given a parameter's gradient."""
        return grad.contribution() if isinstance(grad, ShardedGradient) else grad

    def own(self, mean: Tensor) -> list[Tensor]:
        """Returns the pieces of a mean that this rank owns, which may be changed."""
        assert isinstance(mean, ShardedGradient)
        return mean.pieces

    def own_sizes(self, index: int) -> list[int]:
        """Returns the numbers of elements of these pieces."""
        return [piece.end - piece.begin for piece in self.layout.pieces[index]]

    def agree(self, holds: bool) -> bool:
        """Returns whether something holds on all ranks that have pieces. Collective."""
        return self._lists.agree(holds)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates this rank's shard, sends it to the other ranks, and receives theirs. Collective.

        Raises:
            RuntimeError: A gradient is not averaged, or a parameter was converted.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # A loss scaler has set these if it leaves gradients as they are.
        scale, lost = self.__dict__.get("grad_scale"), self.__dict__.get("found_inf")
        if lost is not None and lost:
            return loss
        with torch.no_grad(), self._told():
            self._settle_parameters()
            if self._watch is not None:
                self._watch.check()
            self.layout.bring_back()
            self._whole = None
            self._returning.expect(self._update.run(scale))
            if self._waits is None:
                self._returning.receive_all()
            else:
                self._waits.begin()
        if self._common is not None:
            self._common.trim()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of the parameters in the optimizer's groups."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if set_to_none:
                        parameter.grad = None
                    else:
                        parameter.grad.zero_()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters that the model already averages. Collective.

        Use it for example after unfreezing.

        Raises:
            ValueError: The ranks add other groups, or the group cannot be sharded.
        """
        given = param_group["params"]
        group = {**param_group, "params": [given] if isinstance(given, Tensor) else list(given)}
        whole_group = {**self.inner.defaults, **group}
        ways = agreed(
            self._stage_group,
            "add_param_group()",
            lambda: ways_to_add(
                self.inner, whole_group, self._gradients, self._names, self._masters, self.layout
            ),
            lambda _: described(self.inner, [whole_group], self._gradients),
        )
        self.inner.add_param_group(group)
        for one in group["params"]:
            self._state.add(one, ways.keys)
        self._whole = None

    def consolidate(self, to: int | None = None) -> None:
        """Collects the whole state on one rank, where `state_dict()` then returns it. Collective.

        For a pipeline, this is the state of this rank's stages. With tensor parallelism, all ranks of a stage
        call it together, and each slice is collected on a rank of its own. Until the next step, the state can
        be collected on several ranks, one after the other.

        Args:
            to: The global rank. Default: the first rank that holds the same parameters.

        Raises:
            ValueError: That rank does not hold the same parameters.
        """
        ranks = torch.distributed.get_process_group_ranks(self._group)
        to = ranks[0] if to is None else to
        if to not in ranks:
            raise ValueError(
                f"[smdp] consolidate(to={to}): the ranks of this optimizer are"
                f" {', '.join(map(str, ranks))}. Pass one of them."
            )
        self.settle()
        self.layout.bring_back()
        if (whole := self._state.collect(to)) is not None:
            self._whole = whole

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that `consolidate()` has collected, in the form of the unsharded optimizer's.

        Raises:
            RuntimeError: `consolidate()` was not called since the last step, or for another rank.
        """
        self.settle()
        if self._whole is None:
            raise RuntimeError(
                "[smdp] the state of a ShardedOptimizer is distributed over the ranks. Call"
                " optimizer.consolidate(to=0) on all ranks, then state_dict() on rank 0."
            )
        state = {number: dict(entry) for number, entry in self._whole.items()}
        return {"state": state, "param_groups": self._state.groups()}

    def local_state(self) -> dict[str, list[tuple[Piece, dict[str, Any]]]]:
        """Returns this rank's part of the state, by the names of the parameters.

        The dicts are new, but their tensors are the optimizer's own. A tensor with one number for each
        element is one-dimensional and in memory order, unless the optimizer needs whole tensors.

        Returns:
            For each parameter, this rank's ranges of its elements, and the state of each range. The list is
            empty for a parameter of which this rank owns nothing.

        Example:
            >>> for name, ranges in optimizer.local_state().items():  # doctest: +SKIP
            ...     for piece, state in ranges:
            ...         print(name, piece.begin, piece.end, state["exp_avg"].norm())
        """
        return self.readable.local()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes this rank's pieces of the state of an unsharded optimizer, or of a consolidated one.

        Raises:
            ValueError: The state is that of another optimizer, or of other parameters. Nothing is changed
                then.
        """
        self.settle()
        self.layout.bring_back()
        self._state.load(state_dict)
        if self._offloaded is not None:
            self._offloaded.put_all_away()
        self._whole = None

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses copies, which would own the same shards."""
        raise TypeError(
            "[smdp] a ShardedOptimizer cannot be copied or pickled, because its state is distributed over"
            " the ranks. Save what state_dict() returns after consolidate()."
        )

    def _settle_parameters(self) -> None:
        if self._waits is None:
            self._returning.receive_all()
        else:
            self._waits.settle()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Ends the wait of the other ranks with the reason if this rank cannot take part in a step."""
        try:
            yield
        except BaseException as error:
            reason = str(error).removeprefix("[smdp] ") or type(error).__name__
            reason = f"step() of a ShardedOptimizer failed: {reason}"
            self._lists.reducer.abort(reason)
            if self._common is not None:
                self._common.abort(reason)
                tell_unusable(error)
            raise
