"""Floating-point operations of a transformer, from its matrices (PTD-P, arXiv 2104.04473, appendix).

A token costs 2 operations per element of every matrix it meets, and 4 x sequence x width of attention for the
two products with the other tokens; backward costs twice as much as forward.
"""

from __future__ import annotations

from dataclasses import dataclass

from smdp.memory import Architecture, Layers


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of one sample's forward.

    Attributes:
        layer: Of one layer, the mean of all.
        scores: Part of it that selective checkpointing computes again: the products with the other tokens.
        head: Of the logits.
    """

    layer: float
    scores: float
    head: float


def work_of(model: Architecture, sequence: int) -> Work:
    """Give the operations of a sample of `sequence` tokens."""
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
    """That one token meets in a layer."""
    width = run.heads * run.head_size
    attention = 2 * run.hidden * width + 2 * run.hidden * run.key_value_heads * run.head_size
    per_expert = (3 if run.is_gated else 2) * run.hidden * run.ffn
    router = run.hidden * run.experts
    shared = 3 * run.hidden * run.shared_ffn
    mlp = per_expert * max(1, run.experts_per_token) + router + shared
    return attention * (1 + run.has_cross_attention) + mlp
