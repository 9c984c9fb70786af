"""Floating-point operations of a transformer, from its matrices (PTD-P, arXiv 2104.04473, appendix).

A token costs 2 operations per element of every matrix that it is multiplied with, and 4 x sequence x
attention width for the two products with the other tokens. Backward costs twice as much as forward.
"""

from __future__ import annotations

from dataclasses import dataclass

from smdp.memory import Architecture, Layers


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations of one sample's forward.

    Attributes:
        layer: Operations of one layer, averaged over all layers.
        scores: The part of `layer` that selective checkpointing recomputes: the products with other tokens.
        head: Operations of the logits.
    """

    layer: float
    scores: float
    head: float


def work_of(model: Architecture, sequence: int) -> Work:
    """Returns the operations for a sample of `sequence` tokens."""
    tokens = model.sequence or sequence
    count = sum(run.count for run in model.layers)
    matrices = sum(run.count * _matrix_elements(run) for run in model.layers) / count
    scores = sum(
        run.count * 4.0 * tokens * tokens * run.heads * run.head_size * (1 + run.has_cross_attention)
        for run in model.layers
    )
    scores /= count
    return Work(2.0 * tokens * matrices + scores, scores, 2.0 * tokens * model.outputs * model.hidden)


def _matrix_elements(run: Layers) -> float:
    """Returns the number of matrix elements that a token is multiplied with in one layer."""
    width = run.heads * run.head_size
    attention = 2 * run.hidden * width + 2 * run.hidden * run.key_value_heads * run.head_size
    per_expert = (3 if run.is_gated else 2) * run.hidden * run.ffn
    router = run.hidden * run.experts
    shared = 3 * run.hidden * run.shared_ffn
    mlp = per_expert * max(1, run.experts_per_token) + router + shared
    return attention * (1 + run.has_cross_attention) + mlp
