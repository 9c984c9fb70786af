"""What travels between modules: any structure, over any stages, changed in place or only watched."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

import pytest
import torch
from pipeline_models import WIDTH, Chain, Layer, assert_trains_as_one, rows
from torch import Tensor, nn
from torch.nn import functional
from torch_spawn import run

BOTH = ("1f1b", "interleaved_1f1b")


@dataclasses.dataclass
class Pair:
    first: Tensor
    second: Tensor | None
    note: str = ""


class Output(OrderedDict[str, Any]):
    """A dict whose items are attributes as well, as transformers' ModelOutput."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__.update(items)

    def __setitem__(self, name: str, item: Any) -> None:
        super().__setitem__(name, item)
        self.__dict__[name] = item


class Structured(nn.Module):
    """Takes positional and named structures, gives other ones."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layer = Layer()

    def forward(self, given: Any, *, scale: Tensor, bias: Tensor | None = None, options: Any = None) -> Any:
        if self.kind == "tuple":
            found = self.layer(given) * scale
            return found, None, (found * 2, 3, "text")
        if self.kind == "dict":
            first, nothing, (second, three, _) = given
            assert nothing is None and three == 3
            return {"deep": {"list": [self.layer(first), second + options["shift"][0]]}, "none": None}
        if self.kind == "dataclass":
            first, second = given["deep"]["list"]
            return Pair(self.layer(first), second, note="kept")
        assert given.note == "kept" and bias is None
        return Output(hidden=self.layer(given.first) + given.second, many=(given.first,))


class Structures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Structured(kind) for kind in ("tuple", "dict", "dataclass", "output") for _ in range(1)
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, scale: float = 0.5) -> Output:
        given: Any = x
        for layer in self.layers:
            given = layer(given, scale=torch.tensor(scale), options={"shift": [x.mean()]})
        return Output(logits=self.head(given.hidden + given["many"][0]), rest=None)


def structured_loss(output: Any, part: dict[str, Tensor]) -> Tensor:
    assert output.logits is output["logits"] and output.rest is None
    return functional.mse_loss(output.logits, part["y"])


class ThreeConsumers(Chain):
    """One value is used on three later stages, another jumps over two."""

    def forward(self, x: Tensor) -> Tensor:
        early = None
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index == 0:
                early = x
            if index in (3, 5, 7):
                x = x + early * index
        return self.head(x + early)


class EncoderDecoder(nn.Module):
    """Every block of the decoder reads what the encoder has made."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Chain(3)
        self.decoder = nn.ModuleList(nn.Bilinear(WIDTH, WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        memory = x
        for layer in self.encoder.layers:
            memory = layer(memory)
        hidden = x * self.encoder.head(memory)
        for block in self.decoder:
            hidden = hidden + torch.tanh(block(hidden, memory))
        return self.head(hidden)


class PassedThrough(nn.Module):
    """Gives its input back, and the mask as well, and what it has itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()
        self.place = nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("constant", torch.ones(WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return self.layer(x), x, mask, self.place, self.constant


class PassThrough(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PassedThrough() for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        mask = (x > -1).float()
        before = x
        for layer in self.layers:
            x, same, mask, place, constant = layer(x, mask)
            x = x * mask + before + place * constant
            before = same
        return self.head(x)


class Aliases(Chain):
    """Operations that may give their input itself."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        same = x.contiguous()
        third = functional.dropout(same.float(), 0.5, training=False)
        for layer in self.layers[1:]:
            x = layer(x)
        return self.head(x + same + 2 * third)


class Twofold(nn.Linear):
    """A module without children that gives a tuple."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        found = super().forward(x)
        return found, found * 2


class Tuples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Twofold(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            first, second = layer(x)
            x = torch.tanh(first) + torch.sigmoid(second)
        return self.head(x)


class Detaching(Layer):
    def forward(self, hidden: Tensor, other: Tensor) -> Tensor:
        return super().forward(hidden) + other.detach()


class Detached(Chain):
    """Later stages take early values without their gradients, in a module and outside of one."""

    def __init__(self) -> None:
        super().__init__()
        self.aside, self.beside = Layer(), Layer()
        self.layers[7] = Detaching()

    def forward(self, x: Tensor) -> Tensor:
        aside, beside = self.aside(x), self.beside(x)
        both = beside + aside
        for layer in self.layers[:7]:
            x = layer(x)
        x = self.layers[7](x, both)
        return self.head(x * beside.detach())  # type: ignore[no-any-return]


def detached() -> None:
    pipe = assert_trains_as_one(Detached, schedules=("1f1b", "zb_1p"))
    gradients = {name: parameter.grad for name, parameter in pipe.named_parameters()}
    assert all((gradient is None) == ("side" in name) for name, gradient in gradients.items()), gradients


def structures_and_skips() -> None:
    detached()
    assert_trains_as_one(Tuples, schedules=("1f1b", "zb_1p"))
    assert_trains_as_one(Structures, loss_fn=structured_loss, schedules=("1f1b", "zb_1p"))
    assert_trains_as_one(ThreeConsumers, schedules=(*BOTH, "interleaved_zero_bubble", "zb_v"))
    assert_trains_as_one(EncoderDecoder, schedules=BOTH)
    assert_trains_as_one(PassThrough, schedules=BOTH[:1])
    assert_trains_as_one(PassThrough, schedules=("zb_1p",))
    assert_trains_as_one(Aliases, schedules=BOTH)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_structure_goes_over_any_stages(ranks: int) -> None:
    run(structures_and_skips if ranks == 2 else skips_on_four, ranks)


def skips_on_four() -> None:
    assert_trains_as_one(ThreeConsumers, schedules=("1f1b", "gpipe"))
    assert_trains_as_one(EncoderDecoder)
    assert_trains_as_one(Aliases)


class CalledTwice(Chain):
    """The first layers run once more behind all others."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in (*self.layers, *self.layers[:2]):
            x = layer(x)
        return self.head(x)


class Functional(Chain):
    """The weight of the first layer is used again at the end, as language models use that of their words."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(functional.linear(x, self.layers[0].linear.weight))


def weights_used_again() -> None:
    for schedule in BOTH:
        pipe = assert_trains_as_one(CalledTwice, within=1e-6, schedules=[schedule])
        assert any(len(stages) > 1 for stages in pipe.split.weights.values())
        pipe = assert_trains_as_one(Functional, within=1e-6, schedules=[schedule])
        assert pipe.split.weights["layers.0.linear.weight"] == {0, len(pipe.schedule.rank_of) - 1}


def test_modules_and_weights_used_again_on_later_stages() -> None:
    run(weights_used_again, 2)


class ChangedHere(Chain):
    """Glue changes the value of the stage that it runs on."""

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x)
            x = x + 0  # what tanh has saved must stay
            x += 1
            x.mul_(0.5)
            x[:, index] = 0
            x[:, :2] += x[:, 2:4]
            functional.relu(x, inplace=True)
        return self.head(x)


class ChangedLater(Chain):
    """Glue on the last stage changes a value of the first, whose name the code goes on using."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        first = x + 0
        second = x * 2
        for layer in self.layers[1:]:
            x = layer(x)
        first.mul_(0.5)
        first[:, 1] = 3
        second += first
        second[:, 0] = x[:, 0]
        return self.head(x + first + second)


class Filled(Chain):
    """Constants are filled with values of stages."""

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.zeros(len(self.layers), *x.shape)
        for index, layer in enumerate(self.layers):
            x = layer(x)
            kept[index] = x
        collected = torch.zeros_like(x)
        collected.add_(x)
        collected[:, 0] += kept.mean(0)[:, 0]
        return self.head(collected + kept.sum(0))


class Activated(nn.Module):
    """Activations without parameters that change their input."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Sequential(
            nn.Sequential(
                *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)) for _ in range(4)),
                nn.Linear(WIDTH, WIDTH),
                nn.ReLU(inplace=True),
            ),
            nn.Flatten(),
            nn.Linear(WIDTH, WIDTH),
            nn.ELU(inplace=True),
            nn.Linear(WIDTH, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x)


class ChangesInput(nn.Module):
    """A unit that changes its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.add_(1))


class ChangedByUnits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ChangesInput() for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0
        for layer in self.layers:
            x = layer(x) + 0
        return self.head(x)


def changed_in_place() -> None:
    for model in (ChangedHere, ChangedLater, Filled, Activated, ChangedByUnits):
        assert_trains_as_one(model, schedules=BOTH)


def test_values_changed_in_place() -> None:
    run(changed_in_place, 2)


class Observed(nn.Module):
    """Collects, by hooks, what modules inside its layers give."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(OrderedDict(a=Layer(), b=Layer())) for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handles = [
            layer.a.linear.register_forward_hook(lambda module, args, output: seen.append(output))
            for layer in self.layers
        ]
        for layer in self.layers:
            x = layer(x)
        for handle in handles:
            handle.remove()
        assert len(seen) >= len(self.layers)  # a trace measures modules by calling them more often
        return self.head(x + torch.stack(seen).mean(0))


def observed_values() -> None:
    assert_trains_as_one(Observed, schedules=("1f1b", "gpipe"))


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_values_that_only_hooks_see(ranks: int) -> None:
    run(observed_values, ranks)


class Routed(nn.Module):
    """A layer whose operations depend on values: nothing can be told of it without them."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Pair:
        chosen = x[:, 0] > 0
        if bool(chosen.all()):
            return Pair(self.one(x), None)
        result = torch.zeros_like(x)
        result[chosen] = self.one(x[chosen])
        result[~chosen] = self.other(x[~chosen])
        return Pair(torch.tanh(result), None)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Routed() for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).first
        return self.head(x)


class Outdated(Chain):
    """Changes a part of a value of the first stage on the last."""

    def forward(self, x: Tensor) -> Tensor:
        first = self.layers[0](x)
        part = first[:, :2]
        x = first
        for layer in self.layers[1:]:
            x = layer(x)
        first.mul_(2)
        return self.head(x) + part.sum()


class PartChanged(Chain):
    """The same by indexing."""

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = layer(x)
        first[:, :2] += 1
        return self.head(x + first)


def data_dependent_and_refused() -> None:
    import smdp.torch

    assert_trains_as_one(Mixture, schedules=BOTH)
    for model, name in ((Outdated, r"layers.7\+1 mul_"), (PartChanged, r"layers.7\+2 ")):
        with pytest.raises(ValueError, match=rf"\[smdp\] {name}.* on stage 1 changes in place .*clone"):
            smdp.torch.pipeline(
                model(), microbatches=4, example_inputs=rows()[0], pins={"layers.0": 0, "layers.7": 1}
            )


def test_modules_that_depend_on_values_and_changes_that_cannot_be_followed() -> None:
    run(data_dependent_and_refused, 2)


class Odd(Chain):
    """A number and a tensor without elements go over the cut."""

    def forward(self, x: Tensor) -> Tensor:
        first = self.layers[0](x)
        number, nothing = first.mean(), first[:, :0]
        for layer in self.layers[1:]:
            first = layer(first)
        return self.head(torch.cat([first, nothing], 1) * number)


def odd_values() -> None:
    assert_trains_as_one(Odd, schedules=BOTH)


def test_values_without_dimensions_or_elements() -> None:
    run(odd_values, 2)
