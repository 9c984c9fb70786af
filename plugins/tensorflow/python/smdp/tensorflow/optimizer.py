"""Keras 3 optimizers that average gradients over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from smdp.tensorflow.compression import Compression, compressor
from smdp.tensorflow.gradient_steps import BUCKET_CAP_MB
from smdp.tensorflow.gradient_tape import Reduction
from smdp.tensorflow.library import check_keras_backend, is_keras_3, keras_version
from smdp.tensorflow.reduce_op import ReduceOp
from smdp.tensorflow.tracing import no_autograph, refuse_inner_optimizer


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = ReduceOp.AVERAGE,
    bucket_cap_mb: float = BUCKET_CAP_MB,
    backward_passes_per_step: int = 1,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    group: Any = None,
    process_set: Any = None,
    average_aggregated_gradients: bool = False,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes a Keras 3 optimizer reduce gradients before it applies them, and returns it.

    Only ``apply`` of this object changes. Its class, config and variables stay the same, so a saved model can
    be loaded without smdp. Clipping, weight decay and loss scaling come after the reduction. With
    ``mixed_float16``, wrap the outermost optimizer, ``DistributedOptimizer(LossScaleOptimizer(optimizer))``,
    so that all ranks skip the same steps. A copy of the optimizer and the optimizer of a loaded model must be
    wrapped again; until then, they do not reduce gradients.

    Arguments are those of DistributedGradientTape. ``name``, ``use_locking``, ``groups`` and
    ``average_aggregated_gradients`` are not used.

    Raises:
        TypeError: ``optimizer`` is not a Keras 3 optimizer. With Keras 2, use DistributedGradientTape.
        ValueError: The optimizer has been wrapped before; Keras uses another backend; mixed_float16 is on but
            the optimizer does not scale the loss; or it scales the loss and compression is int8 or topk.
    """
    if not is_keras_3 or not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        raise TypeError(
            f"[smdp] DistributedOptimizer takes an optimizer of Keras 3; this is {type(optimizer).__name__}"
            f" and tf.keras is {keras_version}. With Keras 2, use DistributedGradientTape."
        )
    check_keras_backend("DistributedOptimizer")
    if backward_passes_per_step != 1:
        raise ValueError(
            f"[smdp] backward_passes_per_step is {backward_passes_per_step}; Keras 3 accumulates itself: pass"
            " gradient_accumulation_steps=... to the optimizer instead."
        )
    if hasattr(optimizer, "_smdp_reduction"):
        raise ValueError(
            "[smdp] this optimizer is distributed already; wrapping it twice would reduce twice."
        )
    scales_loss = isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
    if tf.keras.mixed_precision.global_policy().name == "mixed_float16" and not scales_loss:
        raise ValueError(
            "[smdp] with mixed_float16, Keras wraps the optimizer in a LossScaleOptimizer, which then decides"
            " on each rank separately whether to skip a step. Wrap it yourself, inside:"
            " DistributedOptimizer(tf.keras.mixed_precision.LossScaleOptimizer(optimizer))."
        )
    wire = compressor(compression)
    if scales_loss and wire.keeps_errors:
        raise ValueError(
            f"[smdp] {wire!r} adds the error of one step to later ones, in which the loss scale may differ."
            " With a LossScaleOptimizer, use Compression.fp16 or bf16."
        )
    reduction = Reduction(
        compression, op, sparse_as_dense, prescale_factor, postscale_factor, bucket_cap_mb, group, process_set
    )
    apply = optimizer.apply

    @no_autograph
    def reduced(grads: Sequence[Any], trainable_variables: Sequence[Any] | None) -> list[Any]:
        refuse_inner_optimizer(optimizer)
        gradients = list(grads)
        if gradients and trainable_variables is None and not optimizer.built:
            raise ValueError(
                f"[smdp] rank {reduction.group.rank}: apply() got {len(gradients)} gradients without"
                " variables, but the optimizer was not built. Call optimizer.build(variables) first,"
                " or also pass the variables to apply()."
            )
        variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        return reduction(gradients, variables)

    # AutoGraph may translate this function, because the optimizer's own apply() may need it.
    def apply_reduced(grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)  # an iterator can be read only once
        return apply(reduced(grads, trainable_variables), trainable_variables)

    # Bypasses Keras's __setattr__, which would track it.
    object.__setattr__(optimizer, "_smdp_reduction", reduction)
    object.__setattr__(optimizer, "apply", apply_reduced)
    return optimizer
