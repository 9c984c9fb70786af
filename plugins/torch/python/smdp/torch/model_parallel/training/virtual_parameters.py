"""What the optimizer of SMP's API updates on this rank: parameters, or views of its part of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import Parameter

from smdp.torch.model_parallel.job.state import state
from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.sharding.sharded_optimizer import ShardedOptimizer


class VirtualParameters(OptimizerLink):
    """A link that puts a `ShardedOptimizer` around the script's optimizer, and describes its pieces.

    With `shard_optimizer_state`, each piece of a parameter is a virtual parameter: a one-dimensional view. It
    never contains elements of two parameters, so it has the options of its parameter's group.
    """

    @property
    def sharded(self) -> ShardedOptimizer | None:
        """The link that shards the state; None if it is not sharded, or not yet."""
        inner = self.inner
        while isinstance(inner, OptimizerLink):
            if isinstance(inner, ShardedOptimizer):
                return inner
            inner = inner.inner
        return None

    @property
    def redefined_params(self) -> bool:
        """Whether the optimizer updates virtual parameters."""
        return self.sharded is not None

    def shard(self) -> None:
        """Shards the state over replicas if the configuration says so. All ranks of the job call it.

        It is called when there are both the optimizer and a model that has been cut. A single replica keeps
        its whole state.

        Raises:
            ValueError: The optimizer or the model is not supported.
        """
        model = state.model.averaging
        if not state.cfg.shard_optimizer_state or model is None or self.sharded is not None:
            return
        last: OptimizerLink = self
        while isinstance(last.inner, OptimizerLink):
            last = last.inner
        master = torch.float32 if state.cfg.fp16 else None
        last.inner = ShardedOptimizer(last.inner, model, master_dtype=master)

    def virtual_named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yields the virtual parameters by name; those after a parameter's first one have numbers."""
        sharded = self.sharded
        for name, pieces in {} if sharded is None else sharded.owned().items():
            for number, (_, piece) in enumerate(pieces):
                yield (name if number == 0 else f"{name}[{number}]"), piece

    def param_name_to_index(self) -> dict[str, int]:
        """Returns the index that each parameter of `virtual_named_parameters()` has in `local_state_dict()`.

        If the state is not sharded, these are the parameters of this rank.
        """
        index = self._param_id_to_index()
        return {name: index[id(each)] for name, each in self._named() if id(each) in index}

    def _named(self) -> Iterator[tuple[str, Parameter]]:
        found: Iterator[tuple[str, Parameter]] = state.model.virtual_named_parameters()
        return found if self.redefined_params else state.model.named_parameters()

    def _param_id_to_index(self) -> dict[int, int]:
        """Returns the index of each parameter by its id."""
        members = [each for group in self.param_groups for each in group["params"]]
        if (sharded := self.sharded) is not None:
            names = {parameter: name for name, parameter in state.model.named_parameters()}
            owned = sharded.owned()
            members = [piece for each in members for _, piece in owned[names[each]]]
        return {id(each): index for index, each in enumerate(members)}

    def _param_index_to_param_local(self) -> dict[int, Parameter]:
        """Returns each parameter by its index."""
        index = self._param_id_to_index()
        return {index[id(each)]: each for _, each in self._named() if id(each) in index}
