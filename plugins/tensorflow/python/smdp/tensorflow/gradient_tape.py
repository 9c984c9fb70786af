"""A gradient tape that averages gradients over all ranks."""

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
    """Reduces the gradients of a tape or an optimizer with given options."""

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
        group_of(self._group)  # a wrong group raises its error now

    @property
    def group(self) -> Any:
        """The group that was passed, or the current world, which changes after shutdown() and init()."""
        return group_of(self._group)

    def __call__(self, gradients: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Returns the reduced gradients. A gradient that is None stays None; it must be None on all ranks."""
        group = self.group
        if len(gradients) != len(sources):
            raise ValueError(
                f"[smdp] rank {group.rank}: {len(gradients)} gradients were given for {len(sources)}"
                " variables; there must be one for each. Pass both lists in the same order, with None for a"
                " variable without a gradient."
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
        elif not isinstance(gradient, tf.Tensor):  # Keras also takes arrays, lists and its own variables
            gradient = tf.cast(tf.convert_to_tensor(gradient), source.dtype)
        if not gradient.shape.is_fully_defined() and source.shape.is_fully_defined():
            gradient = tf.ensure_shape(gradient, source.shape)
        return gradient


# Attribute of gradients that are already reduced: the id of their group.
_MARK = "_smdp_reduced_by"


def _warn_of_a_second_time(gradients: Sequence[Any], sources: Sequence[Any], group: Any) -> None:
    for index, gradient in enumerate(gradients):
        if group.size > 1 and getattr(gradient, _MARK, None) == group.core.id:
            warnings.warn(
                f"[smdp] rank {group.rank} of {group.size}: the gradient of {_name_of(sources[index], index)}"
                " is reduced a second time, for example by a DistributedGradientTape and a"
                f" DistributedOptimizer. This takes as long again, multiplies sums by {group.size}, and"
                " compresses a second time. Use only one of them.",
                RuntimeWarning,
                stacklevel=1,  # a fixed place, so Python shows the warning once
            )
            return


def _name_of(source: Any, index: int) -> str:
    return name_of(source) or f"source {index}"


class DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """Wraps a gradient tape, so that ``gradient()`` returns the mean over all ranks.

    The tape may still be recording or be finished. Everything else behaves like the wrapped tape. All ranks
    must ask for the gradients of the same variables in the same order. Inside a ``tf.function``, each
    gradient is sent as soon as backward has computed it.

    Args:
        gradtape: The tf.GradientTape to wrap.
        device_dense: Not used.
        device_sparse: Not used.
        compression: Format in which float32 gradients are sent between hosts, a member of Compression. It may
            also be a user's compressor, as in allreduce; each dense gradient is then reduced by itself.
        sparse_as_dense: Whether to reduce IndexedSlices as dense tensors. By default, their rows and indices
            are gathered.
        op: A ReduceOp.
        gradient_predivide_factor: Not used; smdp's means do not need it.
        num_groups: Not used; fusion buffers depend on sizes.
        groups: Not used.
        process_set: Another name for ``group``.
        scale_local_gradients: Not used; all gradients are reduced.
        prescale_factor: Factor that multiplies gradients before the sum.
        postscale_factor: Factor that multiplies the result.
        bucket_cap_mb: Maximum size of a fusion buffer in MiB.
        group: The ranks that take part; all by default.

    Raises:
        TypeError: gradtape is not a tf.GradientTape, or a factor or bucket_cap_mb is not a number.
        ValueError: An argument has a value that is not allowed, or gradtape is a DistributedGradientTape.
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
                "[smdp] DistributedGradientTape got a DistributedGradientTape, so it would reduce twice."
                " Wrap the tf.GradientTape itself."
            )
        # The base class is not initialized: this object only has its interface, and the wrapped tape records.
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
        self._is_used = False  # TensorFlow lets a tape record again
        self._wrapped.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._wrapped.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":
            raise AttributeError(name)
        if name == "register_local_source":
            raise AttributeError(
                "[smdp] DistributedGradientTape has no register_local_source(): it reduces all gradients. For"
                " variables that are local to a rank, call gradient() of the wrapped tape."
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
        """Returns the gradients as in tf.GradientTape.gradient(), averaged over all ranks.

        Raises:
            RuntimeError: It was called a second time, on a persistent tape.
        """
        if self._is_used:
            names = ", ".join(_name_of(s, i) for i, s in enumerate(tf.nest.flatten(sources)[:3]))
            raise RuntimeError(
                f"[smdp] rank {self._reduction.group.rank}: DistributedGradientTape.gradient() was called"
                f" a second time, now for {names}. Wrap the persistent tape again for each call, or ask"
                " for all gradients in one call."
            )
        self._is_used = True
        gradients = self._wrapped.gradient(target, sources, output_gradients, unconnected_gradients)
        flat = tf.nest.flatten(sources)
        reduced = self._reduction(tf.nest.flatten(gradients, expand_composites=False), flat)
        return tf.nest.pack_sequence_as(sources, reduced)

    def reset(self) -> None:
        """Behaves like tf.GradientTape.reset()."""
        self._is_used = False
        self._wrapped.reset()

    def watch(self, tensor: Any) -> None:
        """Behaves like tf.GradientTape.watch()."""
        self._wrapped.watch(tensor)

    def watched_variables(self) -> Any:
        """Behaves like tf.GradientTape.watched_variables()."""
        return self._wrapped.watched_variables()

    def stop_recording(self) -> Any:
        """Behaves like tf.GradientTape.stop_recording()."""
        return self._wrapped.stop_recording()

    def jacobian(self, *arguments: Any, **options: Any) -> Any:
        """Returns this rank's own Jacobian, as tf.GradientTape.jacobian() does."""
        return self._wrapped.jacobian(*arguments, **options)

    def batch_jacobian(self, *arguments: Any, **options: Any) -> Any:
        """Returns this rank's own batch Jacobian, as tf.GradientTape.batch_jacobian() does."""
        return self._wrapped.batch_jacobian(*arguments, **options)
