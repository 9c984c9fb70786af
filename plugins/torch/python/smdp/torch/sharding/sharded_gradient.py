"""The mean of a gradient of which each rank has a shard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.sharding.shard_layout import Piece

_aten = torch.ops.aten
# In place and element by element: they are carried out on the pieces.
_ELEMENTWISE = {
    _aten.mul_.Tensor,
    _aten.mul_.Scalar,
    _aten.div_.Tensor,
    _aten.div_.Scalar,
    _aten.clamp_.default,
    _aten.clamp_.Tensor,
    _aten.clamp_min_.default,
    _aten.clamp_max_.default,
    _aten.nan_to_num_.default,
    _aten.zero_.default,
}
_ELEMENTWISE_LISTS = {
    _aten._foreach_mul_.Tensor,
    _aten._foreach_mul_.Scalar,
    _aten._foreach_div_.Tensor,
    _aten._foreach_div_.Scalar,
    _aten._foreach_clamp_min_.Scalar,
    _aten._foreach_clamp_max_.Scalar,
    _aten._foreach_zero_.default,
}


class ShardedGradient(Tensor):
    """A gradient whose values are distributed over ranks.

    It has the shape, dtype and device of its parameter. Norms are those of the whole gradient, and all ranks
    must compute them together, as `torch.nn.utils.clip_grad_norm_` does. Scaling, clamping and unscaling
    change this rank's pieces. `full_tensor()` returns all values.

    Attributes:
        pieces: One-dimensional tensors, this rank's values.
    """

    pieces: list[Tensor]
    _ranges: Sequence[Piece]
    _owners: ShardOwners
    _local: Tensor | None

    @staticmethod
    def __new__(
        cls, parameter: Parameter, ranges: Sequence[Piece], pieces: list[Tensor], owners: ShardOwners
    ) -> ShardedGradient:
        """Creates a gradient that the parameter accepts as its `.grad`."""
        made: ShardedGradient = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, strides=parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        made.pieces = pieces
        made._ranges = ranges
        made._owners = owners
        made._local = None
        return made

    def __repr__(self) -> str:
        """Returns the shape and the number of this rank's values."""
        own = sum(piece.numel() for piece in self.pieces)
        return f"ShardedGradient({tuple(self.shape)}, {self.dtype}, {own} values on this rank)"

    def full_tensor(self) -> Tensor:
        """Returns all values. All ranks that share the gradient must call it."""
        whole = self._scattered(1.0)
        dist.all_reduce(whole, group=self._owners.group)
        return whole if self._owners.copies == 1 else whole.div_(self._owners.copies)

    def to_local(self) -> Tensor:
        """Returns what this rank contributes to the next mean: the previous mean, and what was added since.

        The mean over all ranks of the contributions without additions is this gradient.
        """
        if self._local is None:
            self._local = self._scattered(self._owners.group.size() / self._owners.copies)
        return self._local

    def averaged_pieces(self) -> list[Tensor]:
        """Returns this rank's values.

        Raises:
            RuntimeError: Backward has added to the gradient since it was averaged.
        """
        return self._averaged("step()")

    def _scattered(self, factor: float) -> Tensor:
        """Returns a tensor of the whole shape with this rank's values times a factor, and zeros elsewhere."""
        whole = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device).zero_()
        flat = torch.as_strided(whole, (whole.numel(),), (1,))
        for piece, own in zip(self._ranges, self.pieces, strict=True):
            torch.mul(own, factor, out=flat[piece.begin : piece.end])
        return whole

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carries out the operations that clipping, scaling and accumulation need, and refuses others."""
        kwargs = kwargs or {}
        if func is _aten.detach.default:
            return args[0]
        if func in _ELEMENTWISE and isinstance(args[0], cls):
            for piece in args[0]._averaged(func):
                func(piece, *args[1:], **kwargs)
            return args[0]
        if func in _ELEMENTWISE_LISTS and all(isinstance(one, cls) for one in args[0]):
            pieces = [piece for one in args[0] for piece in one._averaged(func)]
            if pieces:
                func(pieces, *args[1:], **kwargs)
            return None
        if func is _aten.add_.Tensor and isinstance(args[0], cls) and not isinstance(args[1], cls):
            args[0].to_local().add_(*args[1:], **kwargs)
            return args[0]
        if func is _aten._foreach_norm.Scalar:
            return _norms(args[0], *args[1:], **kwargs)
        if func is _aten.linalg_vector_norm.default and len(args) < 3 and isinstance(args[0], cls):
            return _norms([args[0]], *args[1:], **kwargs)[0]
        if func is _aten._amp_foreach_non_finite_check_and_unscale_.default:
            grads, found, factor = args
            if pieces := [piece for one in grads for piece in one._averaged(func)]:
                func(pieces, found, factor)
            dist.all_reduce(found, dist.ReduceOp.MAX, group=grads[0]._owners.group)
            return None
        raise RuntimeError(
            f"[smdp] {func} of a gradient of shape {_shape_of(args, cls)}: a ShardedOptimizer has distributed"
            " its values over the ranks. Norms, scaling and clamping are possible. For anything else, call"
            " grad.full_tensor() on all ranks."
        )

    def _averaged(self, func: object) -> list[Tensor]:
        if self._local is not None:
            if func is _aten.zero_.default or func is _aten._foreach_zero_.default:
                self._local = None
            else:
                raise RuntimeError(
                    f"[smdp] {func}: backward has added to this gradient under no_sync(), and the sum is not"
                    " averaged yet. Call this after a backward without no_sync()."
                )
        return self.pieces


class ShardOwners:
    """The ranks that own the shards of a model's gradients.

    Args:
        group: All ranks that average the gradients.
        copies: How many ranks own each shard: 1, or the number of hosts.

    """

    def __init__(self, group: dist.ProcessGroup, copies: int) -> None:
        self.group = group
        self.copies = copies

    def norms(self, partial: Tensor, order: float) -> Tensor:
        """Returns norms over all ranks.

        Args:
            partial: The norms of this rank's pieces, float64.
            order: The order of the norm.
        """
        if math.isinf(order):
            dist.all_reduce(partial, dist.ReduceOp.MAX if order > 0 else dist.ReduceOp.MIN, group=self.group)
            return partial
        if order == 0:
            dist.all_reduce(partial, group=self.group)
            return partial / self.copies
        powers = partial.pow(order)
        dist.all_reduce(powers, group=self.group)
        return (powers / self.copies).pow(1 / order)


def _norms(grads: Sequence[Tensor], order: float = 2, *args: Any, **kwargs: Any) -> list[Tensor]:
    found = [one for one in grads if isinstance(one, ShardedGradient)]
    if len(found) != len(grads):
        raise RuntimeError(
            "[smdp] some of these gradients are distributed over the ranks by a ShardedOptimizer, and others"
            " are not. Compute the norms of both kinds separately."
        )
    empty = math.inf if order == -math.inf else 0.0
    partial = torch.full((len(found),), empty, dtype=torch.float64)
    for place, one in enumerate(found):
        own = [
            torch.linalg.vector_norm(piece, order).double() for piece in one._averaged(_aten._foreach_norm)
        ]
        if own:
            partial[place] = torch.linalg.vector_norm(torch.stack(own), order)
    dtype = kwargs.get("dtype") or found[0].dtype
    return list(found[0]._owners.norms(partial, float(order)).to(dtype).unbind())


def _shape_of(args: Sequence[Any], kind: type[Tensor]) -> tuple[int, ...]:
    for one in args:
        for each in one if isinstance(one, list | tuple) else [one]:
            if isinstance(each, kind):
                return tuple(each.shape)
    return ()
