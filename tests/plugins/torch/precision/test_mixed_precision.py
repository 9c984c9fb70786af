"""16-bit training of one process: what it computes, keeps, saves and refuses."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from pipeline_models import made
from torch import Tensor, nn
from torch.nn import functional

from smdp.torch import DynamicLossScale, MixedPrecision, lower_precision
from smdp.torch.optimizers.optimizer_link import OptimizerLink

LOW = (torch.bfloat16, torch.float16)


class Net(nn.Module):
    """Has an embedding, a norm that keeps 32 bits, a buffer, an integer and a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 24)
        self.batch = nn.BatchNorm1d(24)
        self.norm = nn.LayerNorm(24)
        self.wide = nn.Linear(24, 60)
        self.narrow = nn.Linear(60, 24)
        self.frozen = nn.Linear(24, 24).requires_grad_(False)
        self.register_buffer("shift", torch.randn(24))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, ids: Tensor, weight: Tensor) -> dict[str, Tensor]:
        hidden = self.batch(self.words(ids)) + self.shift
        hidden = self.narrow(functional.gelu(self.wide(self.norm(hidden)))) + self.frozen(hidden)
        return {"logits": (hidden * weight) @ self.words.weight.T, "ids": ids}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)


def mixed(dtype: torch.dtype = torch.bfloat16, **options: Any) -> tuple[nn.Module, MixedPrecision]:
    model = made(Net)
    return model, MixedPrecision(adamw(model), model, dtype, **options)


def loss_of(model: nn.Module, step: int, size: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(40, (size,), generator=generator)
    weight = torch.rand(size, 1, generator=generator)
    return functional.cross_entropy(model(ids, weight=weight)["logits"], ids.roll(1))


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("dtype", LOW)
def test_a_model_is_lowered_in_place(dtype: torch.dtype) -> None:
    model = made(Net)
    before = dict(model.named_parameters())
    assert lower_precision(model, dtype) is model
    assert lower_precision(model, dtype) is model
    for name, parameter in model.named_parameters():
        assert parameter is before[name]
        assert parameter.dtype is (torch.float32 if name.startswith("batch.") else dtype)
    assert model.shift.dtype is dtype
    assert model.count.dtype is torch.int64
    assert model.batch.running_mean.dtype is torch.float32
    seen = []
    model.wide.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    output = model(torch.arange(8), weight=torch.ones(8, 1))
    assert (output["logits"].dtype, output["ids"].dtype) == (torch.float32, torch.int64)
    assert seen == [dtype]
    copied = copy.deepcopy(model)
    assert copied(torch.arange(8), weight=torch.ones(8, 1))["logits"].dtype is torch.float32


@pytest.mark.parametrize("dtype", LOW)
def test_masters_have_the_bits_of_a_loop_by_hand(dtype: torch.dtype) -> None:
    """Two microbatches, clipping, and parameters of 32 bits; the groups show the model's parameters."""
    model, optimizer = mixed(dtype, loss_scale=64.0)
    expected = lower_precision(made(Net), dtype)
    own = [each for each in expected.parameters() if each.requires_grad]
    masters = [each.detach().float().requires_grad_() for each in own]
    reference = torch.optim.AdamW(masters, lr=1e-2)
    for step in range(6):
        optimizer.zero_grad()
        expected.zero_grad()
        for part in range(2):
            optimizer.backward(loss_of(model, 2 * step + part) / 2)
            (loss_of(expected, 2 * step + part) / 2 * 64.0).backward()
        wide = [each.grad.float() for each in own if each.grad is not None]
        norm = optimizer.clip_master_grads(0.5)
        assert norm == pytest.approx(float(nn.utils.get_total_norm(wide)) / 64.0, rel=1e-6)
        factor = torch.tensor(64.0 / min(0.5 / (norm + 1e-6), 1.0), dtype=torch.float64).reciprocal().float()
        for master, gradient in zip(masters, wide, strict=True):
            master.grad = gradient * factor
        reference.step()
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(own, masters, strict=True):
                parameter.copy_(master)
        for (name, parameter), other in zip(model.named_parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(parameter, other, rtol=0, atol=0, msg=name)
    group = optimizer.param_groups[0]["params"]
    assert group[0] is model.words.weight
    assert optimizer.master_of(model.batch.weight) is model.batch.weight
    assert all(parameter.grad is None or parameter.grad.dtype is parameter.dtype for parameter in group)
    assert torch.equal(optimizer.master_of(model.wide.weight).to(dtype), model.wide.weight)


def test_sums_over_microbatches_round_once() -> None:
    """The gradient is the rounded sum of the gradients of microbatches, also where a script has scaled it."""
    model, optimizer = mixed(accumulate_in_fp32=True)
    plain = lower_precision(made(Net))
    weight, other = model.wide.weight, plain.wide.weight
    wide = torch.zeros_like(weight, dtype=torch.float32)
    for step in range(8):
        plain.zero_grad()
        loss_of(plain, step).backward()
        optimizer.backward(loss_of(model, step))
        wide += other.grad.float()
        if step == 5:
            weight.grad.mul_(3)
            wide = weight.grad.float()
        assert torch.equal(weight.grad, wide.bfloat16()), step
    optimizer.zero_grad()
    optimizer.backward(loss_of(model, 7))
    assert torch.equal(weight.grad, other.grad)


class Normalized(torch.optim.SGD):
    """Divides all gradients by their common norm."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.01)
        return super().step(closure)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Normalized(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
        lambda p: torch.optim.NAdam(p, lr=1e-2),
        lambda p: torch.optim.Adafactor(p, lr=1e-2),
    ],
)
def test_other_optimizers_step_in_parts(make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A step in parts has the bits of one as a whole."""
    from smdp.torch.precision import whole_masters

    found = []
    for size in (1, 1 << 40):
        monkeypatch.setattr(whole_masters, "_MOST_BYTES", size)
        model = made(Net)
        optimizer = MixedPrecision(make(model.parameters()), model)
        for step in range(4):
            optimizer.zero_grad()
            optimizer.backward(loss_of(model, step))
            optimizer.step()
        found.append(bits(model))
    assert same(*found)
    assert optimizer._masters._is_per_group == isinstance(optimizer.inner, Normalized)


def test_overflows_skip_steps_and_schedulers_go_on() -> None:
    model, optimizer = mixed(torch.float16, loss_scale=DynamicLossScale(2.0**24, scale_window=3))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    outer = OptimizerLink(optimizer)  # as smp.DistributedOptimizer wraps it
    scales, skipped = [], []
    for step in range(12):
        outer.zero_grad()
        before = bits(model)
        optimizer.backward(loss_of(model, step))
        norm = optimizer.clip_master_grads(1.0)
        outer.step()
        assert (norm == -1) == optimizer.overflow
        parameters = dict(model.named_parameters())
        assert optimizer.overflow == all(torch.equal(before[name], each) for name, each in parameters.items())
        scales.append(math.log2(optimizer.loss_scale))
        skipped.append(optimizer.overflow)
        scheduler.step()
    assert skipped[0]
    assert not all(skipped)
    assert scales[0] == 23
    assert outer.param_groups[0]["lr"] == pytest.approx(1e-5)
    optimizer.loss_scale = 8.0
    assert optimizer.loss_scale == 8.0


@pytest.mark.parametrize("dtype", LOW)
def test_a_resumed_run_has_the_same_bits(dtype: torch.dtype) -> None:
    options: dict[str, Any] = {"loss_scale": DynamicLossScale(2.0**18, scale_window=3)}

    def train(model: nn.Module, optimizer: MixedPrecision, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            optimizer.backward(loss_of(model, step))
            optimizer.step()

    model, optimizer = mixed(dtype, **options)
    assert "master" not in str(optimizer.state_dict())  # the parameters are the masters
    train(model, optimizer, range(8))
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    train(model, optimizer, range(8, 14))
    weights, state = torch.load(file, weights_only=True)
    for order in (0, 1):
        again, its = mixed(dtype, **options)
        train(again, its, range(90, 92))
        for what in (order, 1 - order):
            # torch does not copy what has the right dtype.
            _ = its.load_state_dict(copy.deepcopy(state)) if what else again.load_state_dict(weights)
        train(again, its, range(8, 14))
        assert same(bits(model), bits(again)), order
        assert its.loss_scale == optimizer.loss_scale
    # A plain optimizer of 32 bits takes the state, and its own is taken back without masters.
    plain = made(Net)
    other = adamw(plain)
    other.load_state_dict(copy.deepcopy(state))
    loss_of(plain, 0).backward()
    other.step()
    taken = other.state_dict()
    for entry in taken["state"].values():
        entry.pop("master", None)  # which a plain optimizer keeps and ignores
    its.load_state_dict(taken)
    assert torch.equal(its.master_of(again.wide.weight), again.wide.weight.float())


def test_what_a_script_writes_to_parameters_replaces_masters() -> None:
    model, optimizer = mixed()
    optimizer.backward(loss_of(model, 0))
    optimizer.step()
    master = optimizer.master_of(model.wide.weight)
    kept = master.detach().clone()
    with torch.no_grad():
        model.wide.weight[:, 0] = 0.25
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert torch.equal(master[:, 0], torch.full((60,), 0.25))
    assert torch.equal(master[:, 1:], kept[:, 1:])


def test_a_closure_with_a_static_scale() -> None:
    """An optimizer that calls it several times trains the masters."""
    model = made(Net)
    plain = torch.optim.LBFGS([each for each in model.parameters() if each.requires_grad], lr=0.3)
    optimizer = MixedPrecision(plain, model, loss_scale=4.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        optimizer.backward(loss)
        return loss

    losses = [optimizer.step(closure).item() for _ in range(3)]
    assert losses[2] < 0.5 * losses[0]


def test_an_infinite_norm_with_a_static_scale() -> None:
    """As torch's clipping, it leaves NaN in place of the infinite element and zeros elsewhere."""
    model, optimizer = mixed(torch.bfloat16)
    optimizer.backward(loss_of(model, 0))
    model.wide.weight.grad[0, 0] = math.inf
    before = bits(model)
    assert optimizer.clip_master_grads(1.0) == math.inf
    optimizer.param_groups[0]["weight_decay"] = 0.0
    optimizer.step()
    assert not optimizer.overflow
    assert model.wide.weight.isnan().sum() == 1
    assert torch.equal(model.narrow.weight, before["narrow.weight"])


def test_groups_may_be_added() -> None:
    model = lower_precision(made(Net))
    optimizer = MixedPrecision(torch.optim.AdamW(model.wide.parameters(), lr=1e-2), model)
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": list(model.narrow.parameters())})
        before = bits(model)
        optimizer.zero_grad()
        optimizer.backward(loss_of(model, step))
        optimizer.step()
        after = bits(model)
        assert torch.equal(before["narrow.weight"], after["narrow.weight"]) == (step < 2)
        assert not torch.equal(before["wide.weight"], after["wide.weight"])
    assert optimizer.master_of(model.narrow.weight).dtype is torch.float32


class Refused(NamedTuple):
    do: Callable[[nn.Module, torch.optim.Optimizer], object]
    message: str
    error: type[Exception] = ValueError


def a_closure(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    MixedPrecision(optimizer, model, loss_scale="dynamic").step(lambda: None)


def with_a_scaler(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu")
    outer = MixedPrecision(optimizer, model)
    scaler.scale(loss_of(model, 0)).backward()
    scaler.step(outer)


def unscaled(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    outer = MixedPrecision(optimizer, model, loss_scale=4.0)
    loss_of(model, 0).backward()
    outer.step()


REFUSED = {
    "dtype": Refused(
        lambda model, optimizer: MixedPrecision(optimizer, model, torch.float64),
        r"MixedPrecision: dtype is torch\.float64; allowed: torch\.bfloat16, torch\.float16",
    ),
    "masters": Refused(
        lambda model, optimizer: MixedPrecision(optimizer, model, masters="bf16"),
        r"masters is 'bf16'; allowed: 'fp32'",
    ),
    "scale": Refused(
        lambda model, optimizer: MixedPrecision(optimizer, model, loss_scale="static"),
        r"loss_scale is 'static'; allowed: 'dynamic', or a number above 0",
    ),
    "model": Refused(
        lambda model, optimizer: MixedPrecision(optimizer, list(model.parameters())),  # type: ignore[arg-type]
        r"got a list; expected a torch\.nn\.Module",
    ),
    "order": Refused(
        lambda model, optimizer: MixedPrecision(optimizer, optimizer),  # type: ignore[arg-type]
        r"got a AdamW; expected a torch\.nn\.Module",
    ),
    "another model": Refused(
        lambda model, optimizer: MixedPrecision(adamw(Net()), model),
        r"has a parameter of shape \(40, 24\) that is not in the model",
    ),
    "twice": Refused(
        lambda model, optimizer: MixedPrecision(MixedPrecision(optimizer, model), model),
        r"got a MixedPrecision in place of an optimizer",
    ),
    "twice from outside": Refused(
        lambda model, optimizer: [MixedPrecision(optimizer, model) for _ in range(2)],
        r"this AdamW is already in a MixedPrecision",
    ),
    "the other 16 bits": Refused(
        lambda model, optimizer: MixedPrecision(optimizer, model.half()),
        r"parameter 'words\.weight' has torch\.float16, but dtype is torch\.bfloat16",
    ),
    "a closure": Refused(a_closure, r"cannot repeat or skip .* Pass loss_scale=NUMBER", RuntimeError),
    "a scaler": Refused(with_a_scaler, r"a GradScaler steps a MixedPrecision", RuntimeError),
    "an unscaled loss": Refused(unscaled, r"divides the gradients by the loss scale 4\.0", RuntimeError),
    "a norm": Refused(
        lambda model, optimizer: MixedPrecision(optimizer, model).clip_master_grads(0.0),
        r"max_norm is 0\.0; allowed: above 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_input(name: str) -> None:
    model = made(Net)
    with pytest.raises(REFUSED[name].error, match=REFUSED[name].message):
        REFUSED[name].do(model, adamw(model))
