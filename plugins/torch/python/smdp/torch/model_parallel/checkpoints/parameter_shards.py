"""Partial checkpoints with sharded data parallelism: flat shards of parameters and of optimizer state.

model_{i}.pt      buffers and parameters that are not trained, under the key "module"
optimizer_{i}.pt  shard i: for each group of the optimizer, one flat tensor with ceil(elements / shards)
                  elements of each parameter, the last of which are padding; its state in the same form
user_content.pt   also "buffer_names", and "param_shapes" by group, in the order of the flat tensors
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from smdp.torch.mesh.cuts import cut_of
from smdp.torch.model_parallel.job.ranks import tp_rank, tp_size
from smdp.torch.precision.mixed_precision import STATE

PREFIX = "module."
# The key in a file of the optimizer that smdp has written, and that a decision completes.
MARK = "smdp"
_FLAT = "fp32_flat_groups"
_STATE = "base_optimizer_state"


def suffix_of_shard(number: int) -> str:
    """Returns the suffix of the files of a shard of this rank's slice."""
    return f"{number}" if tp_size() == 1 else f"{tp_rank()}_{number}"


class SavedShard:
    """This rank's shard, as its files have it. All ranks of the job create it together.

    Args:
        model: The smp.DistributedModel.
        optimizer: The smp.DistributedOptimizer. None: only parameters are saved.

    Attributes:
        is_first_copy: Whether this rank belongs to the copy of the model that is saved.
        number: The number of the shard.
        model: What the file of the model contains.
        optimizer: What the file of the optimizer contains.
        names: The name and the shape of each parameter, by group.
        buffer_names: The names of the buffers in state dicts.
        slices: Which dimension of a parameter is divided over the tensor-parallel group, by all names.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        shards = model.shards
        self.number, self._count = shards.shard_group.rank(), shards.shard_group.size()
        self.is_first_copy = shards.process_group.rank() < self._count
        groups = [{"params": [each for each in model.parameters() if each.requires_grad]}]
        if optimizer is not None:
            groups = optimizer.param_groups
        names = {parameter: name for name, parameter in model.named_parameters()}
        self.names = [[(names[each], each.shape) for each in group["params"]] for group in groups]
        saved = {name for group in self.names for name, _ in group}
        module = model.get_module()
        known = dict(module.named_parameters(remove_duplicate=False))
        self.buffer_names = [name for name in module.state_dict() if name not in known]
        cuts = {name: cut_of(each) for name, each in known.items()}
        self.slices = {name: cut.slices.dim for name, cut in cuts.items() if cut and cut.slices}
        self.model: dict[str, Any] = {}
        self.optimizer: dict[str, Any] = {}
        if not self.is_first_copy:
            return
        frozen = {name: _whole(each) for each, name in names.items() if name not in saved}
        buffers = {name: module.state_dict()[name] for name in self.buffer_names}
        self.model = {"module": {**buffers, **frozen}}
        self.optimizer = {
            MARK: True,
            "partition_count": self._count,
            _FLAT: [self._flat(group["params"]).float() for group in groups],
        }
        if optimizer is not None:
            self.optimizer[_STATE] = [self._states(group["params"], optimizer.state) for group in groups]
            self.optimizer["param_groups"] = [
                {key: value for key, value in group.items() if key != "params"} for group in groups
            ]
            if optimizer.loss_scaler is not None:
                self.optimizer[STATE] = optimizer.loss_scaler.state()

    @property
    def shapes(self) -> list[OrderedDict[str, torch.Size]]:
        """The shape of each parameter, by name and group, as the user content has it."""
        return [OrderedDict((PREFIX + name, shape) for name, shape in group) for group in self.names]

    def _flat(self, values: Sequence[Tensor]) -> Tensor:
        return torch.cat([self._part(each) for each in values]) if values else torch.empty(0)

    def _part(self, value: Tensor) -> Tensor:
        flat = _whole(value).reshape(-1)
        each = math.ceil(flat.numel() / self._count)
        part = flat.new_zeros(each)
        own = flat[self.number * each : (self.number + 1) * each]
        part[: own.numel()] = own
        return part

    def _states(self, parameters: Sequence[Tensor], states: Mapping[Any, Any]) -> dict[str, Any]:
        """Returns the state of a group: flat tensors for those like parameters, other values by parameter."""
        found = [states.get(each, {}) for each in parameters]
        keys = {
            key: value.dtype
            for each, parameter in zip(found, parameters, strict=True)
            for key, value in each.items()
            if _is_like(value, parameter)
        }
        flat: dict[str, Tensor] = {}
        for key, dtype in keys.items():
            values = [
                each.get(key, torch.zeros(parameter.shape, dtype=dtype))
                for each, parameter in zip(found, parameters, strict=True)
            ]
            flat[key] = self._flat(values)
        rest = [{key: value for key, value in each.items() if key not in keys} for each in found]
        return {"flat": flat, "rest": rest, "has_state": [bool(each) for each in found]}


class ShardFiles:
    """Reads parameters and state from the files of all shards, one parameter at a time.

    Args:
        files: What the files of the optimizer contain, in the order of the shards.
        names: The name and the shape of each parameter, by group.
        paths: Where the files are, for messages.

    Raises:
        ValueError: The files are not those of one checkpoint, or a flat tensor is too short.
    """

    def __init__(
        self,
        files: Sequence[Mapping[str, Any]],
        names: Sequence[Sequence[tuple[str, Any]]],
        paths: Sequence[Path],
    ) -> None:
        given = files[0]["partition_count"]
        count = max(given) if isinstance(given, list) else given  # Amazon's may have one for each group
        if count != len(files):
            raise ValueError(
                f"[smdp] the checkpoint has {count} shards, but {len(files)} files optimizer_*.pt. Use the"
                " complete folder."
            )
        self._files = files
        self.names = names
        self._offsets = []
        for members in names:
            sizes = [math.ceil(math.prod(shape) / count) for _, shape in members]
            self._offsets.append([sum(sizes[:place]) for place in range(len(sizes) + 1)])
        for path, each in zip(paths, files, strict=True):
            self._check_lengths(path, each)

    def _check_lengths(self, path: Path, file: Mapping[str, Any]) -> None:
        for number, offsets in enumerate(self._offsets):
            flats = list(file[_FLAT][number : number + 1])
            if MARK in file and _STATE in file:
                flats += file[_STATE][number]["flat"].values()
            shortest = min((each.numel() for each in flats), default=0)
            if shortest < offsets[-1]:
                raise ValueError(
                    f"[smdp] {path} has a flat tensor of {shortest} elements for group {number}, whose"
                    f" parameters have {offsets[-1]} elements in a shard; use the files of one checkpoint"
                )

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the name and the whole value of each parameter."""
        for number, members in enumerate(self.names):
            for place, (name, _) in enumerate(members):
                yield name, self._whole([each[_FLAT][number] for each in self._files], number, place)

    def optimizer_state(self) -> dict[str, Any]:
        """Returns the whole state of the optimizer; the state of a parameter is read when it is asked for."""
        groups, first = [], 0
        for options, members in zip(self._files[0]["param_groups"], self.names, strict=True):
            groups.append({**options, "params": list(range(first, first + len(members)))})
            first += len(members)
        found: dict[str, Any] = {"state": _States(self), "param_groups": groups}
        return {**found, **self.loss_scale()}

    def loss_scale(self) -> dict[str, Any]:
        """Returns the entry of the loss scale, if there is one."""
        return {STATE: self._files[0][STATE]} if STATE in self._files[0] else {}

    def state_of(self, number: int, place: int) -> dict[str, Any]:
        """Returns the state of a parameter, by its group and its place in it."""
        saved = [each[_STATE][number] for each in self._files]
        flat = {
            key: self._whole([each["flat"][key] for each in saved], number, place) for key in saved[0]["flat"]
        }
        return {**saved[0]["rest"][place], **flat}

    def has_state(self, number: int, place: int) -> bool:
        """Returns whether a parameter has been updated."""
        return bool(self._files[0][_STATE][number]["has_state"][place])

    def _whole(self, flats: Sequence[Tensor], number: int, place: int) -> Tensor:
        begin, end = self._offsets[number][place : place + 2]
        shape = self.names[number][place][1]
        return torch.cat([each[begin:end] for each in flats])[: math.prod(shape)].view(shape)


class _States(Mapping[int, Any]):
    """The state of each parameter by its number, over all groups."""

    def __init__(self, files: ShardFiles) -> None:
        self._files = files
        places = [(number, place) for number, group in enumerate(files.names) for place in range(len(group))]
        self._places = {index: at for index, at in enumerate(places) if files.has_state(*at)}

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns the state of a parameter."""
        return self._files.state_of(*self._places[index])

    def __iter__(self) -> Iterator[int]:
        """Yields the numbers of parameters that have a state."""
        return iter(self._places)

    def __len__(self) -> int:
        """Returns the number of parameters that have a state."""
        return len(self._places)


def read_shapes(shapes: Sequence[Mapping[str, Any]]) -> list[list[tuple[str, Any]]]:
    """Returns names and shapes as `ShardFiles` takes them, given `param_shapes` of a user content."""
    return [[(name.removeprefix(PREFIX), shape) for name, shape in group.items()] for group in shapes]


def files_in(folder: Path) -> list[list[Path]]:
    """Returns the files with the shards of each slice of the model, in order.

    Without tensor parallelism there is one slice, and the names have the number of the shard alone.

    Raises:
        ValueError: There are files with and without slices.
    """
    found: dict[str, dict[int, Path]] = {}
    for path in folder.glob("optimizer_*.pt"):
        if match := re.fullmatch(r"optimizer_(?:(\d+)_)?(\d+)", path.stem):
            found.setdefault(match[1] or "", {})[int(match[2])] = path
    if "" in found and len(found) > 1:
        raise ValueError(
            f"[smdp] {folder} has shards of a whole model and of {len(found) - 1} slices of it. Use a folder"
            " with the files of one checkpoint."
        )
    numbered = {int(number or 0): files for number, files in found.items()}
    return [[files[each] for each in sorted(files)] for _, files in sorted(numbered.items())]


def _is_like(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape and value.dim() > 0


def _whole(value: Tensor) -> Tensor:
    value = value.detach()
    return (value.full_tensor() if isinstance(value, DTensor) else value).cpu()
