"""Compressors, which choose the format in which gradients are sent."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdp.tensorflow.groups import tensor_of


class Compressor:
    """A format in which gradients are sent, with its name in the core.

    A tape or optimizer passes the name to the gradient reducer, which compresses only between hosts. A single
    allreduce casts the tensor before and after the reduction.
    """

    is_in_core = True

    @property
    def keeps_errors(self) -> bool:
        """Whether the error of one step is added to the next."""
        return self.is_in_core and self.name in ("int8", "topk")

    def __init__(self, name: str, cast: tf.DType | None = None) -> None:
        self.name = name
        self._cast = cast

    def __repr__(self) -> str:
        return f"Compression.{self.name}"

    def compress(self, tensor: Any) -> tuple[Any, tf.DType | None]:
        """Returns the tensor to send and the dtype for decompress(), or None if there is nothing to undo."""
        if self.keeps_errors:
            raise ValueError(
                f"[smdp] {self!r} adds the error of one step to the next, so it works only for the gradients"
                " of a DistributedGradientTape or DistributedOptimizer, not for a single allreduce."
                " Use Compression.fp16 or bf16 here."
            )
        if self._cast is None or not tensor.dtype.is_floating or tensor.dtype.size <= self._cast.size:
            return tensor, None
        return tf.cast(tensor, self._cast), tensor.dtype

    def decompress(self, tensor: Any, dtype: tf.DType | None) -> Any:
        """Returns the received tensor in the dtype that it had before compress()."""
        return tensor if dtype is None else tf.cast(tensor, dtype)


class Compression:
    """The formats in which gradients are sent between hosts.

    They are none, fp16, bf16, int8 (with a scale per block) and topk (only the largest values). int8 and topk
    use error feedback: the error of one step is added to the next.
    """

    none = Compressor("none")
    fp16 = Compressor("fp16", tf.float16)
    bf16 = Compressor("bf16", tf.bfloat16)
    int8 = Compressor("int8")
    topk = Compressor("topk")


class _OwnCompressor(Compressor):
    """A user's compressor. All ranks call its compress() and decompress() on every tensor."""

    is_in_core = False

    def __init__(self, given: Any) -> None:
        super().__init__(given.__name__ if isinstance(given, type) else type(given).__name__)
        self._given = given

    def __repr__(self) -> str:
        return self.name

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        small, ctx = self._given.compress(tensor)
        return tensor_of(small, "allreduce", f"{self.name}.compress()"), ctx

    def decompress(self, tensor: Any, dtype: Any) -> Any:
        return tensor_of(self._given.decompress(tensor, dtype), "allreduce", f"{self.name}.decompress()")


def compressor(value: Any) -> Compressor:
    """Returns the Compressor for a user's value.

    It may be Compression.fp16, "fp16", None, or a class or object with compress() and decompress().

    Raises:
        ValueError: It is none of these.
    """
    if type(value) in (Compressor, _OwnCompressor):  # not isinstance: a user's class may extend Compressor
        found: Compressor = value
        return found
    if all(callable(getattr(value, name, None)) for name in ("compress", "decompress")):
        return _OwnCompressor(value)
    named = getattr(Compression, "none" if value is None else str(value), None)
    if not isinstance(named, Compressor):
        raise ValueError(
            f"[smdp] compression is {value!r}; allowed: Compression.none, fp16, bf16, int8 and topk, or a"
            " class or object with compress() and decompress()."
        )
    return named
