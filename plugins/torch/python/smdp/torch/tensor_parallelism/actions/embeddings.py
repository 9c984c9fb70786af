"""Actions on embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from smdp.torch.tensor_parallelism.layers.embedding import cut_vocabulary, cut_width
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


@dataclass(frozen=True)
class Vocabulary:
    """Divides an embedding by tokens."""

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why the module cannot be divided, or None."""
        return _problem(module)

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Divides the module."""
        assert isinstance(module, nn.Embedding)
        cut_vocabulary(module, axis)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        return f"embedding_rowwise: tokens / {size}, result summed"


@dataclass(frozen=True)
class Width:
    """Divides an embedding by columns.

    Attributes:
        gathers: Whether the result has the columns of all ranks.
    """

    gathers: bool = True

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why the module cannot be divided, or None."""
        found = _problem(module)
        if found is None and isinstance(module, nn.Embedding) and module.embedding_dim % size:
            return f"a width of {module.embedding_dim} is not a multiple of {size}"
        return found

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Divides the module."""
        assert isinstance(module, nn.Embedding)
        cut_width(module, axis, gathers=self.gathers)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        return f"embedding_colwise: columns / {size}{', result gathered' if self.gathers else ''}"


def _problem(module: nn.Module) -> str | None:
    """Returns why an embedding cannot be divided in any way, or None."""
    if not isinstance(module, nn.Embedding):
        return f"a {type(module).__name__} is not an embedding"
    if module.max_norm is not None:
        return "max_norm needs whole rows"
    if module.scale_grad_by_freq:
        return "scale_grad_by_freq counts tokens of other ranks"
    if module.sparse:
        return "its gradient is sparse"
    return None
