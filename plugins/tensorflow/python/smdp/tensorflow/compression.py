"""What gradients travel as."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdp.tensorflow.groups import tensor_of


class Compressor:
    """One wire type, by its name in the core.

    A tape or optimizer hands the name to the gradient reducer, which compresses between hosts only. A single
    allreduce casts before and after.
    """

    is_in_core = True

    @property
    def keeps_errors(self) -> bool:
        """Whether what is lost in one step is sent in a later one."""
        return self.is_in_core and self.name in ("int8", "topk")

    def __init__(self, name: str, cast: tf.DType | None = None) -> None:
        self.name = name
        self._cast = cast

    def __repr__(self) -> str:
        return f"Compression.{self.name}"

    def compress(self, tensor: Any) -> tuple[Any, tf.DType | None]:
        """The tensor to send, and what decompress() needs."""
        if self.keeps_errors:
            raise ValueError(
                f"[smdp] {self!r} keeps what it loses for the next step, so it works on the gradients of a"
                " DistributedGradientTape or DistributedOptimizer, not on a single allreduce."
                " Use Compression.fp16 or bf16 here."
            )
        if self._cast is None or not tensor.dtype.is_floating or tensor.dtype.size <= self._cast.size:
            return tensor, None
        return tf.cast(tensor, self._cast), tensor.dtype

    def decompress(self, tensor: Any, dtype: tf.DType | None) -> Any:
        """The received tensor as it was before compress()."""
        return tensor if dtype is None else tf.cast(tensor, dtype)


class Compression:
    """The wire types: none, fp16, bf16, int8 (per-block scale) and topk, the last two with error feedback."""

    none = Compressor("none")
    fp16 = Compressor("fp16", tf.float16)
    bf16 = Compressor("bf16", tf.bfloat16)
    int8 = Compressor("int8")
    topk = Compressor("topk")


class _OwnCompressor(Compressor):
    """A user's compress() and decompress(), which all ranks call on every tensor."""

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
    """A Compressor from what users pass: Compression.fp16, "fp16", None, or what has compress and decompress.

    Raises:
        ValueError: It is none of these.
    """
    if type(value) in (Compressor, _OwnCompressor):  # a user's class may be derived from the first
        found: Compressor = value
        return found
    if all(callable(getattr(value, name, None)) for name in ("compress", "decompress")):
        return _OwnCompressor(value)
    named = getattr(Compression, "none" if value is None else str(value), None)
    if not isinstance(named, Compressor):
        raise ValueError(
            f"[smdp] compression is {value!r}; allowed: Compression.none, fp16, bf16, int8 and topk, or what"
            " has compress() and decompress()."
        )
    return named
