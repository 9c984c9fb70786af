"""Makes sure that the ranks with slices of one model run the same forward: random numbers and inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from smdp.torch.initialization.generator_states import default_generator
from smdp.torch.tensor_parallelism.added_modules import AddedModules
from smdp.torch.tensor_parallelism.collectives import max_
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


class SameForwards:
    """A forward pre-hook of a divided model.

    Ranks must draw the same random numbers, because dropout of whole tensors must drop the same elements, and
    sampling must choose the same tokens. Scripts often seed every rank differently, so a rank whose generator
    is in another state takes that of the first rank. This costs one message of 16 bytes for a forward.

    Args:
        axis: The ranks that hold slices of the model.
        model: The model.
    """

    def __init__(self, axis: TensorAxis, model: nn.Module) -> None:
        self._axis = axis
        self._added = AddedModules(model)
        self._has_compared = False

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Compares generators before each forward, and the inputs of the first one.

        Raises:
            ValueError: The ranks got different inputs.
            RuntimeError: A wrapper of torch averages slices of different ranks, or layers have been added.
        """
        if torch.compiler.is_compiling() or self._axis.size == 1:
            return
        _check_wrapper(self._axis)
        if not self._has_compared or torch.is_grad_enabled():
            self.check_modules(module)
        device = next((one.device for one in module.parameters()), torch.device("cpu"))
        if not self._has_compared:
            check_same_inputs((args, dict(kwargs)), self._axis)
            self._has_compared = True
        for each in dict.fromkeys((torch.device("cpu"), device)):
            if each.type != "meta":
                take_same_generator(each, self._axis)

    def check_modules(self, model: nn.Module) -> None:
        """Checks that no layers have been put around divided ones.

        Raises:
            RuntimeError: They have.
        """
        self._added.check(model)


def take_same_generator(device: torch.device, axis: TensorAxis) -> None:
    """Copies the generator state of the first rank to the others, if any differs. Collective."""
    generator = default_generator(device)
    state = generator.get_state()
    digest = _number(state)
    # The largest digest and the smallest one, which is minus the largest negative one.
    told = torch.tensor([digest, -digest])
    max_(told, axis.number)
    largest, negative = told.tolist()
    if largest != -negative:
        dist.broadcast(state, axis.mesh.ranks("tp")[0], group=axis.group)
        generator.set_state(state)


def check_same_inputs(inputs: Any, axis: TensorAxis) -> None:
    """Compares tensors in any structure with those of the other ranks. Collective.

    Raises:
        ValueError: They differ.
    """
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tree_leaves(inputs):
        if isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_meta:
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    told: list[Any] = [None] * axis.size
    dist.all_gather_object(told, digest.hexdigest(), group=axis.group)
    ranks, mesh = axis.mesh.ranks("tp"), axis.mesh
    for rank, other in zip(ranks, told, strict=True):
        if other != told[0]:
            raise ValueError(
                f"[smdp] ranks {ranks[0]} and {rank} hold slices of one model but got different inputs. Ranks"
                f" with slices of one model must read the same batches, for example with"
                f" DistributedSampler(data, num_replicas={mesh.replicas}, rank={mesh.replica}) on this rank."
            )


def _check_wrapper(axis: TensorAxis) -> None:
    # The call goes through this wrapper, around the model or around another one that contains it.
    wrapper = DistributedDataParallel._get_active_ddp_module()
    if wrapper is None:
        return
    ranks = axis.mesh.ranks("tp")
    others = set(dist.get_process_group_ranks(wrapper.process_group)) & set(ranks)
    if len(others) > 1:
        raise RuntimeError(
            f"[smdp] tensor_parallel: a {type(wrapper).__name__} over ranks {sorted(others)}, which hold"
            " slices of one model, has replaced them by those of one rank. Divide a fresh model, and wrap it"
            " in smdp.torch.DistributedDataParallel, which averages over the replicas only."
        )


def _number(state: Tensor) -> int:
    found = hashlib.blake2b(state.numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(found, "little", signed=True) >> 1  # its negative also fits into 64 bits
