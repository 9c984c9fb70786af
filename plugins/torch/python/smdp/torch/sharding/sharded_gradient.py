"""The mean of a gradient of which each rank has a shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.mesh.cuts import Cut, cut_of
from smdp.torch.mesh.slices import Slices
from smdp.torch.sharding.boxes import boxes_of, memory_order
from smdp.torch.sharding.shard_layout import Piece, flattened
from smdp.torch.sharding.shard_owners import ShardOwners

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
    change this rank's pieces. `full_tensor()` returns all values. The next backward that averages gradients
    reuses the memory; a gradient that was kept until then raises an error when it is used.

    Attributes:
        pieces: One-dimensional tensors, this rank's values. Change them by operations on the gradient, which
            forget norms that were computed before.
    """

    _pieces: list[Tensor]
    _ranges: Sequence[Piece]
    _owners: ShardOwners
    _sum: Tensor | None  # this rank's contribution to the next mean, once something was added to it
    _step: int
    _index: int
    _cut: Cut | None

    @staticmethod
    def __new__(
        cls,
        parameter: Parameter,
        index: int,
        ranges: Sequence[Piece],
        pieces: list[Tensor],
        owners: ShardOwners,
    ) -> ShardedGradient:
        """Creates a gradient that the parameter accepts as its `.grad`."""
        made: ShardedGradient = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, strides=parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        made._pieces = pieces
        made._ranges = ranges
        made._owners = owners
        made._sum = None
        made._step = owners.step
        made._index = index
        made._cut = cut_of(parameter)
        owners.hold(index, made)
        return made

    @property
    def pieces(self) -> list[Tensor]:
        """This rank's values, once they have arrived."""
        self._owners.means.end()
        return self._pieces

    def __repr__(self) -> str:
        """Returns the shape and the number of this rank's values."""
        own = sum(piece.numel() for piece in self._pieces)
        return f"ShardedGradient({tuple(self.shape)}, {self.dtype}, {own} values on this rank)"

    def untyped_storage(self) -> torch.UntypedStorage:
        """Refuses access to the memory of the whole gradient, which this rank does not have."""
        if torch.compiler.is_compiling():  # torch describes the gradients of parameters, and reads no values
            return super().untyped_storage()
        raise _refused("untyped_storage()", self.shape)

    def share_memory_(self) -> NoReturn:
        """Refuses to move the gradient to shared memory."""
        raise _refused("share_memory_()", self.shape)

    def full_tensor(self) -> Tensor:
        """Returns all values. All ranks that share the gradient must call it.

        Raises:
            RuntimeError: Something was added to the gradient since it was averaged, or it was kept from an
                earlier backward.
        """
        self.averaged("full_tensor()")
        whole = self._scattered(1.0 if self._owners.is_counted else 0.0)
        dist.all_reduce(whole, group=self._owners.group)
        return whole

    @property
    def ranges(self) -> Sequence[Piece]:
        """The elements of each piece, in memory order."""
        return self._ranges

    def take(self, whole: Tensor) -> None:
        """Takes this rank's values from a tensor of the whole shape, laid out like the parameter."""
        self._owners.forget_norms()
        flat = flattened(whole)
        for place, piece in zip(self._ranges, self.averaged("take()"), strict=True):
            piece.copy_(flat[place.begin : place.end])

    def contribution(self) -> Tensor:
        """Returns what this rank adds to the next mean: the previous mean, and what was added since.

        The mean over all ranks of the contributions without additions is this gradient.
        """
        self._check_current("backward")
        if self._sum is not None:
            return self._sum
        return self._scattered(self._owners.group.size() / self._owners.copies)

    def averaged(self, what: object) -> list[Tensor]:
        """Returns this rank's values.

        Args:
            what: The operation that needs them, for messages.

        Raises:
            RuntimeError: Something was added to the gradient since it was averaged, or it was kept from an
                earlier backward.
        """
        self.check_averaged(what)
        return self.pieces

    def arriving(self) -> list[Tensor]:
        """Returns the tensors in which this rank's values are, or will be."""
        return self._pieces

    def check_averaged(self, what: object) -> None:
        """Checks that this is a mean of the last backward; see `averaged()`."""
        self._check_current(what)
        if self._sum is not None:
            raise RuntimeError(
                f"[smdp] {what}: a backward under no_sync(), or add_(), has added to this gradient of shape"
                f" {tuple(self.shape)}, and the sum is not averaged yet. Call this after a backward without"
                " no_sync()."
            )

    def measured(self) -> list[Tensor]:
        """Returns the pieces whose norm is asked for, none if the gradient has no mean at the moment."""
        if self._sum is not None or self._step != self._owners.step:
            return []
        cut = self._cut
        if cut is None or cut.slices is None or isinstance(cut.is_counted, bool):
            return self.pieces
        return list(self._counted(cut.slices, cut.is_counted))

    def _counted(self, slices: Slices, is_counted: Sequence[bool]) -> Iterator[Tensor]:
        """Yields the values in ranges that count, if other ranks hold and count the other ranges."""
        order = memory_order(self.shape, self.stride())
        inverse = [order.index(dim) for dim in range(len(order))]
        for place, piece in zip(self._ranges, self.pieces, strict=True):
            begin = place.begin
            for box in boxes_of(self.shape, order, place.begin, place.end):
                end = begin + torch.Size(box.sizes).numel()
                flat = piece[begin - place.begin : end - place.begin]
                values = flat.view([box.sizes[dim] for dim in order]).permute(inverse)
                for low, high, number in slices.within(box.offsets[slices.dim], box.sizes[slices.dim]):
                    if is_counted[number]:
                        yield values.narrow(slices.dim, low - box.offsets[slices.dim], high - low)
                begin = end

    def _check_current(self, what: object) -> None:
        if self._step != self._owners.step:
            raise RuntimeError(
                f"[smdp] {what}: this gradient of shape {tuple(self.shape)} was kept from an earlier backward"
                f" ({self._owners.step - self._step} steps ago), and its memory holds newer values. Use"
                " parameter.grad, and keep grad.full_tensor() if you need values for longer."
            )

    def _changed(self, func: object) -> list[Tensor]:
        """Returns the tensors that an elementwise operation in place is carried out on."""
        if func is _aten.zero_.default or func is _aten._foreach_zero_.default:
            self._sum = None
        self._owners.forget_norms()
        return self.averaged(func)

    def _add(self, *args: Any, **kwargs: Any) -> None:
        self._owners.forget_norms()
        self._sum = self.contribution().add_(*args, **kwargs)

    def _scattered(self, factor: float) -> Tensor:
        """Returns a tensor of the whole shape with this rank's values times a factor, and zeros elsewhere."""
        whole = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device).zero_()
        flat = flattened(whole)
        if factor:
            for piece, own in zip(self._ranges, self.pieces, strict=True):
                torch.mul(own, factor, out=flat[piece.begin : piece.end])
        return whole

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carries out the operations that clipping, scaling and accumulation need, and refuses others."""
        kwargs = kwargs or {}
        if func is _aten.detach.default or (func is _aten._to_copy.default and _stays(args[0], kwargs)):
            return args[0]
        if func in _ELEMENTWISE or func in _ELEMENTWISE_LISTS:
            _check_factors(func, args[0], (*args[1:], *kwargs.values()))
        if func in _ELEMENTWISE and isinstance(args[0], cls):
            for piece in args[0]._changed(func):
                func(piece, *args[1:], **kwargs)
            return args[0]
        if func in _ELEMENTWISE_LISTS and all(isinstance(one, cls) for one in args[0]):
            pieces = [piece for one in args[0] for piece in one._changed(func)]
            if pieces:
                func(pieces, *args[1:], **kwargs)
            return None
        if func is _aten.add_.Tensor and isinstance(args[0], cls) and not isinstance(args[1], cls):
            args[0]._add(*args[1:], **kwargs)
            return args[0]
        if func is _aten._foreach_norm.Scalar:
            return _norms(args[0], *args[1:], **kwargs)
        if func is _aten.linalg_vector_norm.default and len(args) < 3 and isinstance(args[0], cls):
            return _norm(args[0], *args[1:], **kwargs)
        if func is _aten._amp_foreach_non_finite_check_and_unscale_.default:
            grads, found, factor = args
            if pieces := [piece for one in grads for piece in one._changed(func)]:
                func(pieces, found, factor)
            for owners in dict.fromkeys(one._owners for one in grads):
                dist.all_reduce(found, dist.ReduceOp.MAX, group=owners.group)
            return None
        raise _refused(func, _shape_of(args, cls))


def _refused(what: object, shape: Sequence[int]) -> RuntimeError:
    return RuntimeError(
        f"[smdp] {what} of a gradient of shape {tuple(shape)}: a ShardedOptimizer has distributed its values"
        " over the ranks. Norms, scaling and clamping are possible. For anything else, call"
        " grad.full_tensor() on all ranks."
    )


def _stays(grad: Tensor, options: Mapping[str, Any]) -> bool:
    """Returns whether a conversion names the dtype and the kind of device that a gradient has."""
    device = options.get("device")
    if device is None or torch.device(device).type != grad.device.type:
        return False
    return options.get("dtype") in (None, grad.dtype)


def _check_factors(func: object, grads: Tensor | Sequence[Tensor], given: Iterable[object]) -> None:
    """Checks that every rank can apply the same factors or limits to its pieces."""
    for one in given:
        if isinstance(one, Tensor) and (one.dim() > 1 or one.numel() != 1):
            shape = grads.shape if isinstance(grads, Tensor) else grads[0].shape
            raise RuntimeError(
                f"[smdp] {func} of a gradient of shape {tuple(shape)} got a tensor of shape"
                f" {tuple(one.shape)}: a ShardedOptimizer has distributed the gradient over the ranks, so a"
                " factor or limit must be a number or a tensor with one value. For others, change"
                " grad.full_tensor() on all ranks, and pass it to grad.take()."
            )


def _norms(grads: Sequence[Tensor], order: float = 2, *args: Any, **kwargs: Any) -> list[Tensor]:
    found = [one for one in grads if isinstance(one, ShardedGradient)]
    if len(found) != len(grads):
        raise RuntimeError(
            "[smdp] some of these gradients are distributed over the ranks by a ShardedOptimizer, and others"
            " are not. Compute the norms of both kinds separately."
        )
    dtype = kwargs.get("dtype") or found[0].dtype
    norms = torch.zeros(len(found), dtype=torch.float64)
    for owners in dict.fromkeys(one._owners for one in found):
        places = [place for place, one in enumerate(found) if one._owners is owners]
        own = [found[place].averaged("a norm") for place in places]
        norms[places] = owners.norms(own, float(order))
    return list(norms.to(dtype).unbind())


def _norm(grad: ShardedGradient, order: float = 2, *args: Any, **kwargs: Any) -> Tensor:
    grad.averaged("a norm")
    return grad._owners.norm(grad._index, float(order)).to(kwargs.get("dtype") or grad.dtype)


def _shape_of(args: Sequence[Any], kind: type[Tensor]) -> tuple[int, ...]:
    for one in args:
        for each in one if isinstance(one, list | tuple) else [one]:
            if isinstance(each, kind):
                return tuple(each.shape)
    return ()
