"""`ShardedDataParallel`: data parallel training of models that do not fit on one rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdp.torch.mesh.cuts import mesh_of_slices
from smdp.torch.mesh.told_failures import tells_failures
from smdp.torch.offload.returned_memory import (
    keep_large_tensors,
    return_freed_memory,
    return_large_tensors,
)
from smdp.torch.sharded_parameters.averaged_shards import AveragedShards
from smdp.torch.sharded_parameters.before_step import BeforeStep
from smdp.torch.sharded_parameters.gathered_ahead import GatheredAhead
from smdp.torch.sharded_parameters.gradient_norm import clip_gradients
from smdp.torch.sharded_parameters.preconditions import (
    averaging_group,
    check_arguments,
    check_clip,
    check_dtype,
    remember_shards,
)
from smdp.torch.sharded_parameters.same_model import check_same_model
from smdp.torch.sharded_parameters.shard_groups import chosen_degree, make_groups
from smdp.torch.sharded_parameters.shards import Shards
from smdp.torch.sharded_parameters.told_ranks import ToldRanks
from smdp.torch.sharded_parameters.units import chosen_units
from smdp.torch.sharded_parameters.whole_state import accept_whole_state

_BUCKET = 250 << 20  # bytes of a broadcast, as in torch's DDP


class ShardedDataParallel(nn.Module):
    """Distributes the parameters, gradients and optimizer state of a model over ranks.

    Each unit of the model, such as a transformer block, is gathered before it computes and released
    afterwards. Its gradients are averaged during backward, and each rank keeps its shard of them. An
    optimizer of `parameters()` then has this rank's shard of the state. This is torch's `fully_shard` on the
    backend "smdp", with replicas of shards, whole small parameters and less waiting.

    Between hosts, or on GPUs, it trains models that do not fit otherwise. Within one host of CPU ranks,
    `ShardedOptimizer(share_parameters=True)` keeps parameters and state once for all ranks and is faster;
    only gradients are then whole on each rank.

    Parameters become shards (DTensors), so create the optimizer afterwards. All ranks must run the same units
    in the same order.

    Args:
        module: The model, which is changed in place. It may be built as usual, on the meta device, or within
            `delayed_initialization()`. In the last two cases no rank ever holds the whole model. The values
            of the first rank are used.
        degree: The number of ranks over which one copy of the model is distributed. It divides the number of
            ranks, and with more ranks than that there are replicas, which average their shards. Default: the
            ranks of a host if there are several hosts with the same number of ranks, otherwise all ranks.
        units: The modules that are gathered one by one. Default: the elements of the model's outermost
            ModuleLists, ModuleDicts and Sequentials. Other parameters, and those of units that share some
            with other modules, are gathered together and stay whole from the model's forward to the end of
            backward.
        persistence_threshold: Parameters with fewer elements stay whole on each rank, and their gradients are
            averaged over all ranks.
        max_live_parameters: The number of parameters (elements) that may be whole when the next unit is
            gathered ahead. At this limit, units are gathered when they are used.
        reshard_after_forward: Whether units are released after forward and gathered again in backward.
            Without it, a step sends as much as plain data parallelism, but all parameters are whole in
            between.
        backward_passes: The number of backwards before each step. Replicas average only after the last one.
            Use either this or `no_sync()`.
        dtype: `torch.bfloat16` to gather, compute and send parameters in this type. Shards, their gradients
            and the optimizer's state keep the type of the parameters, and gradients are summed in float32.
            Units convert their inputs.
        clip: The largest L2 norm of all gradients. Optimizers clip to it in `step()`.
        unused_parameters: Whether ranks may use different parameters of a unit. Missing gradients are then
            zero.
        broadcast_buffers: Whether the first rank's buffers are sent to all ranks before each forward in
            training.
        process_group: The ranks that train the model. Default: all ranks, or those with the same slices of a
            model that `tensor_parallel()` has divided.
        device: The device of a model on the meta device. Default: the one that it was built for.
        **unsupported: Other arguments of DistributedDataParallel raise an error that names the alternative.

    Attributes:
        module: The model.
        process_group: The ranks that train it.
        degree: The number of shards of one copy.
        shard_group: The ranks with the shards of this rank's copy.

    Raises:
        ValueError: An argument is not valid, or the model cannot be sharded. It is left unchanged.
        smdp.MismatchError: The models or arguments differ between ranks.

    Example:
        >>> model = smdp.torch.ShardedDataParallel(model)  # doctest: +SKIP
        >>> optimizer = torch.optim.AdamW(model.parameters())  # doctest: +SKIP
        >>> model(batch).sum().backward()  # doctest: +SKIP
        >>> optimizer.step()  # doctest: +SKIP
    """

    # The types in which units may compute. float16 needs a loss scale that all ranks agree on.
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,)

    def __init__(
        self,
        module: nn.Module,
        degree: int | None = None,
        *,
        units: Iterable[nn.Module] | None = None,
        persistence_threshold: int = 0,
        max_live_parameters: float = 1e9,
        reshard_after_forward: bool = True,
        backward_passes: int = 1,
        dtype: torch.dtype | None = None,
        clip: float | None = None,
        unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        process_group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        **unsupported: Any,
    ) -> None:
        limits = {"persistence_threshold": persistence_threshold, "max_live_parameters": max_live_parameters}
        check_arguments(module, unsupported, limits, backward_passes)
        check_clip(clip)
        check_dtype(dtype, self.dtypes)
        everyone = averaging_group(module, process_group)
        shards = chosen_degree(degree, everyone.core.hosts)
        chosen = chosen_units(module, units)
        options = {
            "degree": shards,
            **limits,
            "reshard_after_forward": reshard_after_forward,
            "backward_passes": backward_passes,
            "dtype": dtype,
            "clip": clip,
            "unused_parameters": unused_parameters,
            "broadcast_buffers": broadcast_buffers,
        }
        check_same_model(module, chosen, options, everyone)
        super().__init__()
        self.module = module
        self.process_group = everyone
        self.degree = shards
        self._clip = clip
        self._gives_buffers = broadcast_buffers
        return_large_tensors()
        mesh = mesh_of_slices(module.parameters())
        kind = _device_type(module, device)
        ranks = make_groups(everyone, shards, kind, is_for_steps=mesh is not None)
        self.shard_group = ranks.shards
        self._ranks = ranks
        kept = Shards(
            module,
            chosen,
            ranks,
            persistence_threshold,
            device,
            dtype=dtype,
            reshard_after_forward=reshard_after_forward,
            unused_parameters=unused_parameters,
        )
        remember_shards(module)
        told = ToldRanks([each for each in ranks.made if each.size() > 1], mesh)
        self._told = told
        tells_failures(self, ShardedDataParallel._abort)
        self._averaged = AveragedShards(kept.averaged, backward_passes, told)
        self._kept = kept
        GatheredAhead(kept.root, kept.units, kept.sizes, max_live_parameters)
        accept_whole_state(module)
        keep_large_tensors()
        return_freed_memory()
        self._before_step = BeforeStep(list(module.parameters()), self._prepare_step, keep_large_tensors)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the model."""
        if self._gives_buffers and self.training and torch.is_grad_enabled():
            buffers = list(self.module.buffers())
            if buffers:
                dist._broadcast_coalesced(self._ranks.everyone, buffers, _BUCKET, 0)
        return_large_tensors()  # until the step of an optimizer ends
        result = self.module(*inputs, **kwargs)
        if not torch.is_grad_enabled():  # no backward releases what stays whole after a forward
            self._kept.release()
            keep_large_tensors()
        return result

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulates gradients in the context; replicas average them in the first backward outside of it.

        Each backward averages gradients over the ranks with shards, so that accumulated ones are shards, too.

        Example:
            >>> with model.no_sync():  # doctest: +SKIP
            ...     model(first).sum().backward()
            >>> model(second).sum().backward()  # doctest: +SKIP
        """
        with self._averaged.paused():
            yield

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scales gradients so that their norm is at most `max_norm`. Collective.

        Args:
            max_norm: The largest norm, above 0.
            norm_type: The order of the norm; "inf" for the largest absolute value.

        Returns:
            The norm of the whole model's gradients before clipping, the same on all ranks.
        """
        return clip_gradients(self.module.parameters(), max_norm, float(norm_type))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears all gradients, and with them an accumulation that has not ended."""
        self._averaged.forget()
        super().zero_grad(set_to_none)

    def leave_groups(self) -> None:
        """Destroys the process groups that were created for this model, which cannot be used any more."""
        self._ranks.leave()

    def join(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises an error, because a rank without inputs cannot gather parameters for the others."""
        raise ValueError(
            "[smdp] ShardedDataParallel has no join(): all ranks must run the same number of steps. Use a"
            " DistributedSampler, which gives each rank the same number of samples, or"
            " DistributedDataParallel."
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses copies, which would own the same shards."""
        raise TypeError(
            "[smdp] a ShardedDataParallel cannot be copied or pickled, because its parameters are"
            " distributed over the ranks. Save it with smdp.torch.checkpoints or"
            " torch.distributed.checkpoint."
        )

    def _abort(self, reason: str) -> None:
        self._told.abort(reason)

    def _prepare_step(self) -> None:
        if self._averaged.is_between:
            raise RuntimeError(
                "[smdp] optimizer.step() was called before the replicas of a ShardedDataParallel have"
                " averaged their gradients. Run the last backward before a step outside no_sync(), or pass"
                " the number of backwards that you run as backward_passes."
            )
        self._kept.release()  # after a forward without backward
        if self._clip is not None:
            self.clip_grad_norm_(self._clip)


def _device_type(module: nn.Module, device: torch.device | str | None) -> str:
    if device is None:
        device = next((one.device for one in module.parameters() if not one.is_meta), "cpu")
    kind: str = torch.device(device).type
    return kind
