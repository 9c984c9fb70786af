"""A divided model trains as the model does in one process."""

from __future__ import annotations

import copy
from typing import Any

import torch
from divided_models import PLAN, VOCABULARY, Model, farthest, loss_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_spawn import run

import smdp.torch


def trained(model: nn.Module, **options: Any) -> list[float]:
    """Five steps of two microbatches each; the generator starts alike in every model.

    Not AdamW: it would enlarge the rounding in gradients that are zero, such as those of the keys' bias.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    losses = []
    for step in range(5):
        torch.manual_seed(step)
        optimizer.zero_grad()
        for _ in range(2):
            tokens = torch.randint(VOCABULARY, (3, 7))
            loss = loss_of(model, tokens, **options)
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


def check_against_one_process(plan: Any = PLAN, options: Any = None, **model_options: Any) -> None:
    torch.manual_seed(0)
    alone = Model(**model_options).double()
    model = copy.deepcopy(alone)
    smdp.torch.tensor_parallel(model, torch.distributed.get_world_size(), plan)
    expected, found = (trained(each, **(options or {})) for each in (alone, model))
    assert all(abs(a - b) < 1e-12 * abs(a) for a, b in zip(expected, found, strict=True)), (expected, found)
    assert farthest(model, alone) < 1e-12


def trains_like_one_process() -> None:
    check_against_one_process()
    check_against_one_process(tied=True)
    check_against_one_process(dropout=0.2)
    check_against_one_process(options={"label_smoothing": 0.1, "ignore_index": 3})
    check_against_one_process(options={"reduction": "sum"})


def test_two_ranks_train_like_one_process() -> None:
    run(trains_like_one_process)


def test_four_ranks_train_like_one_process() -> None:
    run(trains_like_one_process, 4)


class Sums(TorchDispatchMode):
    """Counts sums over the ranks."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operators = torch.ops.smdp
        self.count += func in (operators.tp_sum_.default, operators.tp_start_sum_.default)
        return func(*args, **(kwargs or {}))


def layers_share_the_gradient_of_their_input() -> None:
    torch.manual_seed(0)
    model = smdp.torch.tensor_parallel(Model(blocks=2), 2, PLAN)
    with Sums() as sums:
        loss_of(model, torch.randint(VOCABULARY, (3, 7))).backward()
    # Two in forward and two in backward of each block; the embedding, the head's input and the loss.
    assert sums.count == 2 * 4 + 3


def test_layers_share_the_gradient_of_their_input() -> None:
    run(layers_share_the_gradient_of_their_input)
