"""A communication hook that gives torch's own DistributedDataParallel smdp's wire types.

Annotations are not postponed here: torch reads those of a hook.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from smdp import _core
from smdp._shown import shown
from smdp.torch.data_parallel.counted_steps import CountedSteps, Told
from smdp.torch.data_parallel.input_wait import watch
from smdp.torch.data_parallel.loss_scale import follow
from smdp.torch.data_parallel.reducer_options import (
    check_factor,
    check_reducer_options,
    check_rows_have_no_momentum,
)
from smdp.torch.process_group import arrivals
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.process_group.profiling import ranged
from smdp.torch.process_group.sparse_sums import SparseStaging
from smdp.torch.process_group.tensors import REDUCTIONS, Staging, dtype_code
from smdp.torch.process_group.work import HandleWork

_AVG = REDUCTIONS[hash(dist.ReduceOp.AVG)]


class CommHook:
    """What `comm_hook` makes; called by torch's reducer with every bucket.

    Buckets of other dtypes than float32 travel as they are. torch lays its buckets out anew after the first
    step, so in that one nothing is left for later: it goes as float32.
    """

    def __init__(
        self,
        group: _core.Group,
        compressor: _core.GradientCompressor,
        *,
        has_state: bool,
        momentum: float,
        make: Callable[[], "CommHook"],
    ) -> None:
        self._group = group
        self._compressor = compressor
        self._plain = _core.GradientCompressor("none", 1.0, 0.0)
        self._has_state = has_state
        self._momentum = momentum
        self._velocity: dict[int, Tensor] = {}  # by the parameter's id
        self._next_velocity: dict[int, Tensor] = {}  # if the step under way counts
        self._is_checked = False
        self._keys: dict[tuple[int, ...], int] = {}  # of buckets, by their parameters
        self._is_first = True
        self._is_in_step = False
        self._counts = True
        self._steps = CountedSteps(group.name)
        self._step_bytes = 0
        self._make = make
        self.__name__ = self.__qualname__ = "smdp.torch.comm_hook"  # torch takes a hook for a function

    def __reduce__(self) -> tuple[Callable[[], "CommHook"], tuple[()]]:
        """Copy it for the world, and without what is kept of steps.

        A copied model has it in its list and not in its reducer, as torch leaves out any hook there.
        """
        return self._make, ()

    def __call__(self, state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start averaging a bucket."""
        with ranged("comm_hook"):
            return self._start(bucket)

    def _start(self, bucket: dist.GradBucket) -> Future[Tensor]:
        buffer = bucket.buffer()
        if not self._is_checked:
            self._compressor.check_same(self._group)
            self._is_checked = True
        if bucket.index() == 0 and self._is_in_step:
            self._end_step()
        self._is_in_step = True
        if buffer.is_sparse:
            return self._start_rows(bucket, buffer)
        self._step_bytes += buffer.nbytes
        key = self._key_of(bucket)
        is_plain = self._is_first and self._has_state
        compressor = self._plain if is_plain else self._compressor
        staging = Staging("comm_hook")
        host = staging.update(buffer)
        label = f"comm_hook: bucket {bucket.index()} of {len(bucket.parameters())} gradients"
        told = Told(self._group) if bucket.is_last() else None
        # What this rank computes ends when the last values come.
        tell = None if told is None else lambda: told.set(self._steps.seconds_computed())
        arrival = None
        if staging.is_late:
            arrival = arrivals.expect(staging, host, self._group, before=tell)
        elif tell is not None:
            tell()
        handle = compressor.all_reduce(
            self._group, key, host.data_ptr(), host.numel(), dtype_code(buffer.dtype), label, arrival
        )
        if told is not None:
            told.start(arrival)
            self._steps.count(self._step_bytes, told)
            self._step_bytes = 0
        work = HandleWork((handle,), [buffer], host, staging if staging.is_needed else None)
        done: Future[list[Tensor]] = work.get_future()
        parts: list[tuple[int, Tensor]] = []
        is_coded = len(self._group.hosts) > 1 and buffer.dtype is torch.float32
        if self._momentum and not is_coded:  # no codec adds it
            parts = list(zip(map(id, bucket.parameters()), bucket.gradients(), strict=True))
        return done.then(lambda done: self._averaged(done, host, parts))

    def _start_rows(self, bucket: dist.GradBucket, buffer: Tensor) -> Future[Tensor]:
        """Starts averaging a sparse gradient, which has a bucket of its own and travels as it is."""
        check_rows_have_no_momentum(self._momentum)
        self._step_bytes += buffer._indices().nbytes + buffer._values().nbytes
        staging = SparseStaging("comm_hook", buffer, is_in_place=True)
        handle = self._group.all_reduce_sparse(staging.sum, _AVG, 1.0, -1.0, True)
        if bucket.is_last():
            told = Told(self._group)
            told.set(self._steps.seconds_computed())
            told.start(None)
            self._steps.count(self._step_bytes, told)
            self._step_bytes = 0
        work = HandleWork((handle,), [buffer], staging=staging)
        done: Future[list[Tensor]] = work.get_future()
        return done.then(lambda done: self._averaged(done, buffer._values(), []))

    def rescale_residuals(self, factor: float) -> None:
        """Tell compression that the loss scale has been multiplied by `factor`.

        Raises:
            ValueError: It is not a number above 0.
        """
        check_factor(factor)
        if self._is_in_step:
            self._end_step()
        self._compressor.rescale(factor)
        for velocity in self._velocity.values():
            velocity.mul_(factor)

    def follow(self, scaler: torch.amp.GradScaler) -> None:
        """Have `rescale_residuals` called whenever a loss scaler's `update()` changes its scale."""
        follow(scaler, self)

    def _key_of(self, bucket: dist.GradBucket) -> int:
        """Number a bucket by what is in it: what is left over of one must not go to others."""
        parameters = tuple(id(parameter) for parameter in bucket.parameters())
        return self._keys.setdefault(parameters, len(self._keys))

    def _averaged(self, done: Future[list[Tensor]], host: Tensor, parts: list[tuple[int, Tensor]]) -> Tensor:
        """Give the mean, also in `host`; to its parts goes the momentum that the optimizer leaves out."""
        (buffer,) = done.wait()
        is_finite = not (self._has_state or self._momentum) or bool(torch.isfinite(host).all())
        self._counts = self._counts and is_finite
        for parameter, part in parts if is_finite else ():
            before = self._velocity.get(parameter)
            velocity = part.clone() if before is None else torch.add(part, before, alpha=self._momentum)
            self._next_velocity[parameter] = velocity
            part.copy_(velocity)
        return buffer

    def _end_step(self) -> None:
        self._is_in_step = self._is_first = False
        self._compressor.end_step(self._counts)
        if self._counts:  # else one of its buckets was not finite, and whoever scales the loss skips it
            self._velocity.update(self._next_velocity)
        self._next_velocity.clear()
        self._counts = True


def comm_hook(
    compression: str,
    process_group: dist.ProcessGroup | None = None,
    *,
    topk_ratio: float = 0.01,
    topk_momentum: float = 0.0,
) -> CommHook:
    """Make a hook for `torch.nn.parallel.DistributedDataParallel.register_comm_hook(None, hook)`.

    Args:
        compression: What gradients travel as between hosts: "none", "fp16", "bf16", "int8" or "topk".
        process_group: The group that the model was wrapped with; default: the world. Must be one of smdp.
        topk_ratio: Part of a bucket that "topk" sends.
        topk_momentum: Momentum correction of "topk": the optimizer's momentum, which it must then not apply.

    Raises:
        ValueError: The group is not one of smdp, `compression` is unknown, or a figure is no number or out
            of range.

    Example:
        >>> ddp.register_comm_hook(None, smdp.torch.comm_hook("bf16"))  # doctest: +SKIP
    """
    check_reducer_options("comm_hook", compression, None, topk_ratio=topk_ratio, topk_momentum=topk_momentum)
    group = process_group or dist.group.WORLD
    if not isinstance(group, ProcessGroupSmdp):
        if group is None:
            cure = "call init_process_group('smdp') before"
        elif isinstance(group, dist.ProcessGroup):
            cure = "pass process_group=..., the one that the model was wrapped with"
        else:
            cure = f"got {shown(group)}, as of a rank that is no member"
        raise ValueError(f"smdp.torch.comm_hook needs a group of the backend 'smdp': {cure}")
    compressor = _core.GradientCompressor(compression, topk_ratio, topk_momentum)
    watch()
    has_state = compression in ("int8", "topk")
    make = partial(comm_hook, compression, topk_ratio=topk_ratio, topk_momentum=topk_momentum)
    return CommHook(group.core, compressor, has_state=has_state, momentum=topk_momentum, make=make)
