"""BERT."""

from __future__ import annotations

from smdp._core import Architecture, Layers
from smdp.memory.families.heads import Head
from smdp.memory.fields import Fields

CLASSES = (
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertLMHeadModel",
    "BertModel",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertForNextSentencePrediction",
    "BertForMultipleChoice",
)


def architecture(fields: Fields) -> Architecture:
    """Returns the architecture for model_type bert."""
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    vocabulary = fields.count("vocab_size")
    if fields.flag("add_cross_attention", False):
        raise fields.refuse("add_cross_attention", "false")
    head = _head(fields, hidden, vocabulary)
    layers = Layers(
        count=fields.count("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        key_value_heads=heads,
        head_size=fields.head_size("hidden_size", "num_attention_heads"),
        ffn=fields.count("intermediate_size"),
        has_query_key_value_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_dropout=fields.is_above_zero("hidden_dropout_prob", "attention_probs_dropout_prob", default=0.1),
    )
    return Architecture(
        name="bert",
        hidden=hidden,
        vocabulary=vocabulary,
        positions=fields.count("max_position_embeddings"),
        embedding_extra=fields.count("type_vocab_size", 2) * hidden + 2 * hidden,
        has_embedding_dropout=fields.is_above_zero("hidden_dropout_prob", default=0.1),
        layers=[layers],
        head_extra=head.extra,
        outputs=head.outputs,
        is_tied=head.is_tied,
    )


def _head(fields: Fields, hidden: int, vocabulary: int) -> Head:
    matrix = (hidden + 1) * hidden
    pooler = matrix
    # A matrix, a norm, and the bias of the logits.
    transform = matrix + 2 * hidden + vocabulary
    match fields.model_class(CLASSES):
        case "BertForMaskedLM" | "BertLMHeadModel":
            return _tied(fields, transform, vocabulary)
        case "BertForPreTraining":
            return _tied(fields, transform + pooler + (hidden + 1) * 2, vocabulary)
        case "BertModel":
            return Head(pooler, 0, False)
        case "BertForNextSentencePrediction":
            return Head(pooler + (hidden + 1) * 2, 0, False)
        case "BertForMultipleChoice":
            return Head(pooler + hidden + 1, 0, False)
        case "BertForSequenceClassification":
            return Head(pooler + (hidden + 1) * fields.labels(), 0, False)
    return Head((hidden + 1) * fields.labels(), 0, False)


def _tied(fields: Fields, extra: int, vocabulary: int) -> Head:
    is_tied = fields.flag("tie_word_embeddings", True)
    # If untied, the last matrix has its own bias in addition to the one that the head adds.
    return Head(extra if is_tied else extra + vocabulary, vocabulary, is_tied)
