"""Traces of small models: order, bytes, ties, and that the model is left as it was."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smdp
from smdp.partition import Trace, Unit, partition
from smdp.torch.initialization.delayed_initialization import delayed_initialization, materialize
from smdp.torch.pipelining.analysis.tracing import trace as sampled_trace
from smdp.torch.pipelining.analysis.unit_traces import trace_by_parameters
from smdp.torch.pipelining.units.units import find_units

WIDTH = 8
VALUE = 3 * WIDTH * 4  # bytes of a batch of 3 in fp32


def trace(model: nn.Module, *args: Any, **options: Any) -> Trace:
    """Returns the trace with the least times."""
    return sampled_trace(model, *args, **options).by_time().trace


def by_name(found: Trace) -> dict[str, Unit]:
    return {unit.name: unit for unit in found.units}


class Skip(nn.Module):
    """head(b(a(x)) + a(x)), or with a's value handed to the head itself."""

    def __init__(self, is_added: bool) -> None:
        super().__init__()
        self.is_added = is_added
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Bilinear(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        z = self.b(y)
        result: Tensor = self.head(y + z, x) if self.is_added else self.head(y, z)
        return result


@pytest.mark.parametrize("is_meta", [False, True])
@pytest.mark.parametrize(("is_added", "behind_b"), [(True, 1), (False, 2)])
def test_what_crosses_a_cut(is_added: bool, behind_b: int, is_meta: bool) -> None:
    with torch.device("meta" if is_meta else "cpu"):
        model = Skip(is_added)
    found = trace(model, find_units(model), (torch.randn(3, WIDTH),))
    assert [(unit.name, unit.cut_bytes) for unit in found.units] == [
        ("a", VALUE),
        ("b", behind_b * VALUE),
        ("head", 0),
    ]
    assert (found.microbatch_size, found.parameter_dtype, found.name) == (3, "float32", "Skip")
    assert Trace.from_json(found.to_json()) == found
    assert len(partition(found, ranks=2, microbatches=4).stages) == 2


class Early(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.a(x)
        return {"early": y.view(-1), "late": self.b(y.detach())}


def test_what_the_loss_consumes_crosses_as_well() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.early, self.c = Early(), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            both: dict[str, Tensor] = self.early(x)
            return {**both, "late": self.c(both["late"])}

    three, inputs = Three(), (torch.randn(3, WIDTH),)
    names = find_units(three, 3)
    assert names == ("early.a", "early.b", "c")
    cuts = [unit.cut_bytes for unit in trace(three, names, inputs).units]
    assert cuts == [VALUE, VALUE, 0]
    found = trace(three, names, inputs, loss_fn=lambda out: out["early"].sum() + out["late"].sum())
    # The sum is made where the early value is, and is all that goes on.
    assert [unit.cut_bytes for unit in found.units] == [VALUE + 4, VALUE + 4, 0]


def heavy(value: Tensor) -> Tensor:
    matrix = value.mean() * torch.ones(256, 256)
    for _ in range(10):
        matrix = matrix @ matrix / 256
    return matrix.sum()


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        heavy(x)  # every rank does this
        y = self.a(x)
        self.steps += y.mean().detach()
        return self.b(y + heavy(y)).relu()  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_meta", [False, True])
def test_seconds_between_units_count_for_the_unit_before(is_meta: bool) -> None:
    with torch.device("meta" if is_meta else "cpu"):
        model = Between()
    inputs = (torch.randn(3, WIDTH),)
    a, b = trace(model, ("a", "b"), inputs).units
    assert a.forward > 10 * b.forward and a.backward_input > 10 * b.backward_input > 0
    if not is_meta:
        assert torch.equal(model.steps, torch.zeros(1))
        again = trace(
            model, ("a", "b"), inputs, loss_fn=lambda output: heavy(output).item() and heavy(output)
        )
        assert again.units[1].forward > 10 * b.forward


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.embedding = nn.Embedding(9, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(WIDTH, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(self.layer(self.embedding(tokens)).relu_()))
        return result


def test_calls_and_ties() -> None:
    model = Twice()
    found = trace(model, find_units(model), (), {"tokens": torch.tensor([[1, 2, 3]])}, repeats=1)
    assert [unit.name for unit in found.units] == [
        "unused",
        "embedding",
        "layer",
        "never",
        "layer#2",
        "head",
    ]
    assert {tied.name: (tied.bytes, tied.units) for tied in found.tied} == {
        "embedding.weight": (9 * WIDTH * 4, ("embedding", "head")),
        "layer.weight": (WIDTH * WIDTH * 4, ("layer", "layer#2")),
        "layer.bias": (WIDTH * 4, ("layer", "layer#2")),
    }
    units = by_name(found)
    assert units["never"].forward == 0 and units["never"].cut_bytes == units["layer"].cut_bytes == VALUE
    assert units["unused"].cut_bytes == 0 and units["unused"].parameter_bytes == 24
    assert units["embedding"].backward_input == 0 < units["embedding"].backward_weight
    assert units["embedding"].activation_bytes == 3 * 8  # the tokens
    assert units["layer"].activation_bytes == VALUE == units["layer#2"].activation_bytes
    assert all(unit.forward > 0 for unit in found.units if unit.name not in ("unused", "never"))


class Block(nn.Module):
    """Changes its input in place, drops out, keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inward = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.dropout, self.outward = nn.Dropout(0.5), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, *, cache: list[Tensor], mask: Tensor) -> Tensor:
        x = x.relu_() * mask
        cache.append(x)
        hidden: Tensor = self.outward(self.dropout(self.inward(self.norm(x))))
        return x + hidden


class Cache(list):  # type: ignore[type-arg]
    """One that torch's pytrees do not look into."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.ones(WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        cache, mask = Cache(), torch.ones(WIDTH)
        x = x + self.start
        for place, block in enumerate(self.blocks):
            assert len(cache) == place
            x = block(x, cache=cache, mask=mask)
        result: Tensor = self.head(x)
        return result


def test_the_model_is_left_as_it_was() -> None:
    model = Model()
    model.eval()
    model.blocks[1].train()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    gradient = torch.ones(2)
    model.head.bias.grad = gradient
    torch.manual_seed(0)
    state = torch.get_rng_state()
    inputs = torch.randn(3, WIDTH)
    expected = inputs.clone()
    torch.manual_seed(0)
    found = trace(model, find_units(model), (inputs,))
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(inputs, expected)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.head.bias.grad is gradient and torch.equal(gradient, torch.ones(2))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "head.bias")
    for module in model.modules():
        assert "forward" not in vars(module) and not module._forward_hooks
    assert not vars(model.start.untyped_storage())
    blocks = found.units[:3]
    # In training mode, for dropout's mask is kept; masks of the model's own count at their first use.
    assert blocks[0].activation_bytes == blocks[1].activation_bytes + WIDTH * 4
    assert blocks[1].activation_bytes == blocks[2].activation_bytes
    assert blocks[0].backward_input > 0  # the start is trained


def test_frozen_parameters_have_no_weight_gradient() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).requires_grad_(False))
    first, second = trace(model, find_units(model), (torch.randn(3, WIDTH),)).units
    assert first.backward_input == 0 < first.backward_weight
    assert second.backward_input > 0 == second.backward_weight


def test_one_units_activations_live_at_a_time() -> None:
    kept: list[tuple[str, weakref.ref[Tensor]]] = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            me = str(id(self))
            assert all(alive() is None for name, alive in kept if name != me)
            hidden = super().forward(x)
            kept.append((me, weakref.ref(hidden)))  # which GELU keeps
            return nn.functional.gelu(hidden)

    model = nn.Sequential(*(Watched(WIDTH, WIDTH) for _ in range(4)))
    trace(model, find_units(model), (torch.randn(3, WIDTH),))
    assert len(kept) >= 4 * 3  # to warm up, for the clock, and for what follows


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 32),
        nn.TransformerEncoderLayer(32, 2, 64, batch_first=True),
        nn.Linear(32, 4),
    )


@pytest.mark.parametrize("way", ["meta", "delayed", "buffers"])
def test_a_model_without_memory_has_the_same_bytes(way: str) -> None:
    inputs = (torch.randn(2, 3, 8, 8),)
    model = network()
    units = find_units(model)
    real = trace(model, units, inputs, repeats=1)
    with torch.device("meta") if way == "meta" else delayed_initialization():
        model = network()
    if way == "buffers":
        materialize(model, lambda name: False)
    state = torch.get_rng_state()
    fake = trace(model, units, inputs)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.is_meta for parameter in model.parameters())
    for mine, theirs in zip(fake.units, real.units, strict=True):
        assert mine.name == theirs.name and mine.cut_bytes == theirs.cut_bytes
        assert mine.parameter_bytes == theirs.parameter_bytes
        assert mine.activation_bytes == theirs.activation_bytes, mine.name
        assert min(mine.forward, mine.backward_weight) > 0


def test_estimated_seconds_follow_the_work() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 2048))
    first, second, third = trace(model, find_units(model), (torch.randn(256, 512),)).units
    assert first.forward == second.forward
    assert first.backward_weight == pytest.approx(second.backward_weight, rel=0.1)
    assert third.forward == pytest.approx(4 * second.forward, rel=0.1)
    assert first.backward_input == 0
    operations = 2 * 256 * 512 * 512 / 50e9
    assert operations < second.forward < 2 * operations
    assert second.backward_input == pytest.approx(second.forward, rel=0.2)
    with torch.device("meta"):
        table = nn.Sequential(nn.Embedding(100_000, 512), nn.LayerNorm(512))
    found = trace(table, ("0", "1"), (torch.ones(4, 8, dtype=torch.int64),)).units[0]
    assert found.forward == 2 * 4 * 8 * 512 * 4 / 10e9  # rows, not the table


class Chosen(nn.Module):
    """Its shapes depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = (x.sum(1) < 1e9).nonzero().squeeze(1)
        return torch.zeros_like(x).index_add(0, rows, self.layer(x[rows]))


class Broken(Chosen):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() < 1e9:
            raise RuntimeError("out of order")
        return x


def test_shapes_that_depend_on_values() -> None:
    real = nn.Sequential(nn.Linear(WIDTH, WIDTH), Chosen(), nn.Linear(WIDTH, 2))
    inputs = (torch.randn(3, WIDTH),)
    expected = trace(real, find_units(real), inputs)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Chosen(), nn.Linear(WIDTH, 2))
        broken = nn.Sequential(nn.Linear(WIDTH, WIDTH), Broken(), nn.Linear(WIDTH, 2))
    found = trace(model, find_units(model), inputs)
    assert [(unit.activation_bytes, unit.cut_bytes) for unit in found.units] == [
        (unit.activation_bytes, unit.cut_bytes) for unit in expected.units
    ]
    assert found.units[1].backward_input > 0 and model[1].layer.weight.is_meta
    with pytest.raises(smdp.SmdpError, match=r"\[smdp\] 1 cannot be traced; .*numbers: out of order"):
        trace(broken, find_units(broken), inputs)


def test_values_between_units() -> None:
    class Reads(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            x = self[0](x)
            result: Tensor = self[1](x) if x.sum() > 0 else self[1](-x)
            return result

    model = Reads(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2))
    assert len(trace(model, ("0", "1"), (torch.randn(3, WIDTH),)).units) == 2
    with torch.device("meta"):
        model = Reads(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2))
    with pytest.raises(smdp.SmdpError, match="Reads cannot be traced on fake tensors, because its own code"):
        trace(model, ("0", "1"), (torch.randn(3, WIDTH),))
    assert "forward" not in vars(model[0])


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, value: Tensor) -> Tensor:
        hidden = self.a(value)
        hidden += value  # in place, on what a unit gave
        hidden = nn.functional.dropout(hidden, 0.5, training=True)
        logits = self.b(hidden)
        return nn.functional.cross_entropy(logits, torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("is_meta", [False, True])
def test_what_the_models_own_operations_keep(is_meta: bool) -> None:
    with torch.device("meta" if is_meta else "cpu"):
        model = WithLoss()
    units = trace(model, ["a", "b"], (torch.ones(4, 8),)).units
    values, weight = 4 * 8 * 4, 4
    # Inputs of linear layers; dropout's mask; log-probabilities, the right classes, the sum of weights.
    assert units[0].activation_bytes == values + values
    assert units[1].activation_bytes == values + values + 4 * 8 + weight


def test_without_inputs_time_is_parameter_bytes() -> None:
    with torch.device("meta"):
        model = Twice()
    found = trace_by_parameters(model, find_units(model))
    units = by_name(found)
    assert list(units) == ["unused", "embedding", "layer", "never", "head"]
    assert units["layer"].parameter_bytes == (WIDTH + 1) * WIDTH * 4
    assert units["layer"].forward / units["unused"].forward == pytest.approx((WIDTH + 1) * WIDTH / 6)
    assert [tied.units for tied in found.tied] == [("embedding", "head")]
    assert trace_by_parameters(nn.Linear(2, 2, dtype=torch.bfloat16), ("",)).units[0].name == "model"


def test_the_model_itself_as_the_only_unit() -> None:
    found = trace(nn.Linear(WIDTH, 2, dtype=torch.float64), ("",), (torch.randn(3, WIDTH).double(),))
    assert [unit.name for unit in found.units] == ["model"] and found.parameter_dtype == "float64"


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoints_count_as_a_forward_each() -> None:
    class Rebuilt(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=True)

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Rebuilt(WIDTH, WIDTH))
    unit = trace(model, find_units(model), (torch.randn(3, WIDTH),)).units[1]
    assert unit.forward > 0 and unit.backward_input > 0 and unit.backward_weight > 0


@pytest.mark.parametrize(
    ("units", "repeats", "message"),
    [
        ((), 3, "one or more distinct names"),
        (("0", "0"), 3, "one or more distinct names"),
        (("0", "7"), 3, "but there is no module 7"),
        (("0",), 0, "repeats must be an integer of at least 1, not 0"),
        (("0",), 1.5, "repeats must be"),
    ],
)
def test_wrong_arguments(units: tuple[str, ...], repeats: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trace(nn.Sequential(nn.Linear(2, 2)), units, (torch.ones(1, 2),), repeats=repeats)
