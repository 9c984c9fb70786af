"""A loss scaler skips a step and changes its scale, where compression and momentum remember steps."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch_spawn import run

import smdp.torch
from smdp.torch.data_parallel.loss_scale import follow

STEPS = 24
SKIPPED = 9


def wrapped(wrapper: str, model: nn.Module, wire: str, momentum: float) -> tuple[nn.Module, Any]:
    """A wrapper, and what follows a scaler."""
    if wrapper == "ours":
        ours = smdp.torch.DistributedDataParallel(
            model, compression=wire, topk_ratio=0.1, topk_momentum=momentum
        )
        return ours, ours
    theirs = TorchDistributedDataParallel(model, bucket_cap_mb=1e-3)
    hook = smdp.torch.comm_hook(wire, topk_ratio=0.1, topk_momentum=momentum)
    theirs.register_comm_hook(None, hook)
    return theirs, hook


def trained(wrapper: str, wire: str, momentum: float, *, infinity: str, dtype: torch.dtype) -> list[Tensor]:
    """infinity: where it comes in one step, "everywhere" or in the "first layer", or "nowhere"."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5)).to(dtype)
    net, follower = wrapped(wrapper, model, wire, momentum)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10_000)
    follower.follow(scaler)
    for step in range(STEPS):
        if step == SKIPPED and infinity == "nowhere":
            continue
        is_bad = step == SKIPPED and dist.get_rank() == 0
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        loss = net(torch.randn(8, 20, generator=generator).to(dtype)).square().mean()
        if is_bad and infinity == "everywhere":
            loss = loss * float("inf")
        handles = []
        if is_bad and infinity == "first layer":  # other buckets are fine
            handles.append(model[0].bias.register_hook(lambda grad: grad * float("inf")))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        for handle in handles:
            handle.remove()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == (1024.0 if infinity == "nowhere" else 512.0)
    return [parameter.detach() for parameter in model.parameters()]


def after_an_infinity() -> None:
    for wrapper in ("ours", "hook"):
        for wire, momentum in (("int8", 0.0), ("topk", 0.0), ("topk", 0.9), ("fp16", 0.0)):
            runs = [
                trained(wrapper, wire, momentum, infinity=infinity, dtype=torch.float32)
                for infinity in ("nowhere", "everywhere", "first layer")
            ]
            for without, *after in zip(*runs, strict=True):
                for one in after:
                    torch.testing.assert_close(one, without, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("hosts", [None, [0, 1]])
def test_training_goes_on_as_if_the_step_had_been_skipped(hosts: list[int] | None) -> None:
    run(after_an_infinity, hosts=hosts)


def momentum_of_other_dtypes() -> None:
    ours, hook = (
        trained(wrapper, "topk", 0.9, infinity="nowhere", dtype=torch.float64) for wrapper in ("ours", "hook")
    )
    for one, other in zip(ours, hook, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


def test_momentum_of_what_is_not_coded() -> None:
    run(momentum_of_other_dtypes, hosts=[0, 1])


def check_thawed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    ddp = smdp.torch.DistributedDataParallel(model)
    ddp(torch.ones(2, 4)).sum().backward()
    model[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"parameter '0.weight' was frozen when the model was wrapped"):
        ddp(torch.ones(2, 4))
    with torch.no_grad():
        ddp.eval()(torch.ones(2, 4))
    with ddp.no_sync():
        ddp.train()(torch.ones(2, 4)).sum().backward()
    smdp.torch.DistributedDataParallel(model)(torch.ones(2, 4)).sum().backward()


def test_thawed_parameters_are_named() -> None:
    run(check_thawed)


def one_hook_of_two_models() -> None:
    """Steps of one leave alone what the other has kept back."""
    hook = smdp.torch.comm_hook("topk", topk_ratio=0.1)
    nets = [TorchDistributedDataParallel(nn.Linear(500, 1, bias=False)) for _ in range(2)]
    for net in nets:
        net.register_comm_hook(None, hook)
    gradient = torch.linspace(1, 2, 500).reshape(1, 500)
    came = torch.zeros(1, 500)
    for step in range(60):
        for net in nets if step % 2 == 0 else nets[:1]:
            net.zero_grad()
            net(gradient if step == 2 else 0 * gradient).sum().backward()
        came += nets[0].module.weight.grad
    torch.testing.assert_close(came, gradient, atol=1e-4, rtol=1e-4)


def test_one_hook_of_two_models() -> None:
    run(one_hook_of_two_models, hosts=[0, 1])


class Heard:
    def __init__(self) -> None:
        self.factors: list[float] = []

    def rescale_residuals(self, factor: float) -> None:
        self.factors.append(factor)


class OwnScaler(torch.amp.GradScaler):
    pass


def scaled(kind: type[torch.amp.GradScaler], scale: float) -> torch.amp.GradScaler:
    scaler = kind("cpu", init_scale=scale)
    scaler.scale(torch.ones(1))
    return scaler


def saved_and_loaded(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, OwnScaler])
@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda scaler: pickle.loads(pickle.dumps(scaler)),
        lambda scaler: pickle.loads(pickle.dumps(scaler, protocol=0)),
        saved_and_loaded,
    ],
    ids=["copy", "deepcopy", "pickle", "pickle 0", "torch.save"],
)
def test_copies_of_a_scaler_that_is_followed(
    kind: type[torch.amp.GradScaler], copied: Callable[[Any], Any]
) -> None:
    heard = Heard()
    scaler = scaled(kind, 1024.0)
    follow(scaler, heard)
    copy_of = copied(scaler)
    assert type(copy_of) is kind
    assert copy_of.get_scale() == 1024.0
    copy_of.scale(torch.ones(1))
    copy_of.update(256.0)
    assert (copy_of.get_scale(), scaler.get_scale(), heard.factors) == (256.0, 1024.0, [])
    scaler.update(512.0)
    assert (copy_of.get_scale(), scaler.get_scale(), heard.factors) == (256.0, 512.0, [0.5])


def test_one_follower_hears_once_and_others_too() -> None:
    heard, other = Heard(), Heard()
    scaler = scaled(OwnScaler, 1024.0)
    for follower in (heard, other, heard):
        follow(scaler, follower)
    assert isinstance(scaler, OwnScaler)
    scaler.update(512.0)
    assert (heard.factors, other.factors) == ([0.5], [0.5])
    del other
    scaler.update(512.0)
    scaler.update(1024.0)
    assert heard.factors == [0.5, 2.0]


def test_a_scale_of_nothing_is_not_told() -> None:
    heard = Heard()
    scaler = scaled(torch.amp.GradScaler, 1.0)
    follow(scaler, heard)
    for scale in (0.0, 0.0, 4.0, float("inf"), 2.0):
        scaler.update(scale)
    assert heard.factors == []


def test_what_is_no_scaler_or_module() -> None:
    with pytest.raises(TypeError, match=r"got a int in place of a torch\.amp\.GradScaler"):
        follow(3, Heard())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got a int in place of a torch\.nn\.Module"):
        smdp.torch.DistributedDataParallel(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bucket_cap_mb": "25"}, r"bucket_cap_mb is '25'; it must be a number of MiB, at least one byte"),
        ({"bucket_cap_mb": 1e-9}, r"bucket_cap_mb is 1e-09; it must be .* at least one byte \(2\*\*-20\)"),
        ({"topk_ratio": "x"}, "topk_ratio is 'x'; it must be a number"),
        ({"topk_ratio": 7}, "topk_ratio is 7; it must be a number above 0 and at most 1"),
        ({"topk_momentum": None}, "topk_momentum is None; it must be a number"),
        ({"topk_momentum": 1.0}, "topk_momentum is 1.0; it must be a number of at least 0 and below 1"),
        (
            {"topk_momentum": 0.9, "compression": "int8"},
            "topk_momentum is 0.9 with compression 'int8', but it",
        ),
    ],
)
def test_figures_of_other_types(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        smdp.torch.DistributedDataParallel(nn.Linear(2, 2), **options)
