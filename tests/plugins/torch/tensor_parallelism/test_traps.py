"""Mistakes that other libraries have made with divided layers. Each one would fail a check here."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from divided_models import HEADS, PLAN, VOCABULARY, WIDTH, Block, Model, farthest, loss_of, own_part
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch.utils.checkpoint import checkpoint
from torch_spawn import run

import smdp.torch
from smdp.torch.tensor_parallelism.divided_model import axis_of_model
from smdp.torch.tensor_parallelism.layers.split_dropout import SplitDropout
from smdp.torch.tensor_parallelism.layers.split_logits import SplitLogits
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

QUERIES = 4
ATTENTION = {
    "query": "colwise",
    "key": "colwise",
    "value": "colwise",
    "norm": "replicated_with_grad_allreduce",
    "out": "rowwise",
}


class Attention(nn.Module):
    """Attention whose queries share key heads, with a norm that each rank applies to its own heads."""

    def __init__(self, keys: int, heads: int = QUERIES) -> None:
        super().__init__()
        self.head_dim = 4
        width = heads * self.head_dim
        self.query, self.out = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)
        self.key, self.value = (nn.Linear(WIDTH, keys * self.head_dim) for _ in range(2))
        self.norm = nn.LayerNorm(self.head_dim)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (
            layer(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query = self.norm(query)
        key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
        attended = F.scaled_dot_product_attention(query, key, value)
        return self.out(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def divided(alone: nn.Module, plan: Any) -> nn.Module:
    return smdp.torch.tensor_parallel(copy.deepcopy(alone), dist.get_world_size(), plan)


def hidden_of(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 5, WIDTH, generator=generator, dtype=torch.float64)


def the_bias_of_rows_is_added_once() -> None:
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)).double()
    model = divided(alone, {"0": "colwise", "1": "rowwise"})
    torch.testing.assert_close(model(hidden_of(0)), alone(hidden_of(0)))


def losses_lack_no_logarithm() -> None:
    """Equal logits have a loss of log(vocabulary), however many ranks share them."""
    alone = Model()
    nn.init.zeros_(alone.head.weight)
    model = divided(alone, PLAN)
    tokens = torch.arange(12).view(2, 6)
    assert isinstance(model(tokens), SplitLogits)
    for smoothing in (0.0, 0.3):
        for each in (model, alone):
            loss = loss_of(each, tokens, label_smoothing=smoothing)
            assert loss.item() == pytest.approx(math.log(VOCABULARY), rel=1e-6)


class Same(torch.autograd.Function):
    """A function of autograd outside torch, as losses in Triton are."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]


def uses_of_logits(tokens: Tensor) -> list[Callable[[Tensor], Tensor]]:
    """Losses of logits, which use the logits as scripts do."""

    def loss(logits: Tensor, **options: Any) -> Tensor:
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens.reshape(-1), **options)

    def changed(logits: Tensor) -> Tensor:
        logits.view(-1, VOCABULARY).div_(3.0)
        logits += torch.linspace(0, 1, VOCABULARY, dtype=logits.dtype)
        logits[..., 20:] = -1.0
        logits.masked_fill_(logits > 0.5, 0.4)
        return loss(Same.apply(logits))

    def hooked(logits: Tensor) -> Tensor:
        logits.register_hook(lambda gradient: gradient * 2)
        logits.retain_grad()
        loss(logits).backward(retain_graph=True)
        assert logits.grad is not None
        return loss(logits) + logits.grad[0, 0, 3, ...]

    def scaled(logits: Tensor) -> Tensor:
        scale = torch.tensor(2.0, dtype=logits.dtype, requires_grad=True)
        found = loss(logits * scale)
        return found + torch.autograd.grad(found, scale, retain_graph=True)[0]

    def cast(logits: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = loss(logits.bfloat16() * 2)
        assert found.dtype == torch.float32 and logits.type() == "torch.DoubleTensor"
        return loss(logits)

    return [
        changed,
        hooked,
        scaled,
        cast,
        lambda logits: F.cross_entropy(logits.mT, tokens),
        lambda logits: loss(Same.apply(logits) * 2),
        lambda logits: checkpoint(loss, logits, use_reentrant=True),
        lambda logits: torch.autograd.grad(loss(logits), [logits])[0].square().sum() + loss(logits),
    ]


def logits_are_those_of_one_process() -> None:
    torch.manual_seed(0)
    alone = Model(1).double()
    model = divided(alone, PLAN)
    tokens = torch.arange(12).view(2, 6)
    for use in uses_of_logits(tokens):
        losses = []
        for each in (alone, model):
            each.zero_grad()
            losses.append(use(each(tokens) * 1.0))
            losses[-1].backward()
        torch.testing.assert_close(losses[1], losses[0])
        assert farthest(model, alone) < 1e-10
    logits = model(tokens)
    for refused in (
        lambda: F.relu(logits, inplace=True),
        lambda: torch.mul(logits.detach(), 2, out=logits),
        lambda: setattr(logits, "data", torch.zeros(2, 6, VOCABULARY)),
    ):
        with pytest.raises(RuntimeError, match="cannot change logits whose vocabulary is divided"):
            refused()
    same = Same.apply(logits)
    logits[0].zero_()
    with pytest.raises(RuntimeError, match="changed in place through a view"):
        same.sum().backward()


def gradients_of_shared_heads(keys: int) -> None:
    """Ranks that hold the same key head, or the same norm, sum their gradients once for each microbatch."""
    torch.manual_seed(0)
    alone = Attention(keys).double()
    model = divided(alone, ATTENTION)
    for each in (alone, model):
        for microbatch in range(3):
            each(hidden_of(microbatch)).square().sum().backward()
    assert farthest(model, alone) < 1e-10
    # Norms count what several ranks hold once.
    one = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
    many = smdp.torch.clip_grad_norm_(model.parameters(), 0.5)
    torch.testing.assert_close(many, one)
    assert farthest(model, alone) < 1e-10


def heads_that_do_not_fit() -> None:
    model = Attention(keys=3, heads=6)
    with pytest.raises(ValueError, match=r"'key' cannot .*: 3 heads cannot .* Degrees that fit: 3, 6\.$"):
        smdp.torch.tensor_parallel(model, 2, ATTENTION)
    with pytest.raises(ValueError, match=r"'out' cannot .*: 1 head cannot"):
        smdp.torch.tensor_parallel(Attention(keys=1, heads=1), 2, ATTENTION)


class Recomputed(nn.Module):
    """A block in a checkpoint."""

    def __init__(self, block: nn.Module, *, is_reentrant: bool) -> None:
        super().__init__()
        self.block, self.is_reentrant = block, is_reentrant

    def forward(self, hidden: Tensor) -> Any:
        return checkpoint(self.block, hidden, use_reentrant=self.is_reentrant)


def results(model: nn.Module, hidden: Tensor, alone: nn.Module) -> list[Tensor]:
    """The output, and this rank's part of the gradients, of one step."""
    torch.manual_seed(7)
    hidden = hidden.clone().requires_grad_()
    output = model(hidden)
    output.square().sum().backward()
    assert hidden.grad is not None
    parameters = dict(model.named_parameters())
    found = [output.detach(), hidden.grad]
    for name, _ in alone.named_parameters():
        one = parameters.get(name, parameters.get(f"block.{name}"))
        assert one is not None and one.grad is not None
        found.append(one.grad)
        one.grad = None
    return found


def dropout_is_that_of_one_process() -> None:
    """Slices drop different elements, whole tensors the same ones, and backward drops them again."""
    torch.manual_seed(0)
    alone = Block(0.3, HEADS).double()
    words = {name.removeprefix("blocks.*."): word for name, word in PLAN.items() if "blocks" in name}
    model = divided(alone, words)
    hidden = hidden_of(1)
    expected = results(alone, hidden, alone)
    dropped = [own_part(whole, part) for whole, part in zip(expected[2:], model.parameters(), strict=True)]
    dropped = [*expected[:2], *dropped]
    for each in (
        model,
        Recomputed(model, is_reentrant=False),
        Recomputed(model, is_reentrant=True),
    ):
        for found, one in zip(results(each, hidden, alone), dropped, strict=True):
            torch.testing.assert_close(found, one)


def features_may_be_last_of_four_dimensions() -> None:
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    model = divided(alone, {"0": "colwise", "2": "rowwise"})
    for each in (alone, model):
        torch.manual_seed(1)
        each(torch.randn(2, 6, 5, 4)).square().sum().backward()
    assert farthest(model, alone) < 1e-5


def nothing_is_left_of_what_is_dropped() -> None:
    """As torch, attention gives zeros to queries that see no key, and a rate of 1 drops everything."""
    model = divided(Attention(keys=4), ATTENTION)
    axis = axis_of_model(model)
    assert axis is not None
    with torch.no_grad(), SplitDropout(axis) as region:
        region.is_split = True
        query, sees = torch.ones(1, 1, 3, 4), torch.ones(3, 3, dtype=torch.bool)
        sees[1] = False
        attended = F.scaled_dot_product_attention(query, query, query, sees, dropout_p=0.1)
        assert attended.isfinite().all() and not attended[:, :, 1].any()
        for dropped in (F.dropout(input=query, p=1.0), torch.dropout(query, p=1.0, train=True)):
            assert torch.equal(dropped, torch.zeros_like(query))
        with pytest.raises(RuntimeError, match=r"alpha_dropout\(\) on slices"):
            F.alpha_dropout(query, 0.1, training=True)
    for reentrant in (True, False):
        with SplitDropout(axis) as region:
            region.is_split = True
            with pytest.raises(RuntimeError, match="Put the checkpoint around the whole"):
                checkpoint(F.dropout, torch.ones(2, requires_grad=True), use_reentrant=reentrant)


def leaves_are_free_and_have_no_copies() -> None:
    model = divided(nn.Sequential(nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)), {"0": "colwise", "1": "rowwise"})
    leaf = torch.ones(2, WIDTH, requires_grad=True)
    output = model(leaf)
    leaf.data = torch.zeros(2, WIDTH)
    assert not torch.equal(model(leaf), output)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model[1](input=model[0](input=leaf)).dtype == torch.bfloat16  # the bias, too
    found = weakref.ref(leaf)
    del leaf, output
    assert found() is None


def sums_between_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that hide the sum of a gradient behind another product, in checkpoints and twice derived."""
    monkeypatch.setattr(TensorAxis, "is_across_hosts", True)
    torch.manual_seed(0)
    alone = Attention(keys=4).double()
    model = divided(alone, ATTENTION)
    for reentrant in (True, False):
        for each in (alone, model):
            hidden = hidden_of(3).requires_grad_() * 1
            checkpoint(each, hidden, use_reentrant=reentrant).square().sum().backward()
        assert farthest(model, alone) < 1e-10
    layers = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH)).double()
    two = divided(layers, {"0": "colwise", "2": "rowwise"})
    for each in (layers, two):
        hidden = hidden_of(3).requires_grad_()
        (slope,) = torch.autograd.grad(each(hidden * 1).square().sum(), hidden, create_graph=True)
        slope.square().sum().backward()
        each(hidden[0, 0] * 1).sum().backward()
    assert farthest(two, layers) < 1e-10


def compiled_checkpoints_keep_collectives() -> None:
    """A block is one graph with the sums of its two row-parallel layers, which backward may run again."""
    torch.manual_seed(0)
    alone = Block(0.3, HEADS).double()
    words = {name.removeprefix("blocks.*."): word for name, word in PLAN.items() if "blocks" in name}
    model = divided(alone, words)
    hidden = hidden_of(2)
    expected = results(model, hidden, alone)
    graphs: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return aot_eager(graph, examples)

    def check(module: nn.Module) -> None:
        for found, one in zip(results(module, hidden, alone), expected, strict=True):
            torch.testing.assert_close(found, one)

    around = Recomputed(model, is_reentrant=False)
    around.compile(backend=backend)
    check(around)
    graphs.clear()
    model.compile(backend=backend)
    check(model)
    nodes = [node for graph in graphs for part in graph.modules() for node in part.graph.nodes]
    assert len(graphs) == 1 and sum("tp_summed" in str(node.target) for node in nodes) >= 2
    check(Recomputed(model, is_reentrant=False))
    check(Recomputed(model, is_reentrant=True))


def all_of_them() -> None:
    the_bias_of_rows_is_added_once()
    losses_lack_no_logarithm()
    logits_are_those_of_one_process()
    gradients_of_shared_heads(2)
    gradients_of_shared_heads(1)
    dropout_is_that_of_one_process()
    if dist.get_world_size() == 2:
        features_may_be_last_of_four_dimensions()
        nothing_is_left_of_what_is_dropped()
        leaves_are_free_and_have_no_copies()
        with pytest.MonkeyPatch.context() as monkeypatch:
            sums_between_hosts(monkeypatch)
        heads_that_do_not_fit()
        compiled_checkpoints_keep_collectives()


def test_two_ranks() -> None:
    run(all_of_them)


def test_four_ranks() -> None:
    run(all_of_them, 4)
