"""`smp.nn.DistributedEmbedding`: an embedding that is divided by width."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smdp.torch.model_parallel.nn.distributed_module import DistributedModule, check_divisible
from smdp.torch.model_parallel.nn.initial_values import same_random_numbers
from smdp.torch.model_parallel.nn.layout import Layout


class DistributedEmbedding(DistributedModule):
    """Replaces torch.nn.Embedding: each rank of the tensor-parallel group has some columns of all rows.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Number of columns over all ranks.
        padding_idx: The row without gradient, as in torch.
        max_norm: Must be None with several ranks, because no rank has whole rows.
        norm_type: As in torch.
        scale_grad_by_freq: As in torch, with the frequencies in the samples of all ranks.
        sparse: As in torch.
        _weight: Initial values, (num_embeddings, embedding_dim). None: normal with `initializer_range`.
        initializer_range: Standard deviation of the initial values.
        _skip_allgather: Whether the tokens are already those of all ranks.
        _skip_scatter_and_merge: Whether the result is this rank's columns for the samples of all ranks.
        device: The device of the weight. None: torch's default.
        dtype: The dtype of the weight. None: torch's default.

    Raises:
        ValueError: `embedding_dim` is not divisible by `tensor_parallel_degree`, or `max_norm` is given.
    """

    weight: nn.Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        initializer_range: float = 0.02,
        _skip_allgather: bool = False,
        _skip_scatter_and_merge: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_divisible("embedding_dim", embedding_dim, self.tensor_axis.size)
        weight = torch.empty(num_embeddings, embedding_dim, device=device, dtype=dtype)
        with same_random_numbers(self.tensor_axis), torch.no_grad():
            weight.normal_(0.0, initializer_range) if _weight is None else weight.copy_(_weight)
        options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        whole = nn.Embedding.from_pretrained(weight, False, *options)
        if _weight is None and whole.padding_idx is not None:
            with torch.no_grad():
                weight[whole.padding_idx].zero_()
        self._take(whole, _skip_allgather, _skip_scatter_and_merge)

    @classmethod
    def of(cls, embedding: nn.Module) -> DistributedEmbedding:
        """Returns an embedding with this rank's columns of an embedding, whose weight it takes."""
        found = cls.__new__(cls)
        DistributedModule.__init__(found)
        found._take(cast("nn.Embedding", embedding), False, False)
        return found

    def _take(self, whole: nn.Embedding, skip_gather: bool, skip_scatter: bool) -> None:
        if whole.max_norm is not None and self.tensor_axis.size > 1:
            raise ValueError(
                f"[smdp] max_norm = {whole.max_norm} needs whole rows, but each of {self.tensor_axis.size}"
                " ranks has a slice of them; use None, or tensor_parallelism(enabled=False) for this module"
            )
        self.num_embeddings, self.embedding_dim = whole.num_embeddings, whole.embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = whole.padding_idx, whole.max_norm, whole.norm_type
        self.scale_grad_by_freq, self.sparse = whole.scale_grad_by_freq, whole.sparse
        self._skip_allgather, self._skip_scatter_and_merge = skip_gather, skip_scatter
        self.weight = whole.weight
        self.layout = Layout.of_job(is_split=True)
        with torch.no_grad():
            self.keep_slice("weight", 1)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the rows of this rank's tokens.

        Args:
            input: Tokens, (batch, ...). All ranks of the group have the same shape.
        """
        tokens = input if self._skip_allgather else self.layout.enter_whole(input)
        found = self.columns(tokens)
        return found if self._skip_scatter_and_merge else self.layout.leave(found)

    def columns(self, tokens: Tensor) -> Tensor:
        """Returns this rank's columns of the rows of tokens."""
        return F.embedding(
            tokens,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )

    def extra_repr(self) -> str:
        """Returns the sizes of the whole embedding."""
        return f"{self.num_embeddings}, {self.embedding_dim}, {super().extra_repr()}".rstrip(", ")
