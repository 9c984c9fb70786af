"""A model that is cut over the ranks of its pipeline, as a DistributedModel uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdp._errors import SmdpError
from smdp.torch.mesh.cuts import cut_of
from smdp.torch.model_parallel.modules.one_loss import scaled
from smdp.torch.model_parallel.modules.repartitioned_state import rejoined
from smdp.torch.model_parallel.modules.slices_of_state import joined_tensor
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.pipelining.state_dicts.state_entries import Entry


class Partitions:
    """Runs microbatches in the order of the schedule.

    Args:
        pipe: The pipelined module, with this rank's part of the model.
        is_mean: Whether gradients are means over microbatches instead of sums.

    Attributes:
        pipe: The pipelined module.
        is_between: Whether replicas have not averaged gradients yet, which they do in every step.
    """

    def __init__(self, pipe: PipelinedModule, *, is_mean: bool) -> None:
        self.pipe = pipe
        self.is_between = False
        self._is_mean = is_mean
        self._trained = self._own_trained()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the model's forward."""
        return self.pipe(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Marks the loss of the microbatch."""
        self.pipe.backward(loss)

    def run_step(
        self, program: Callable[[Any], Any], parts: Sequence[Any], *, is_training: bool
    ) -> list[Any]:
        """Runs the program for each microbatch. All ranks of the pipeline must call this."""
        divisor = len(parts) if self._is_mean else 1
        return self.pipe.run_step(
            program, parts, is_training=is_training, scale=lambda loss: scaled(loss / divisor)
        )

    def agree(self, number: int) -> bool:
        """Begins a step: tells all stages which parameters are frozen, and compares a number.

        A script sees only the parameters of its own rank, but every stage must know which gradients will
        arrive.

        Args:
            number: From 0 to 2^62 - 1.

        Returns:
            Whether all ranks of the pipeline passed the same number.
        """
        own, group = self._own_trained(), self.pipe.mesh.group("pp")
        told = torch.tensor([own != self._trained, number, -number], dtype=torch.int64, device="cpu")
        try:
            dist.all_reduce(told, op=dist.ReduceOp.MAX, group=group)
        except SmdpError as error:
            text = (
                f"{error.args[0] if error.args else ''} This happened while all ranks of the pipeline met at"
                " smp.step."
            )
            error.args = (text, *error.args[1:])
            raise
        has_changed, largest, smallest_negated = told.tolist()
        if has_changed:
            self._share_trained(own, group)
        return bool(largest == -smallest_negated)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Returns this rank's parameters with their names."""
        return self.pipe.named_parameters()

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Returns this rank's buffers with their names."""
        return self.pipe.named_buffers()

    def local_state_dict(self) -> dict[str, Any]:
        """Returns this rank's part of the state dict."""
        found: dict[str, Any] = self.pipe.state_dict()
        return found

    def state_dict(self, *, to_first_only: bool) -> dict[str, Any]:
        """Returns the whole model's state dict. All ranks of the pipeline must call this.

        Args:
            to_first_only: Whether only the first rank of the pipeline gets the entries; the others get an
                empty dict.
        """
        group = self.pipe.mesh.group("pp")
        found: dict[str, Any] = {}
        mesh = self.pipe.mesh
        keeps = not to_first_only or mesh.rank == mesh.ranks("mp")[0]
        for name, entry in self.pipe.entries().items():
            if entry.first_name == name:
                value = self._from_owner(entry, group)
                if keeps:
                    found[name] = value
            elif keeps:
                found[name] = found[entry.first_name]
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool) -> Any:
        """Copies values into this rank's part."""
        return self.pipe.load_state_dict(state_dict, strict=strict)

    def rejoined(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a rank's part, or all parts merged if some are from another cut. All ranks call it."""
        own = [name for name, entry in self.pipe.entries().items() if self.pipe.holds(entry)]
        return dict(rejoined(part, is_own=all(name in part for name in own)))

    def partition_of(self, name: str) -> int:
        """Returns a module's partition: that of the unit that contains it, or of the first unit in it."""
        stages = self.pipe.split.stages
        own = next((unit for unit in stages if not unit or f"{name}.".startswith(f"{unit}.")), None)
        inner = next((unit for unit in stages if not name or unit.startswith(f"{name}.")), None)
        unit = own if own is not None else inner
        stage = stages[unit][0] if unit is not None else 0
        return self.pipe.schedule.rank_of[stage]

    @property
    def decision(self) -> dict[str, int]:
        """The virtual stage of each unit of the trace."""
        split = self.pipe.split
        return {
            split.trace.units[unit].name: stage
            for stage, part in enumerate(split.partition.stages)
            for unit in part.units
        }

    @property
    def rank_of(self) -> list[int]:
        """The partition of each virtual stage."""
        return list(self.pipe.schedule.rank_of)

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.pipe.device

    def _own_trained(self) -> dict[str, bool]:
        return {name: parameter.requires_grad for name, parameter in self.pipe.named_parameters()}

    def _share_trained(self, own: dict[str, bool], group: Any) -> None:
        self._trained = own
        told: list[dict[str, bool]] = [own] * group.size()
        dist.all_gather_object(told, own, group=group)
        parameters = dict(self.pipe.module.named_parameters())
        for part in told:
            for name, is_trained in part.items():
                parameters[name].requires_grad_(is_trained)

    def _from_owner(self, entry: Entry, group: dist.ProcessGroup) -> Any:
        owner = self.pipe.schedule.rank_of[entry.saver]
        if isinstance(entry.value, Tensor):
            own = entry.value.detach()
            is_mine = owner == self.pipe.mesh.stage_rank
            value = own.clone() if is_mine else torch.empty_like(own, device=self.pipe.device)
            dist.broadcast(value, group=group, group_src=owner)
            cut = cut_of(entry.value)
            return value if cut is None else joined_tensor(value, cut, self.pipe.mesh)
        told = [entry.value]
        dist.broadcast_object_list(told, group=group, group_src=owner)
        return told[0]
