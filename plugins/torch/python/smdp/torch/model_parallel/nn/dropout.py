"""Dropout inside of distributed modules, where ranks hold slices or copies of one activation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from smdp.torch.model_parallel.nn.layout import Layout
from smdp.torch.tensor_parallelism.collectives import sum_


class LayerDropout:
    """Draws the dropout masks of one call of a layer.

    The ranks agree on a seed by adding numbers of their default generators, which recomputation restores.
    Copies of an activation get the same mask on all ranks, and slices different ones.

    Args:
        layout: The layout of activations.
        example: A tensor on the layer's device.
        is_training: Whether anything is dropped.
    """

    def __init__(self, layout: Layout, example: Tensor, *, is_training: bool) -> None:
        self._layout = layout
        self._is_training = is_training and not is_fake(example) and not example.is_meta
        self._seed = 0
        self._calls = 0
        if self._is_training and layout.size > 1:
            told = torch.randint(2**40, (1,), dtype=torch.int64, device="cpu")
            sum_(told, layout.axis.number)
            self._seed = int(told)

    def __call__(self, tensor: Tensor, probability: float, *, is_slice: bool) -> Tensor:
        """Returns a tensor of which elements have been dropped.

        Args:
            tensor: The tensor.
            probability: From 0 to 1.
            is_slice: Whether each rank has another part of the activation.
        """
        if not self._is_training or probability == 0:
            return tensor
        if self._layout.size == 1:
            return F.dropout(tensor, probability)
        self._calls += 1
        rank = self._layout.axis.rank + 1 if is_slice else 0
        generator = torch.Generator(tensor.device)
        generator.manual_seed((self._seed * 31 + self._calls) * (self._layout.size + 1) + rank)
        mask = torch.empty_like(tensor).bernoulli_(1 - probability, generator=generator)
        return tensor * mask.div_(max(1 - probability, 1e-12))


def needs_dropout(is_training: bool, *probabilities: float) -> bool:
    """Returns whether a layer drops anything."""
    return is_training and any(probabilities)
