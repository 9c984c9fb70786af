"""Wrong input gets a clear error on every rank, never a hang; found early, it leaves the pipeline usable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipeline_models import WIDTH, Chain, Language, Layer, batches, made, rows, square_loss
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from torch_spawn import run


@contextmanager
def refused(*words: str, kind: type[Exception] | tuple[type[Exception], ...] = ValueError) -> Iterator[None]:
    with pytest.raises(kind) as caught:
        yield
    text = str(caught.value)
    assert text.startswith("[smdp] "), text
    for word in words:
        assert re.search(word, text, re.DOTALL), f"no {word!r} in {text!r}"


def split(model: nn.Module | None = None, **options: Any) -> Any:
    import smdp.torch

    model = made(Chain) if model is None else model
    return smdp.torch.pipeline(
        model, **{"stages": 2, "microbatches": 4, "example_inputs": rows()[0], **options}
    )


class Reentrant(Chain):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        return self.head(x)


class Optional(Chain):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        output: Tensor = super().forward(x)
        return output if attention_mask is None else output * attention_mask


class Open(Optional):
    """As the models of transformers, which hand on what they do not know."""

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Tensor:
        return super().forward(x, attention_mask)


def arguments_of_pipeline() -> None:
    for stages in (0, -1, 2.0, "2", None, True, float("nan")):
        with refused("stages", re.escape(repr(stages)), kind=(ValueError, TypeError)):
            split(stages=stages)
    for microbatches in (0, -4, 2.5, float("nan"), "x", None):
        with refused("microbatches", re.escape(repr(microbatches)), kind=(ValueError, TypeError)):
            split(microbatches=microbatches)
    with refused("world of 2 ranks", "3 stages", "1, 2"):
        split(stages=3)
    with refused("no pipeline schedule|unknown|not a schedule|schedule", "1f1b", "did you mean '1f1b'"):
        split(schedule="1f1")
    with refused("schedule", kind=(ValueError, TypeError)):
        split(schedule=None)
    with refused("modules that can be on a stage", "3", "fewer than the 8 stages"):
        split(Chain(2), schedule="interleaved_1f1b", virtual_stages=4)
    with refused("'layer.3'", "did you mean 'layers.3'"):
        split(pins={"layer.3": 0})
    with refused("'layers.5' to stage 0, but 'layers.2', which runs before it, to stage 1"):
        split(pins={"layers.2": 1, "layers.5": 0})
    with refused("pins", "stage 7", kind=(ValueError, TypeError)):
        split(pins={"layers.2": 7})
    with refused("assigns 'head' to stage 0, which leaves 0 modules for 1 stage after 'head'"):
        split(pins={"head": 0})
    with refused("assigns 'layers.0' to stage 1, which leaves 0 modules for 1 stage before 'layers.0'"):
        split(pins={"layers.0": 1})
    tied = made(lambda: Language(tied=True))
    with refused("assigns 'head' to stage 0, .*share a weight may be on two stages"):
        split(tied, example_inputs=batches(1, 8)[0], pins={"words": 0, "head": 0})
    for wrapped, words in (
        (torch.compile(made(Chain)), "wrapped in OptimizedModule; .*_orig_mod.*compile=True"),
        (nn.DataParallel(made(Chain)), r"wrapped in DataParallel; .*: model.module; "),
        (torch.optim.swa_utils.AveragedModel(made(Chain)), "wrapped in AveragedModel"),
        (
            fully_shard(made(Chain), mesh=init_device_mesh("cpu", (2,))),
            "wrapped in FSDPModule; .*before fully",
        ),
    ):
        with refused(words):
            split(wrapped)
    pipe = split()
    with refused("missing a required argument: 'x': 'xs'; did you mean 'x'"):
        pipe.train_step({"xs": rows()[0]["x"]}, square_loss)
    other = {"x": rows()[0]["x"] + dist.get_rank(), "y": rows()[0]["y"]}
    with refused("ranks 0 and 1 belong to one pipeline but have read different batches"):
        pipe.train_step(other, square_loss)
    pipe = split(Optional(), example_inputs={"x": rows()[0]["x"]})
    part = {"x": rows()[0]["x"], "attention_masks": torch.ones(8, 1)}
    with refused(
        "Optional does not take a key of the batch: 'attention_masks'; did you mean 'attention_mask'"
    ):
        pipe.train_step(part, lambda output: output.mean())
    with refused("loss_fn is a Bilinear that trains weight, bias, .*Make it part of the model"):
        split().train_step(rows()[0], nn.Bilinear(2, 2, 1))
    x = rows()[0]["x"]
    pipe = split(Open(), example_inputs={"x": x})
    with refused("Open does not take a key of the batch: 'atention_mask'; did you mean 'attention_mask'"):
        pipe.train_step(
            {"x": rows()[0]["x"], "atention_mask": torch.ones(8, 1)}, lambda output: output.mean()
        )
    pipe.train_step({"x": rows()[0]["x"], "something_else": torch.ones(8, 1)}, lambda output: output.mean())
    with pytest.raises(
        TypeError, match=r"only the gradients of this rank's stages; use smdp\.torch\.GradScaler"
    ):
        pipe.train_step(rows()[0], lambda output: output.mean(), scaler=torch.amp.GradScaler("cpu"))
    with refused("no tensor"):
        split(example_inputs={"x": 3})
    with refused("no tensor"):
        split(example_inputs=())
    with refused("batch of 6", "4 equal microbatches", "microbatches=3"):
        split(example_inputs=rows(1, 6)[0])
    with refused("forward of Chain takes", "'wrong'"):
        split(example_inputs={"wrong": torch.ones(8, WIDTH)})
    with refused("got str", "torch.nn.Module"):
        split("model")
    with refused("no parameters"):
        split(nn.ReLU(), example_inputs=None)
    model = made(Chain)
    pipe = split(model)
    with refused("has already been split; use the module that pipeline"):
        split(pipe)
    with refused("'layers.0'", "use_reentrant=False"):
        split(Reentrant())
    with refused("already belongs to a pipeline"):
        split(model)
    with refused("DistributedDataParallel", "itself"):
        split(nn.parallel.DistributedDataParallel(made(Chain)))
    with refused("only within a step", "train_step", kind=RuntimeError):
        pipe(rows()[0]["x"])
    pipe.train_step(rows()[0], square_loss)


class Selecting(Chain):
    """The number of rows behind the first layer depends on what the layer gives."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        x = x[x[:, 0] > 0]
        for layer in self.layers[1:]:
            x = layer(x)
        return self.head(x)


class Keeping(nn.Module):
    """A layer that leaves its output in an attribute, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()
        self.last = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x + 0 * self.last.detach())
        return self.last * 1


class Kept(Chain):
    """Code between modules uses the attribute of the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0] = Keeping()

    def forward(self, x: Tensor) -> Tensor:
        early = self.layers[0](x)
        for layer in self.layers[1:]:
            early = layer(early)
        return self.head(early + self.layers[0].last)


class Looking(Layer):
    """A layer that uses the attribute of another one."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden + self.other[0].last)


class LookedAt(Kept):
    def __init__(self) -> None:
        super().__init__()
        self.layers[7] = Looking()
        self.layers[7].other = (self.layers[0],)

    def forward(self, x: Tensor) -> Tensor:
        return Chain.forward(self, x)


class Appending(Layer):
    def forward(self, hidden: Tensor, skips: list[Tensor]) -> Tensor:
        skips.append(hidden)
        return super().forward(hidden)


class Skips(Chain):
    """Layers hand values on in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Appending() for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for layer in self.layers:
            x = layer(x, skips)
        return self.head(x + skips[0])


def values_that_are_not_returned() -> None:
    with refused("'layers.0' puts tensors into the list that it gets as 'argument 1'", "Return them"):
        split(Skips())
    with refused("uses a tensor that a module on another rank .*'layers.0.last'", "Return the tensor"):
        split(Kept())
    pipe = split(LookedAt(), pins={"layers.0": 0, "layers.7": 1})
    with refused("layers.7 uses a placeholder.*'layers.0.last'", kind=(ValueError, RuntimeError)):
        pipe.train_step(rows()[0], square_loss)
    # Its own rank may do with it what it likes.
    model = Chain()
    model.layers[0] = Keeping()
    pipe = split(model, pins={"layers.0": 0})
    assert type(model.layers[0].last) is Tensor
    pipe.train_step(rows()[0], square_loss)
    if dist.get_rank() == 0:
        assert type(model.layers[0].last) is Tensor


def batches_leave_the_pipeline_usable() -> None:
    pipe = split()
    for batch, words in (
        (rows(1, 6)[0], ["batch of 6", "multiple of 4", "microbatches=3"]),
        (rows(1, 0)[0], ["batch of 0"]),
        ({}, ["no tensor"]),
        ({"x": "text"}, ["no tensor"]),
        ({"wrong": torch.ones(8, WIDTH)}, ["forward of Chain takes", "'wrong'"]),
        (3, ["no tensor"]),
        (None, ["no tensor"]),
    ):
        for step in (pipe.train_step, pipe.eval_step):
            with refused(*words):
                step(batch, square_loss)
    for wrong in (3, "loss", [1]):
        with refused("loss_fn", type(wrong).__name__):
            pipe.train_step(rows()[0], wrong)
    loss = pipe.train_step(rows()[0], square_loss)
    assert torch.isfinite(loss)


def loss_functions() -> None:
    """Each needs a pipeline of its own: something has been sent when it is found.

    Whoever finds it first tells the others, who raise its text.
    """
    both = (ValueError, RuntimeError)
    y = torch.ones((), requires_grad=True)

    weight = nn.Parameter(torch.ones(1))

    def backward(output: Tensor) -> Tensor:
        loss = output.mean()
        loss.backward()
        return loss

    def hooked(output: Tensor) -> Tensor:
        output.register_hook(lambda gradient: gradient)
        return output.mean()

    for loss_fn, words in (
        (lambda output: y * 2, ["does not depend on any stage"]),
        (lambda output: 3.0, ["float", "does not depend on any stage"]),
        (lambda output: None, ["NoneType"]),
        (lambda output: output, [r"float32\[2, 1\]", "one number", "mean"]),
        (lambda output: output.mean().detach(), ["no gradient", "detached"]),
        (lambda output: output.mean() > 0, ["no gradient"]),
        (backward, ["backward", "loss_fn returns"]),
        (hooked, ["register_hook"]),
        (lambda output: output[output > 0].mean(), ["code around the model", "shape", "where"]),
        (lambda output: output @ output, ["code around the model", "matmul", "fails"]),
        (lambda output: (output.mean(), 1, 2), ["tuple"]),
        (lambda output: output.mean() * torch.exp(weight)[0], [r"float32\[1\]", "requires_grad_"]),
        (lambda output: (output * weight).mean(), [r"float32\[1\]", "not part of the split model"]),
    ):
        pipe = split()
        with refused(*words, kind=both):
            pipe.train_step(rows()[0], loss_fn)
        with refused("earlier step of this pipeline failed", kind=RuntimeError):
            pipe.train_step(rows()[0], square_loss)
    model = made(Chain)
    pipe = split(model)
    with refused("layers.0.linear.weight", "weight_decay", kind=both):
        pipe.train_step(rows()[0], lambda output: output.mean() + sum(p.sum() for p in model.parameters()))
    with refused("float32", "one number", kind=both):
        split().train_step(rows()[0])


def models() -> None:
    both = (ValueError, RuntimeError)
    with refused("layers.0", "shape", "values", kind=both):
        split(Selecting()).train_step(rows()[0], square_loss)
    with refused("layers.7.*layers.0.linear.weight|layers.0.linear.weight", "example_inputs", kind=both):

        class Functional(Chain):
            def forward(self, x: Tensor) -> Tensor:
                for layer in self.layers:
                    x = layer(x)
                return self.head(nn.functional.linear(x, self.layers[0].linear.weight))

        split(Functional(), example_inputs=None).train_step(rows()[0], square_loss)

    class Backwards(Chain):
        def forward(self, x: Tensor) -> Tensor:
            for layer in reversed(self.layers):
                x = layer(x)
            return self.head(x)

    with refused("runs after", "example_inputs", kind=both):
        split(Backwards(), example_inputs=None).train_step(rows()[0], square_loss)
    # With example inputs the same model is split as it runs.
    assert torch.isfinite(split(Backwards()).train_step(rows()[0], square_loss))


def test_arguments_of_pipeline() -> None:
    run(arguments_of_pipeline, 2)


def test_batches_that_leave_the_pipeline_usable() -> None:
    run(batches_leave_the_pipeline_usable, 2)


def test_values_that_are_not_returned() -> None:
    run(values_that_are_not_returned, 2)


def test_loss_functions_and_models() -> None:
    run(loss_functions_and_models, 2)


def loss_functions_and_models() -> None:
    loss_functions()
    models()
    assert dist.get_world_size() == 2
