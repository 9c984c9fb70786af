"""`smp.nn.DistributedTransformerLMHead`: a whole language model."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from smdp.torch.model_parallel.nn.arguments import checked_tuple
from smdp.torch.model_parallel.nn.distributed_module import DistributedModule
from smdp.torch.model_parallel.nn.ends import EnteringEmbedding, WidthHead
from smdp.torch.model_parallel.nn.initial_values import same_random_numbers
from smdp.torch.model_parallel.nn.layout import Layout
from smdp.torch.model_parallel.nn.transformer import DistributedTransformer


class DistributedTransformerLMHead(DistributedModule):
    """Embeddings, a transformer, and a head that uses the weight of the word embedding.

    Args:
        num_layers: Number of layers.
        num_attention_heads: See `DistributedTransformerLayer`, as for all arguments that are not listed here.
        attention_head_size: See above.
        hidden_size: See above.
        intermediate_size: See above.
        vocab_size: Number of tokens.
        num_positions: Number of positions; 0 without an embedding of positions.
        attention_dropout_prob: See above.
        hidden_dropout_prob: Also the dropout of the embeddings.
        activation: See above.
        layernorm_epsilon: See above.
        num_token_types: Number of token types; 0 without an embedding of them.
        causal_mask_size: See above.
        add_cross_attention: See above.
        add_lm_head: Whether the result has logits instead of hidden states.
        initializer_range: Also the standard deviation of the initial embeddings.
        use_normal_initialization: See above.
        pre_layernorm: See above.
        post_layernorm: See above.
        embedding_dropout_prob: Dropout of the embeddings. None: `hidden_dropout_prob`.
        tie_input_output_embedding: Whether the head uses the weight of the word embedding.
        use_lm_head_bias: Whether a head that is not tied has a bias.
        **options: Further keyword arguments of `DistributedTransformer`.

    Raises:
        ValueError: A size is not divisible by `tensor_parallel_degree`, or there is no layer norm.
    """

    is_whole_unit = False

    def __init__(
        self,
        num_layers: int = 12,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        vocab_size: int = 30522,
        num_positions: int = 1024,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        num_token_types: int = 0,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        add_lm_head: bool = True,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        *,
        embedding_dropout_prob: float | None = None,
        tie_input_output_embedding: bool = True,
        use_lm_head_bias: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.layout = layout = Layout.of_job()
        self.add_lm_head, self.add_cross_attention = add_lm_head, add_cross_attention
        self.vocab_size, self.is_causal = vocab_size, causal_mask_size is not None
        embedding_dropout = hidden_dropout_prob if embedding_dropout_prob is None else embedding_dropout_prob

        def embedding(rows: int) -> EnteringEmbedding:
            return EnteringEmbedding(rows, hidden_size, layout, initializer_range)

        with same_random_numbers(self.tensor_axis):
            self.word_embedding = embedding(vocab_size)
            self.position_embedding = embedding(num_positions) if num_positions else None
            self.token_type_embedding = embedding(num_token_types) if num_token_types else None
            self.transformer = DistributedTransformer(
                num_layers,
                num_attention_heads,
                attention_head_size,
                hidden_size,
                intermediate_size,
                attention_dropout_prob,
                hidden_dropout_prob,
                activation,
                layernorm_epsilon,
                initializer_range,
                use_normal_initialization,
                causal_mask_size,
                add_cross_attention,
                pre_layernorm,
                post_layernorm,
                _layout=layout,
                _leaves=not add_lm_head,
                _input_dropout_prob=embedding_dropout,
                **options,
            )
            if add_lm_head:
                tied = self.word_embedding.weight if tie_input_output_embedding else None
                size = (hidden_size, vocab_size)
                self.lm_head = WidthHead(*size, layout, initializer_range, tied, has_bias=use_lm_head_bias)

    def forward(self, inputs: tuple[Any, ...]) -> Any:
        """Returns logits for this rank's samples, and the loss before them if there are labels.

        Without a head, returns hidden states.

        Args:
            inputs: (tokens, attention mask, token types, positions, labels), or with cross attention (tokens,
                attention mask, token types, positions, cross states, cross states, cross mask, labels).
                Tokens, (samples, sequence), are required, and all others may be None. Masks, (samples,
                sequence), are 1 where a token is masked. Labels are tokens; with `causal_mask_size`, the
                logits of a token are compared with the next label. Labels of -100 are ignored. Without an
                embedding of positions and rotary ones, positions must count from 0 in each sample.

        Raises:
            ValueError: `inputs` is not such a tuple, or its positions cannot be used.
        """
        names = ["input_ids", "attention_mask", "token_type_ids", "position_ids", "labels"]
        if self.add_cross_attention:
            names = [*names[:-1], "cross_states", "cross_states", "cross_mask", "labels"]
        ids, mask, types, positions, *others = checked_tuple(self, inputs, names)
        labels = others[-1]
        hidden = self._embedded(ids, types, positions)
        mask = _added(mask, hidden.dtype)
        given: tuple[Any, ...] = (hidden, mask)
        if self.add_cross_attention:
            given = (hidden, others[0], mask, _added(others[2], hidden.dtype))
        elif positions is not None and self.transformer.takes_positions:
            given = (*given, positions)
        hidden = self.transformer(given)[0]
        if not self.add_lm_head:
            return hidden
        logits = self.lm_head(hidden)
        if labels is None:
            return logits
        if self.is_causal:
            return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits

    def _embedded(self, ids: Tensor, types: Tensor | None, positions: Tensor | None) -> Tensor:
        found = self.word_embedding(ids)
        if self.position_embedding is not None:
            if positions is None:
                positions = torch.arange(ids.shape[-1], device=ids.device).unsqueeze(0)
            found = found + self.position_embedding(positions, is_same=positions.shape[0] != ids.shape[0])
        elif positions is not None and not self.transformer.takes_positions:
            _check_in_order(positions, ids)
        if self.token_type_embedding is not None:
            found = found + self.token_type_embedding(torch.zeros_like(ids) if types is None else types)
        return cast("Tensor", found)


def _check_in_order(positions: Tensor, ids: Tensor) -> None:
    """Raises ValueError if positions do not count from 0, which layers without positions assume."""
    length = ids.shape[-1]
    expected = torch.arange(length, device=positions.device)
    if positions.shape[-1] != length or bool((positions != expected).any()):
        raise ValueError(
            f"[smdp] position_ids of shape {tuple(positions.shape)} are not 0 to {length - 1} in each sample,"
            " but a model that knows no positions takes no others; leave them out, or create the model"
            " outside of smp.tensor_parallelism"
        )


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Returns what is added to scores, (samples, 1, 1, sequence), given a mask that is 1 where masked."""
    if mask is None:
        return None
    return mask[:, None, None, :].to(dtype) * (torch.finfo(dtype).min / 2)
