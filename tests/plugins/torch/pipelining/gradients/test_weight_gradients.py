"""Zero-bubble schedules: which weight gradients come apart from those of inputs, and what is said."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from pipeline_models import Chain, adam, differences, made, train_alone
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch
from smdp.torch.pipelining.gradients.weight_gradients import PostponedGradients


class Mixed(nn.Module):
    """A convolution, embeddings, norms and linear layers, as units of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.group_norm = nn.GroupNorm(2, 8)
        self.linear = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.conv(self.words(ids).transpose(1, 2))
        hidden = self.norm(self.group_norm(hidden).transpose(1, 2))
        return self.head(torch.tanh(self.linear(hidden)))  # type: ignore[no-any-return]


class Unusual(Chain):
    """A module of two inputs, one that is called by keyword, one that gives a tuple, one with children."""

    def __init__(self) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(32, 32, 32)
        self.named = nn.Linear(32, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bilinear(x, x)
        x = self.named(input=x)
        x = x + self.attention(x[:, None], x[:, None], x[:, None], need_weights=False)[0][:, 0]
        return super().forward(x)  # type: ignore[no-any-return]


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def postponed_parameters() -> Counter[int]:
    """Count, by parameter, how often its gradient is postponed from now on."""
    found: Counter[int] = Counter()
    plain = PostponedGradients.add

    def add(self: Any, output: Tensor, gradient: Tensor, parameters: Sequence[Tensor]) -> None:
        found.update(id(parameter) for parameter in parameters)
        plain(self, output, gradient, parameters)

    PostponedGradients.add = add  # type: ignore[method-assign]
    return found


def gradients_come_apart() -> None:
    found, told = postponed_parameters(), Told()
    logging.getLogger("smdp.torch.pipelining").addHandler(told)
    ids = torch.randint(0, 50, (8, 6), generator=torch.Generator().manual_seed(0))
    loss_fn = lambda output: output.square().mean()  # noqa: E731
    for schedule, is_split in (("zb_1p", True), ("zb_v", True), ("1f1b", False)):
        found.clear()
        pipe = smdp.torch.pipeline(made(Mixed), microbatches=4, schedule=schedule, example_inputs=ids)
        for _ in range(2):
            pipe.train_step(ids, loss_fn)
        own = {name: found[id(parameter)] for name, parameter in pipe.named_parameters()}
        assert own and set(own.values()) == {8 if is_split else 0}, (schedule, own)
    assert told.lines == []

    found.clear()
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    alone = made(Unusual)
    train_alone(alone, [{"x": x}] * 2, 4, lambda output, _: loss_fn(output))
    pipe = smdp.torch.pipeline(made(Unusual), microbatches=4, schedule="zb_1p", example_inputs=x)
    optimizer = adam(pipe)
    for _ in range(2):
        optimizer.zero_grad()
        pipe.train_step(x, loss_fn)
        optimizer.step()
    assert differences(pipe, alone) == {}
    own = {name: found[id(parameter)] for name, parameter in pipe.named_parameters()}
    fused = {name for name, count in own.items() if count == 0}
    parts = {name.split(".")[0] for name in fused}
    assert parts <= {"bilinear", "named", "attention"} and parts == parts & {n.split(".")[0] for n in own}
    text = "\n".join(told.lines)
    for part, words in {
        "bilinear": "'bilinear', a Bilinear, are computed together with its input gradients: only a module",
        "named": "'named', a Linear, are computed together with its input gradients",
        "attention": "schedule zb_1p: the weight gradients of attention.in_proj_weight",
    }.items():
        assert (words in text) == (part in parts) and text.count(words) <= 1, (part, text)
    everyone: list[set[str]] = [set()] * 2
    dist.all_gather_object(everyone, parts)
    assert everyone[0] | everyone[1] == {"bilinear", "named", "attention"}


def test_weight_gradients_come_apart_or_it_is_said() -> None:
    run(gradients_come_apart, 2)
