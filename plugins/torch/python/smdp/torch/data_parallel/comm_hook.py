"""A communication hook that compresses the gradients of torch's DistributedDataParallel.

This module does not postpone annotations, because torch reads those of a hook.
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
    KEEPING_COMPRESSIONS,
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
    """The hook that `comm_hook()` returns. torch's reducer calls it with every bucket.

    Buckets of dtypes other than float32 are not compressed. torch rearranges its buckets after the first
    step, so that step sends float32 if the codec keeps values for later steps.
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
        self._next_velocity: dict[int, Tensor] = {}  # replaces it if all buckets of this step are finite
        self._is_checked = False
        self._keys: dict[tuple[int, ...], int] = {}  # numbers buckets by the ids of their parameters
        self._is_first = True
        self._is_in_step = False
        self._counts = True
        self._steps = CountedSteps(group.name)
        self._step_bytes = 0
        self._make = make
        self.__name__ = self.__qualname__ = "smdp.torch.comm_hook"  # torch expects a function with a name

    def __reduce__(self) -> tuple[Callable[[], "CommHook"], tuple[()]]:
        """Copies the hook for the default group, without the values kept from earlier steps.

        A copied model has the hook in its list, but torch does not register it with the reducer.
        """
        return self._make, ()

    def __call__(self, state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        """Starts averaging a bucket."""
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
        # This rank computes until its last values arrive.
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
        if self._momentum and not is_coded:  # the codec does not add the momentum
            parts = list(zip(map(id, bucket.parameters()), bucket.gradients(), strict=True))
        return done.then(lambda done: self._averaged(done, host, parts))

    def _start_rows(self, bucket: dist.GradBucket, buffer: Tensor) -> Future[Tensor]:
        """Starts averaging a sparse gradient, which has its own bucket and is not compressed."""
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
        """Multiplies the values that compression keeps for later steps by `factor`.

        Call it on all ranks after the loss scale has been multiplied by `factor`; `follow()` does so.

        Raises:
            ValueError: `factor` is not a finite number above 0.
        """
        check_factor(factor)
        if self._is_in_step:
            self._end_step()
        self._compressor.rescale(factor)
        for velocity in self._velocity.values():
            velocity.mul_(factor)

    def follow(self, scaler: torch.amp.GradScaler) -> None:
        """Calls `rescale_residuals` whenever `scaler.update()` changes the loss scale."""
        follow(scaler, self)

    def _key_of(self, bucket: dist.GradBucket) -> int:
        """Returns a number for the bucket's parameters, so that residuals stay with these parameters."""
        parameters = tuple(id(parameter) for parameter in bucket.parameters())
        return self._keys.setdefault(parameters, len(self._keys))

    def _averaged(self, done: Future[list[Tensor]], host: Tensor, parts: list[tuple[int, Tensor]]) -> Tensor:
        """Returns the mean, which `host` also holds, after adding the momentum to its `parts`."""
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
        if self._counts:  # else a bucket was not finite, and the loss scaler skips the step
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
    """Returns a hook for `torch.nn.parallel.DistributedDataParallel.register_comm_hook(None, hook)`.

    Args:
        compression: The format in which float32 gradients travel between hosts: "none", "fp16", "bf16",
            "int8" or "topk".
        process_group: The group that the model was wrapped with, which must use the backend "smdp". Default:
            the default group.
        topk_ratio: The fraction of a bucket that "topk" sends.
        topk_momentum: The momentum that "topk" applies. Set it to the optimizer's momentum, and set the
            optimizer's to 0.

    Raises:
        ValueError: The group does not use the backend "smdp", `compression` is unknown, or a number is out
            of range.

    Example:
        >>> ddp.register_comm_hook(None, smdp.torch.comm_hook("bf16"))  # doctest: +SKIP
    """
    check_reducer_options("comm_hook", compression, None, topk_ratio=topk_ratio, topk_momentum=topk_momentum)
    group = process_group or dist.group.WORLD
    if not isinstance(group, ProcessGroupSmdp):
        if group is None:
            cure = "Call init_process_group('smdp') first."
        elif isinstance(group, dist.ProcessGroup):
            cure = "Pass the group that the model was wrapped with as process_group."
        else:
            cure = f"It got {shown(group)}, which new_group() returns on ranks outside the group."
        raise ValueError(f"[smdp] smdp.torch.comm_hook needs a group of the backend 'smdp'. {cure}")
    compressor = _core.GradientCompressor(compression, topk_ratio, topk_momentum)
    watch()
    has_state = compression in KEEPING_COMPRESSIONS
    make = partial(comm_hook, compression, topk_ratio=topk_ratio, topk_momentum=topk_momentum)
    return CommHook(group.core, compressor, has_state=has_state, momentum=topk_momentum, make=make)
