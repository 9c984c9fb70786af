"""Every differentiable collective does what autograd derives from its formula in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch_spawn import run

from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.mesh.slices import even
from smdp.torch.tensor_parallelism import collectives, functions
from smdp.torch.tensor_parallelism.layers.embedding import cut_vocabulary
from smdp.torch.tensor_parallelism.layers.split_logits import SplitLogits
from smdp.torch.tensor_parallelism.layers.vocabulary_loss import vocabulary_cross_entropy
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

# A multiple of 2 and 3 ranks in each dimension.
SHAPE = (6, 12, 18)


@dataclass
class Case:
    """A function, and its formula for all ranks at once.

    Attributes:
        call: The function, of this rank's tensor and the axis.
        formula: The results of all ranks from the tensors of all ranks.
        is_same_in: Whether all ranks pass the same tensor.
        is_same_out: Whether all ranks get the same result, which a loss then uses once.
    """

    call: Callable[[Tensor, TensorAxis], Tensor]
    formula: Callable[[Sequence[Tensor]], list[Tensor]]
    is_same_in: bool = False
    is_same_out: bool = False


def total(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)


def cases(dim: int, other: int) -> dict[str, Case]:
    size = dist.get_world_size()

    def exchanged(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([each.chunk(size, dim)[rank] for each in tensors], other) for rank in range(size)]

    return {
        "copy": Case(functions.copy_to_ranks, list, is_same_in=True),
        "sum": Case(
            # The sum is in place, so it gets an intermediate value, as a layer's result is one.
            lambda x, axis: functions.sum_over_ranks(x * 1, axis),
            lambda xs: [total(xs)] * size,
            is_same_out=True,
        ),
        "gather": Case(
            lambda x, axis: functions.gather_from_ranks(x, dim, axis),
            lambda xs: [torch.cat(list(xs), dim)] * size,
            is_same_out=True,
        ),
        "split": Case(
            lambda x, axis: functions.split_over_ranks(x, dim, axis),
            lambda xs: [x.chunk(size, dim)[rank] for rank, x in enumerate(xs)],
            is_same_in=True,
        ),
        "gather for parts": Case(
            lambda x, axis: functions.gather_for_parts(x, dim, axis),
            lambda xs: [torch.cat(list(xs), dim)] * size,
        ),
        "sum and scatter": Case(
            lambda x, axis: functions.sum_and_scatter(x, dim, axis),
            lambda xs: list(total(xs).chunk(size, dim)),
        ),
        "exchange": Case(lambda x, axis: functions.exchange(x, dim, other, axis), exchanged),
    }


def loss_of(found: Tensor, rank: int) -> Tensor:
    """A loss with second derivatives, which differs between ranks and between elements."""
    weights = torch.arange(found.numel(), dtype=found.dtype).reshape(found.shape).remainder(7) + 1 + rank
    return (weights * found**3).sum() / found.numel()


def derivatives(loss: Tensor, inputs: Sequence[Tensor], *, once: bool) -> list[Tensor]:
    """The gradients, and the gradients of what they add up to: all, or the first if it stands for all."""
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    measure = sum((each**2).sum() for each in (first[:1] if once else first))
    return [*first, *torch.autograd.grad(measure, inputs)]  # type: ignore[arg-type]


def check(case: Case, values: list[Tensor], axis: TensorAxis, tolerance: float, *, twice: bool) -> None:
    rank = axis.rank
    leaves = [value.detach().requires_grad_() for value in values]
    results = case.formula(leaves[:1] * axis.size if case.is_same_in else leaves)
    losses = [loss_of(each, 0 if case.is_same_out else rank) for rank, each in enumerate(results)]
    used = leaves[:1] if case.is_same_in else leaves
    expected = derivatives(losses[0] if case.is_same_out else total(losses), used, once=case.is_same_in)

    own = values[0 if case.is_same_in else rank].detach().requires_grad_()
    found = case.call(own, axis)
    assert found.shape == results[rank].shape and found.dtype == own.dtype
    torch.testing.assert_close(found, results[rank], rtol=tolerance, atol=tolerance)
    gradients = derivatives(loss_of(found, 0 if case.is_same_out else rank), [own], once=True)
    place = 0 if case.is_same_in else rank
    pairs = [(gradients[0], expected[place]), (gradients[1], expected[len(used) + place])]
    for mine, theirs in pairs[: 2 if twice else 1]:
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def layouts(dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    values = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    wide = torch.zeros((*SHAPE[:-1], 2 * SHAPE[-1]), dtype=dtype)
    wide[..., ::2] = values
    return {
        "contiguous": values,
        "transposed": values.transpose(0, 2).contiguous().transpose(0, 2),
        "strided": wide[..., ::2],
        "expanded": values[:1].expand(SHAPE),
    }


def match_their_formulas() -> None:
    axis = TensorAxis(ParallelMesh.of_world(tp=dist.get_world_size()))
    axis.mesh.make_for_steps("tp")
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.bfloat16, 0.05)):
        ranks = [layouts(dtype, rank) for rank in range(axis.size)]
        for layout in ranks[0]:
            # bf16 rounds sums of squared gradients too coarsely for a comparison.
            twice = dtype == torch.float64
            for dim, other in ((0, 2), (1, 0), (-1, 1)):
                for name, case in cases(dim, other).items():
                    try:
                        check(case, [each[layout] for each in ranks], axis, tolerance, twice=twice)
                    except AssertionError as error:
                        raise AssertionError(f"{name}, {dtype}, {layout}, {dim}, {other}") from error
    operators(axis)
    losses(axis)


def operators(axis: TensorAxis) -> None:
    """Schemas and fake kernels say what the operators do."""
    tensor = layouts(torch.float32, axis.rank)["transposed"]
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (collectives.sum_, (tensor.contiguous(), axis.number)),
        (collectives.summed, (tensor, axis.number)),
        (collectives.max_, (tensor.contiguous(), axis.number)),
        *[(collectives.gather, (tensor, dim, axis.size, axis.number)) for dim in range(3)],
        *[(collectives.scatter_sum, (tensor, dim, axis.size, axis.number)) for dim in range(3)],
        (collectives.exchange, (tensor, 0, 2, axis.size, axis.number)),
        (collectives.exchange, (tensor, 2, 1, axis.size, axis.number)),
    ]
    for operator, arguments in calls:
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
    highest = torch.full((3,), float(axis.rank))
    collectives.max_(highest, axis.number)
    assert highest.tolist() == [axis.size - 1] * 3


def losses(axis: TensorAxis) -> None:
    """Cross-entropy on slices, also of vocabularies that leave the last ranks fewer tokens or none."""
    generator = torch.Generator().manual_seed(0)
    for vocabulary in (31, 6, axis.size + 1, 2):
        begin, end = even(vocabulary, axis.rank, axis.size)
        whole = torch.randn(5, vocabulary, generator=generator, dtype=torch.float64).mul_(8).requires_grad_()
        target = torch.randint(vocabulary, (5,), generator=generator)
        target[1] = -100
        for options in (
            {},
            {"reduction": "sum"},
            {"reduction": "none"},
            {"label_smoothing": 0.2},
            {"label_smoothing": 0.2, "ignore_index": int(target[0])},
        ):
            ignored: Any = {"ignore_index": -100, **options}
            kept = target.where(target != -100, ignored["ignore_index"])
            one = F.cross_entropy(whole, kept, **ignored)
            (expected,) = torch.autograd.grad(one.sum(), whole)
            part = whole.detach()[:, begin:end].t().contiguous().t().requires_grad_()
            loss = vocabulary_cross_entropy(part, kept, axis, vocabulary, **ignored)
            torch.testing.assert_close(loss, one, rtol=1e-12, atol=1e-12)
            (gradient,) = torch.autograd.grad(loss.sum(), part)
            torch.testing.assert_close(gradient, expected[:, begin:end], rtol=1e-12, atol=1e-12)
        z = whole.logsumexp(-1)[target != -100]
        one = F.cross_entropy(whole, target, reduction="sum") + 0.1 * (z**2).sum()
        (expected,) = torch.autograd.grad(one, whole)
        part = whole.detach()[:, begin:end].requires_grad_()
        loss = vocabulary_cross_entropy(part, target, axis, vocabulary, reduction="sum", z_loss=0.1)
        torch.testing.assert_close(loss, one, rtol=1e-12, atol=1e-12)
        (gradient,) = torch.autograd.grad(loss, part)
        torch.testing.assert_close(gradient, expected[:, begin:end], rtol=1e-12, atol=1e-12)
        for wrong in (-1, vocabulary):
            with pytest.raises(IndexError, match=rf"target {wrong} is not valid .* of {vocabulary} tokens"):
                vocabulary_cross_entropy(part, target.clone().fill_(wrong), axis, vocabulary)
        logits = SplitLogits(part, axis, vocabulary)
        torch.testing.assert_close(logits.softmax(-1), whole.softmax(-1))
        assert isinstance(logits.view(-1, vocabulary), SplitLogits)  # also where a slice is empty
        rows(vocabulary, axis, target.clamp(min=0))


def rows(vocabulary: int, axis: TensorAxis, tokens: Tensor) -> None:
    """An embedding by tokens, with the same vocabularies."""
    torch.manual_seed(1)
    whole = torch.nn.Embedding(vocabulary, 4, padding_idx=1)
    layer = torch.nn.Embedding(vocabulary, 4, padding_idx=1, _weight=whole.weight.detach().clone())
    cut_vocabulary(layer, axis)
    for wrong in (-1, vocabulary):
        with pytest.raises(IndexError, match=rf"token {wrong} is not valid .* of {vocabulary} tokens"):
            layer(tokens.clone().fill_(wrong))
    expected, found = whole(tokens), layer(input=tokens)
    torch.testing.assert_close(found, expected)
    loss_of(expected, 0).backward()
    loss_of(found, 0).backward()
    begin, end = even(vocabulary, axis.rank, axis.size)
    assert whole.weight.grad is not None
    if layer.weight.grad is not None:
        torch.testing.assert_close(layer.weight.grad, whole.weight.grad[begin:end])


def test_on_two_ranks() -> None:
    run(match_their_formulas)


def test_on_three_ranks() -> None:
    run(match_their_formulas, 3)
