"""A gradient tape whose gradients are those of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from smdp.tensorflow.allreduce import reduce_all
from smdp.tensorflow.arguments import bytes_of, scale_of
from smdp.tensorflow.compression import Compression, compressor
from smdp.tensorflow.gradient_steps import BUCKET_CAP_MB
from smdp.tensorflow.groups import group_of, name_of
from smdp.tensorflow.reduce_op import ReduceOp, reduce_op
from smdp.tensorflow.tracing import no_autograph


class Reduction:
    """How the gradients of a tape or an optimizer are reduced."""

    def __init__(
        self,
        compression: Any,
        op: Any,
        sparse_as_dense: bool,
        prescale_factor: float,
        postscale_factor: float,
        bucket_cap_mb: float,
        group: Any,
        process_set: Any,
    ) -> None:
        self._compression = compressor(compression)
        self._op = reduce_op(op)
        self._sparse_as_dense = sparse_as_dense
        self._prescale = scale_of("prescale_factor", prescale_factor)
        self._postscale = scale_of("postscale_factor", postscale_factor)
        self._buffer_bytes = bytes_of(bucket_cap_mb)
        self._group = group if group is not None else process_set
        group_of(self._group)  # wrong ones are told now

    @property
    def group(self) -> Any:
        """The one that was given, else the world, which after shutdown() and init() is another."""
        return group_of(self._group)

    def __call__(self, gradients: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """The gradients over all ranks; those that are None stay so, and must be None on all ranks."""
        group = self.group
        if len(gradients) != len(sources):
            raise ValueError(
                f"[smdp] rank {group.rank}: {len(gradients)} gradients were given for {len(sources)}"
                " variables; there must be one for each. Give both lists in the same order, with None where a"
                " variable has no gradient."
            )
        _warn_of_a_second_time(gradients, sources, group)
        whole = [self._densified(g, s) for g, s in zip(gradients, sources, strict=True)]
        reduced = reduce_all(
            whole,
            sources,
            [_name_of(source, i) for i, source in enumerate(sources)],
            op=self._op,
            compression=self._compression,
            prescale_factor=self._prescale,
            postscale_factor=self._postscale,
            group=group,
            buffer_bytes=self._buffer_bytes,
        )
        for one in reduced:
            if one is not None:
                setattr(one, _MARK, group.core.id)
        return reduced

    def _densified(self, gradient: Any, source: Any) -> Any:
        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            if not self._sparse_as_dense:
                return gradient
            gradient = tf.convert_to_tensor(gradient)
        elif not isinstance(gradient, tf.Tensor):  # what Keras takes: arrays, lists, its own variables
            gradient = tf.cast(tf.convert_to_tensor(gradient), source.dtype)
        if not gradient.shape.is_fully_defined() and source.shape.is_fully_defined():
            gradient = tf.ensure_shape(gradient, source.shape)
        return gradient


# An attribute of tensors that are gradients of all ranks already: the id of their group.
_MARK = "_smdp_reduced_by"


def _warn_of_a_second_time(gradients: Sequence[Any], sources: Sequence[Any], group: Any) -> None:
    for index, gradient in enumerate(gradients):
        if group.size > 1 and getattr(gradient, _MARK, None) == group.core.id:
            warnings.warn(
                f"[smdp] rank {group.rank} of {group.size}: the gradient of {_name_of(sources[index], index)}"
                " is reduced a second time, as by a DistributedGradientTape and a DistributedOptimizer:"
                f" it takes as long again, multiplies sums by {group.size}, and loses again what compression"
                " loses. Leave one of them out.",
                RuntimeWarning,
                stacklevel=1,  # one place, so Python shows it once
            )
            return


def _name_of(source: Any, index: int) -> str:
    return name_of(source) or f"source {index}"


class DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """Wraps a tape, finished or not: ``gradient()`` gives the mean over all ranks.

    Everything else is the wrapped tape's. All ranks must ask for the gradients of the same variables in the
    same order. Inside a ``tf.function`` each gradient is sent as soon as backward has it.

    Args:
        gradtape: The tape.
        device_dense: Not used.
        device_sparse: Not used.
        compression: What float32 gradients travel as between hosts, one of Compression; or one's own, as in
            allreduce, for which each dense gradient is reduced by itself.
        sparse_as_dense: Reduce IndexedSlices as dense tensors. Otherwise rows and indices are gathered.
        op: A ReduceOp.
        gradient_predivide_factor: Not used; smdp's means need none.
        num_groups: Not used; fusion buffers follow from sizes.
        groups: Not used.
        process_set: Another name for group.
        scale_local_gradients: Not used; all gradients are reduced.
        prescale_factor: Multiplies gradients before the sum.
        postscale_factor: Multiplies the result.
        bucket_cap_mb: Most MiB of a fusion buffer.
        group: Default: all ranks.

    Raises:
        TypeError: gradtape is no tape, or a factor or bucket_cap_mb is no number.
        ValueError: A value that is not allowed, or gradtape is a DistributedGradientTape.
    """

    def __init__(
        self,
        gradtape: Any,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: Any = ReduceOp.AVERAGE,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: Any = None,
        scale_local_gradients: bool = True,
        *,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        bucket_cap_mb: float = BUCKET_CAP_MB,
        group: Any = None,
    ) -> None:
        if not hasattr(gradtape, "gradient"):
            raise TypeError(
                f"[smdp] DistributedGradientTape takes a tf.GradientTape; this is {type(gradtape).__name__}."
            )
        if isinstance(gradtape, DistributedGradientTape):
            raise ValueError(
                "[smdp] DistributedGradientTape got a DistributedGradientTape, and would reduce twice. Wrap"
                " the tf.GradientTape itself."
            )
        # Not the base's: this object only looks like a tape. What records is the wrapped one.
        self._wrapped = gradtape
        self._is_used = False
        self._reduction = Reduction(
            compression,
            op,
            sparse_as_dense,
            prescale_factor,
            postscale_factor,
            bucket_cap_mb,
            group,
            process_set,
        )

    def __enter__(self) -> DistributedGradientTape:
        self._is_used = False  # TensorFlow lets a tape record once more
        self._wrapped.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._wrapped.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":
            raise AttributeError(name)
        if name == "register_local_source":
            raise AttributeError(
                "[smdp] DistributedGradientTape has no register_local_source(): it reduces all gradients. Ask"
                " the tape that it wraps for those of variables that are each rank's own."
            )
        return getattr(self._wrapped, name)

    @no_autograph
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """As tf.GradientTape's, over all ranks.

        Raises:
            RuntimeError: A second call, on a persistent tape.
        """
        if self._is_used:
            names = ", ".join(_name_of(s, i) for i, s in enumerate(tf.nest.flatten(sources)[:3]))
            raise RuntimeError(
                f"[smdp] rank {self._reduction.group.rank}: DistributedGradientTape.gradient() was called"
                f" a second time, now for {names}. Wrap the persistent tape again for each call, or ask"
                " for all gradients in one."
            )
        self._is_used = True
        gradients = self._wrapped.gradient(target, sources, output_gradients, unconnected_gradients)
        flat = tf.nest.flatten(sources)
        reduced = self._reduction(tf.nest.flatten(gradients, expand_composites=False), flat)
        return tf.nest.pack_sequence_as(sources, reduced)

    def reset(self) -> None:
        """As tf.GradientTape's."""
        self._is_used = False
        self._wrapped.reset()

    def watch(self, tensor: Any) -> None:
        """As tf.GradientTape's."""
        self._wrapped.watch(tensor)

    def watched_variables(self) -> Any:
        """As tf.GradientTape's."""
        return self._wrapped.watched_variables()

    def stop_recording(self) -> Any:
        """As tf.GradientTape's."""
        return self._wrapped.stop_recording()

    def jacobian(self, *arguments: Any, **options: Any) -> Any:
        """As tf.GradientTape's, of this rank alone."""
        return self._wrapped.jacobian(*arguments, **options)

    def batch_jacobian(self, *arguments: Any, **options: Any) -> Any:
        """As tf.GradientTape's, of this rank alone."""
        return self._wrapped.batch_jacobian(*arguments, **options)
