"""Loss functions: masks, labels, sums over tokens, values read on the host, branches, what else they give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipeline_models import (
    LENGTH,
    WIDTH,
    WORDS,
    Block,
    Chain,
    adam,
    assert_trains_as_one,
    batches,
    differences,
    made,
    rows,
    square_loss,
    train_alone,
)
from torch import Tensor, nn
from torch.nn import functional
from torch_spawn import run

import smdp.torch

IGNORED = -100


class Padded(nn.Module):
    """A language model as users write them: positions from the mask, an attention bias, its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH + 1, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.mixers = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(
        self, ids: Tensor, mask: Tensor, labels: Tensor | None = None, tokens: int | None = None
    ) -> dict[str, Tensor | None]:
        positions = mask.long().cumsum(-1) * mask.long()
        hidden = self.words(ids) + self.places(positions)
        length = ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        bias = torch.where(causal & mask[:, None, :].bool(), 0.0, -1e4)
        for block, mixer in zip(self.blocks, self.mixers, strict=True):
            query, value = mixer(block(hidden)).chunk(2, -1)
            scores = query @ value.transpose(1, 2) / WIDTH**0.5 + bias
            hidden = (hidden + scores.softmax(-1) @ value) * mask[..., None]
        logits = self.head(hidden)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return {"loss": loss, "logits": logits}


def padded_batches() -> list[dict[str, Tensor]]:
    found = []
    for batch in batches(2, 8):
        lengths = torch.arange(8) % 5 + 3
        mask = (torch.arange(LENGTH)[None] < lengths[:, None]).float()
        labels = torch.where(mask > 0, batch["ids"], IGNORED)
        found.append({"ids": batch["ids"], "mask": mask, "labels": labels})
    return found


def padding_masks_and_labels() -> None:
    steps = padded_batches()
    call = lambda model, part: model(**part)  # noqa: E731
    assert_trains_as_one(
        Padded, steps, lambda output, part: output["loss"], call=call, schedules=("1f1b", "interleaved_1f1b")
    )

    count = torch.tensor(0)

    def per_token(output: dict[str, Tensor], part: dict[str, Tensor]) -> Tensor:
        logits, labels = output["logits"].flatten(0, 1), part["labels"].flatten()
        summed = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        return summed * 4 / count

    # Microbatches of unlike numbers of tokens: the mean is that of the whole batch.
    count = (steps[0]["labels"] != IGNORED).sum()
    pipe = assert_trains_as_one(Padded, steps[:1], per_token, call=call)
    whole = made(Padded)
    train_alone(whole, steps[:1], 4, per_token, call)
    count = (steps[1]["labels"] != IGNORED).sum()
    found = pipe.eval_step(steps[1], per_token).item()
    expected = functional.cross_entropy(
        whole(**steps[1])["logits"].flatten(0, 1), steps[1]["labels"].flatten(), ignore_index=IGNORED
    ).item()
    assert abs(found - expected) < 1e-6 * expected
    # Without a loss function the model's own is taken.
    assert pipe.eval_step(steps[1]).shape == ()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_padding_labels_and_means_over_tokens(ranks: int) -> None:
    run(padding_masks_and_labels, ranks)


class Reader:
    """A loss function that looks at values, and goes other ways for them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: list[float] = []
        self.total = 0.0

    def __call__(self, output: Tensor, part: dict[str, Tensor]) -> Tensor:
        loss = square_loss(output, part)
        self.lines.append(f"loss {loss:.6f} {loss.detach()!s} {output[0].detach()}")
        self.numbers.append(loss.item())
        self.total += loss.item()  # what it was is read first: nothing else may run in between
        assert float(loss.detach()) == loss.item() == loss.tolist() == loss.detach().cpu().numpy()
        if loss > 1.0:
            loss = loss + 0.1 * functional.l1_loss(output, part["y"])
            self.numbers.append(output.abs().max().item())
        if not torch.isfinite(loss).all():
            raise AssertionError("not reached")
        if part["y"][0, 0] > 0:
            loss = loss * 2
        return loss


def values_read_on_the_host() -> None:
    alone = Reader()
    steps = rows(3)
    train_alone(made(Chain), steps, 4, alone, lambda model, part: model(part["x"]))
    assert len({number > 1 for number in alone.numbers}) == 2  # both branches are taken
    schedules = "gpipe smp_interleaved 1f1b zb_1p zb_2p interleaved_1f1b interleaved_zero_bubble zb_v v_half"
    for schedule in f"{schedules} v_min dualpipe_v".split():
        reader = Reader()
        assert_trains_as_one(Chain, steps, reader, schedules=[schedule])
        # assert_trains_as_one() has called it for its own one process first.
        count = len(reader.numbers) // 2
        assert reader.numbers[:count] == reader.numbers[count:] == alone.numbers, schedule
        assert reader.lines[:12] == reader.lines[12:] == alone.lines, schedule
        assert reader.total == 2 * alone.total, schedule


def test_the_loss_function_sees_values_under_every_schedule() -> None:
    run(values_read_on_the_host, 2)


def what_loss_functions_give() -> None:
    import smdp.torch

    def loss_fn(output: Tensor, part: dict[str, Tensor]) -> Any:
        found = {
            "prediction": output.detach(),
            "large": output @ torch.ones(1, 1000),
            "y": part["y"],
            "text": "t",
        }
        return square_loss(output, part), {"rows": [found], "count": len(output)}

    pipe = smdp.torch.pipeline(made(Chain), microbatches=4, example_inputs=rows()[0])
    for _ in range(2):
        for batch in rows():
            for step in (pipe.train_step, pipe.eval_step):
                loss, given = step(batch, loss_fn)
                expected = made(Chain)(batch["x"]).detach()
                assert loss.shape == () and len(given) == 4
                found = torch.cat([extra["rows"][0]["prediction"] for extra in given])
                torch.testing.assert_close(found, expected)
                large = torch.cat([extra["rows"][0]["large"] for extra in given])
                torch.testing.assert_close(large.detach(), expected @ torch.ones(1, 1000))
                assert torch.equal(torch.cat([extra["rows"][0]["y"] for extra in given]), batch["y"])
                assert [extra["count"] for extra in given] == [2] * 4
        pipe.zero_grad()


class Heard(Chain):
    """A row of WIDTH numbers becomes 12 frames of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 12 * 6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).unflatten(1, (12, 6))


def connectionist_temporal_classification() -> None:
    words = torch.randint(1, 6, (8, 4), generator=torch.Generator().manual_seed(5))
    lengths = {"lengths": torch.tensor([3, 1, 2, 4] * 2), "words": words}
    steps = [row | lengths for row in rows()]
    for reduction in ("mean", "sum", "none"):

        def loss_fn(output: Tensor, part: dict[str, Tensor], reduction: str = reduction) -> Tensor:
            frames = torch.full((len(output),), 12)
            scores = output.log_softmax(-1).transpose(0, 1)
            loss = functional.ctc_loss(scores, part["words"], frames, part["lengths"], reduction=reduction)
            return loss.mean()

        assert_trains_as_one(Heard, steps, loss_fn)

    def in_bfloat16(output: Tensor, part: dict[str, Tensor]) -> Tensor:
        scores = output.log_softmax(-1).transpose(0, 1).bfloat16()
        with torch.autocast("cpu", torch.bfloat16):  # has the loss computed in float32
            return functional.ctc_loss(scores, part["words"], torch.full((len(output),), 12), part["lengths"])

    assert_trains_as_one(Heard, steps, in_bfloat16)


def networks_that_only_look() -> None:
    """Without gradients a loss function may use another network's parameters, and in an evaluation."""
    other = nn.Linear(1, 1)

    def loss_fn(output: Tensor, part: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            assert torch.isfinite(other(output).mean())
        return square_loss(output, part)

    assert_trains_as_one(Chain, loss_fn=loss_fn)
    pipe = smdp.torch.pipeline(made(Chain), microbatches=4, example_inputs=rows()[0])
    assert torch.isfinite(pipe.eval_step(rows()[0], lambda output: other(output).mean()))


def test_networks_that_only_look() -> None:
    run(networks_that_only_look, 2)


def test_ctc_loss() -> None:
    run(connectionist_temporal_classification, 2)


def test_what_a_loss_function_gives_is_real_on_every_rank() -> None:
    run(what_loss_functions_give, 2)


def gives_more_than_the_loss() -> None:
    class Two(Chain):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
            first = self.layers[0](x)
            hidden = first
            for layer in self.layers[1:]:
                hidden = layer(hidden)
            return self.head(hidden), first, int(x.abs().sum() * 1000)

    numbers = []

    def loss_fn(output: tuple[Tensor, Tensor, int], part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss = output[0].square().mean()
        if loss.item() > 1e9:
            loss = loss * 2
        assert output[1].tolist() == output[1].detach().tolist()
        numbers.append(output[2])
        return loss, output[1]

    def alone_loss(output: tuple[Tensor, Tensor, int], part: dict[str, Tensor]) -> Tensor:
        return output[0].square().mean()

    steps = rows()[:2]
    alone = made(Two)
    train_alone(alone, steps, 4, alone_loss, call=lambda model, part: model(part["x"]))
    pipe = smdp.torch.pipeline(made(Two), stages=2, microbatches=4)
    optimizer = adam(pipe)
    for batch in steps:
        optimizer.zero_grad()
        _, extras = pipe.train_step(batch, loss_fn)
        assert len(extras) == 4
        optimizer.step()
    assert differences(pipe, alone) == {}
    everyone: list[list[int]] = [[], []]
    dist.all_gather_object(everyone, numbers)
    assert everyone[0] == everyone[1]
    assert len(set(numbers)) > 1


def test_values_of_two_stages_and_numbers_beside_the_loss() -> None:
    run(gives_more_than_the_loss)
