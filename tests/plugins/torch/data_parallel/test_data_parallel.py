"""smdp's DistributedDataParallel against torch's, and against one process on the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch_spawn import run

import smdp
from smdp.torch import DistributedDataParallel

HOSTS = [None, [0, 1], [0, 0, 1, 1]]


class Net(nn.Module):
    """Layers of several kinds; one is used on demand, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(1, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm1d(144)
        self.first = nn.Linear(144, 64)
        self.sometimes = nn.Linear(64, 64)
        self.never = nn.Linear(64, 64)
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor, use: bool = False) -> Tensor:
        x = torch.tanh(self.image(x)).flatten(1)
        x = torch.tanh(self.first(self.norm(x)))
        if use:
            x = torch.tanh(self.sometimes(x))
        return self.last(self.frozen(x))


def model() -> Net:
    torch.manual_seed(1)
    return Net()


def batches(step: int, rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows, 1, 8, 8, generator=generator), torch.randint(0, 10, (rows,), generator=generator)


def train(ddp: nn.Module, steps: int = 6) -> list[Tensor]:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x, y = batches(1000 * step + dist.get_rank())
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x, use=True), y).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in ddp.parameters()]


def check_same_bits_as_torch() -> None:
    theirs = train(TorchDistributedDataParallel(model(), find_unused_parameters=True))
    ours = train(DistributedDataParallel(model()))
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    names = list(DistributedDataParallel(model()).state_dict())
    assert names == list(TorchDistributedDataParallel(model()).state_dict())
    assert isinstance(DistributedDataParallel(model()), TorchDistributedDataParallel)


@pytest.mark.parametrize("hosts", HOSTS, ids=str)
def test_same_bits_as_torch(hosts: list[int] | None) -> None:
    run(check_same_bits_as_torch, len(hosts or [0, 0]), hosts=hosts)


def check_unused_parameters() -> None:
    ddp = DistributedDataParallel(model())
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(3):
        ddp.zero_grad()
        x, y = batches(step)
        nn.functional.cross_entropy(ddp(x, use=rank == 0), y).backward()
        assert ddp.module.never.weight.grad is None
        assert ddp.module.frozen.weight.grad is None
        grad = ddp.module.sometimes.weight.grad
        assert grad is not None
        alone = model()
        alone.load_state_dict(ddp.module.state_dict())
        nn.functional.cross_entropy(alone(x, use=True), y).backward()
        assert alone.sometimes.weight.grad is not None
        torch.testing.assert_close(grad, alone.sometimes.weight.grad / size)


def test_unused_parameters() -> None:
    run(check_unused_parameters, 3)


def check_accumulation() -> None:
    ddp, rank, size = DistributedDataParallel(model().eval()), dist.get_rank(), dist.get_world_size()
    alone = model().eval()
    for step in range(2):
        ddp.zero_grad()
        with ddp.no_sync():
            # Used in the first half only: must be averaged with the rest all the same.
            ddp(batches(100 * step + rank)[0], use=True).pow(2).mean().backward()
        ddp(batches(100 * step + rank + 50)[0]).pow(2).mean().backward()
        alone.zero_grad()
        for other in range(size):
            alone(batches(100 * step + other)[0], use=True).pow(2).mean().div(size).backward()
            alone(batches(100 * step + other + 50)[0]).pow(2).mean().div(size).backward()
        for a, b in zip(ddp.module.parameters(), alone.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None and b.grad is not None:
                torch.testing.assert_close(a.grad, b.grad)


def test_gradient_accumulation() -> None:
    run(check_accumulation)


def check_join() -> None:
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with Join([ddp]):
        for step in range(3 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            x, y = batches(step)
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.step()
    mine = torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()])
    highest = mine.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    assert torch.equal(mine, highest)


def check_join_of_those_left() -> None:
    """Gradients are means over the ranks that still have inputs, as torch's are."""
    size, rank = dist.get_world_size(), dist.get_rank()
    found = []
    for wrapper in (TorchDistributedDataParallel, DistributedDataParallel):
        ddp = wrapper(model(), find_unused_parameters=True)
        gradients = []
        with ddp.join(divide_by_initial_world_size=False):
            for step in range(2 + rank):
                ddp.zero_grad()
                x, y = batches(10 * step + rank)
                nn.functional.cross_entropy(ddp(x, use=True), y).backward()
                gradients.append([p.grad.clone() for p in ddp.parameters() if p.grad is not None])
        found.append(gradients)
    torch.testing.assert_close(found[0], found[1])
    ddp.zero_grad()
    nn.functional.cross_entropy(ddp(x, use=True), y).backward()
    # Outside of it, over all again.
    alone = model()
    alone.load_state_dict(ddp.module.state_dict())
    nn.functional.cross_entropy(alone(x, use=True), y).backward()
    mean = alone.first.weight.grad / size
    dist.all_reduce(mean)
    torch.testing.assert_close(ddp.module.first.weight.grad, mean)


@pytest.mark.parametrize("check", [check_join, check_join_of_those_left], ids=lambda check: check.__name__)
def test_join_with_uneven_inputs(check: Callable[[], None]) -> None:
    run(check, 3)


def check_compression() -> None:
    plain = torch.cat([p.flatten() for p in train(DistributedDataParallel(model()))])
    start = torch.cat([p.detach().flatten() for p in model().parameters()])
    moved = (plain - start).norm()
    for wire, limit in (("fp16", 0.002), ("bf16", 0.02), ("int8", 0.05), ("topk", 0.9)):
        ddp = DistributedDataParallel(model(), compression=wire, topk_ratio=0.2)
        mine = torch.cat([p.flatten() for p in train(ddp)])
        highest = mine.clone()
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        assert torch.equal(mine, highest), wire  # the same bits on all ranks
        error = (mine - plain).norm() / moved
        assert 0 < error < limit, (wire, error)
        assert wire in ddp.explain()
    words = DistributedDataParallel(model()).explain()
    group = dist.group.WORLD
    assert smdp.explain(1 << 20) == smdp.explain(1 << 20, group)
    with pytest.raises(TypeError, match=r"explain\(\): group is of type str; pass an smdp.Group"):
        smdp.explain(1 << 20, "x")
    for part in ("us, large ones", "MB/s, sums", "pair of hosts exchanges whole chunks", "to each rank"):
        assert part in words, words


def test_compression_between_hosts() -> None:
    run(check_compression, 3, hosts=[0, 0, 1])


def check_wrong_input() -> None:
    rank = dist.get_rank()
    different = nn.Linear(4, 4 + rank, bias=False)
    with pytest.raises(smdp.MismatchError, match=r"(?s)'weight' float32\[5, 4\].*'weight' float32\[4, 4\]"):
        DistributedDataParallel(different, init_sync=False)
    different = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4 + rank).requires_grad_(False))
    with pytest.raises(
        smdp.MismatchError,
        match=r"rank 0 has '1.weight' float32\[4, 4\] where rank 1 has '1.weight' float32\[5, 4\]",
    ):
        DistributedDataParallel(different)
    DistributedDataParallel(different, init_sync=False)
    different = nn.Linear(4, 4)
    if rank == 1:
        different.register_buffer("seen", torch.zeros(3))
    with pytest.raises(
        smdp.MismatchError, match=r"rank 0 has nothing more where rank 1 has 'seen' float32\[3\]"
    ):
        DistributedDataParallel(different)
    DistributedDataParallel(different, broadcast_buffers=False)
    with pytest.raises(smdp.MismatchError, match="the same broadcast_buffers"):
        DistributedDataParallel(nn.BatchNorm1d(2), broadcast_buffers=bool(rank))
    for trains in (lambda one: one == 0, lambda one: one == 1):
        frozen = nn.Linear(4, 4, bias=False).requires_grad_(trains(rank))
        with pytest.raises(smdp.MismatchError, match=r"'weight' float32\[4, 4\] on rank|missing on rank"):
            DistributedDataParallel(frozen)
    with pytest.raises(RuntimeError, match="doesn't have any parameter"):
        DistributedDataParallel(nn.Linear(4, 4).requires_grad_(False))
    with pytest.raises(ValueError, match="needs a group of the backend 'smdp', but got 3"):
        DistributedDataParallel(nn.Linear(2, 2), process_group=3)
    with pytest.raises(ValueError, match=r"compression is 'zip'; allowed: none, fp16, bf16, int8, topk"):
        DistributedDataParallel(nn.Linear(2, 2), compression="zip")
    with pytest.raises(ValueError, match="bucket_cap_mb is 0"):
        DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb=0)
    with pytest.raises(
        ValueError, match=r"bucket_cap_mb is 1e\+20; it must be a number of MiB, .* at most 2"
    ):
        DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb=1e20)
    with pytest.raises(ValueError, match="new_group"):
        DistributedDataParallel(nn.Linear(2, 2), process_group=dist.new_group(backend="gloo"))
    with pytest.raises(RuntimeError, match="compression="):
        DistributedDataParallel(nn.Linear(2, 2)).register_comm_hook(None, None)
    for name in ("mixed_precision", "delay_all_reduce_named_params"):
        with pytest.raises(ValueError, match=rf"^\[smdp\] DistributedDataParallel: {name} is not supported"):
            DistributedDataParallel(nn.Linear(2, 2), **{name: object()})
    with pytest.raises(ValueError, match=r"bucket_cap_mb_list=\[1, 25\] is not supported for a module"):
        DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb_list=[1, 25])
    nested = nn.Sequential(nn.Linear(2, 2), TorchDistributedDataParallel(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="DistributedDataParallel: 1 is already wrapped in torch's"):
        DistributedDataParallel(nested)
    # Of which this one averages nothing: a teacher, and experts of their own group.
    nested[1].requires_grad_(False)
    DistributedDataParallel(nested)
    experts = nn.Sequential(nn.Linear(2, 2), DistributedDataParallel(nn.Linear(2, 2)))
    local = nn.Linear(2, 2)
    _apply_optimizer_in_backward(torch.optim.SGD, local.parameters(), {"lr": 0.1})
    experts.append(local)
    outside = [name for name, _ in experts.named_parameters() if not name.startswith("0.")]
    TorchDistributedDataParallel._set_params_and_buffers_to_ignore_for_model(experts, outside)
    DistributedDataParallel(experts)
    stepping = nn.Linear(2, 2)
    _apply_optimizer_in_backward(torch.optim.SGD, stepping.parameters(), {"lr": 0.1})
    with pytest.raises(ValueError, match="parameter 'weight' has an optimizer that steps in backward"):
        DistributedDataParallel(stepping)
    with pytest.raises(TypeError, match="got 3 as device_mesh"):
        DistributedDataParallel(nn.Linear(2, 2), device_mesh=3)


def check_replaced_parameters() -> None:
    def replace(net: nn.Sequential) -> None:
        net[0].weight = nn.Parameter(torch.ones(4, 4))

    def assign(net: nn.Sequential) -> None:
        net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)

    def add(net: nn.Sequential) -> None:
        net[1] = nn.Linear(4, 2)

    for change, name in ((replace, "0.weight"), (assign, "0.weight"), (add, "1.weight")):
        ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
        ddp(torch.ones(2, 4)).sum().backward()
        dist.barrier()  # who finds the change ends the gradients of all
        change(ddp.module)
        for _ in range(2):  # also who goes on hears why
            with pytest.raises(
                RuntimeError, match=f"parameter '{name}' was replaced or added after the model"
            ):
                ddp(torch.ones(2, 4)).sum().backward()
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4)))
    ddp.module.append(nn.Linear(4, 2))
    with pytest.raises(RuntimeError, match=r"parameter '1\.weight' was replaced or added"):
        ddp(torch.ones(2, 4)).sum().backward()
    # A rank that does not use a parameter has replaced nothing.
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    for _ in range(2):
        (ddp.module[dist.get_rank()](torch.ones(2, 4)) + 0 * ddp(torch.ones(2, 4)).detach()).sum().backward()
    # What was not sent is no step: the wrapper goes on.
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    ddp.double()
    with pytest.raises(RuntimeError, match="was cast or resized after wrapping"):
        ddp(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
    ddp.float()
    ddp.zero_grad()
    ddp(torch.ones(2, 4) * (1 + dist.get_rank())).sum().backward()
    assert ddp.module.weight.grad is not None and (ddp.module.weight.grad == 3.0).all()


def test_replaced_parameters() -> None:
    run(check_replaced_parameters)


def check_static_graph() -> None:
    """With it a parameter's gradient may come in parts, as reentrant checkpoints make them."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = checkpoint(self.first, x, use_reentrant=True)
            return self.last(x)

    def gradients(make: Callable[[nn.Module], nn.Module]) -> list[Tensor]:
        net = make(Twice())
        for step in range(3):
            net.zero_grad()
            rows = torch.full((2, 4), 1.0 + step + dist.get_rank(), requires_grad=True)
            net(rows).square().sum().backward()
        return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]

    layer = nn.Linear(4, 4)
    ddp = DistributedDataParallel(layer, static_graph=True)
    rows = torch.ones(2, 4, requires_grad=True)
    ddp(rows).sum().backward()
    with pytest.raises(RuntimeError, match=r"'(weight|bias)' received its gradient more often than in the"):
        ddp(checkpoint(layer, rows, use_reentrant=True)).sum().backward()
    ours = gradients(lambda net: DistributedDataParallel(net, static_graph=True))
    theirs = gradients(lambda net: nn.parallel.DistributedDataParallel(net, static_graph=True))
    assert len(ours) == 4 and all(map(torch.equal, ours, theirs))
    with pytest.raises(RuntimeError, match=r"received its gradient twice .* or pass static_graph=True"):
        gradients(DistributedDataParallel)


def test_static_graph() -> None:
    run(check_static_graph)


def check_any_name() -> None:
    """Parameters may be called as one likes."""
    names = ["two\nlines", "'", "' float32[3]", " "]
    model = nn.ParameterDict({name: nn.Parameter(torch.ones(3)) for name in names})
    ddp = DistributedDataParallel(_Sum(model))
    (ddp() * (1 + dist.get_rank())).backward()
    assert all((parameter.grad == 1.5).all() for parameter in model.values())


class _Sum(nn.Module):
    def __init__(self, parameters: nn.ParameterDict) -> None:
        super().__init__()
        self.all = parameters

    def forward(self) -> torch.Tensor:
        return torch.stack([parameter.sum() for parameter in self.all.values()]).sum()


def test_any_name() -> None:
    run(check_any_name)


def test_wrong_input() -> None:
    run(check_wrong_input)


def check_checkpointing() -> None:
    net = model()
    ddp = DistributedDataParallel(net)
    x, y = batches(0)

    def body(x: Tensor) -> Tensor:
        return ddp(x, use=True)

    nn.functional.cross_entropy(checkpoint(body, x, use_reentrant=False), y).backward()
    mine = net.last.weight.grad
    assert mine is not None
    highest = mine.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    assert torch.equal(mine, highest)


def test_activation_checkpointing() -> None:
    run(check_checkpointing)


def check_no_reducer_of_torchs() -> None:
    """torch's reducer takes seconds where there are thousands of parameters, and would be thrown away."""

    def fail(*_: object) -> None:
        raise AssertionError("torch's reducer was made")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "Reducer", fail)
        model = smdp.torch.DistributedDataParallel(torch.nn.Linear(2, 2), static_graph=True)
        other = copy.deepcopy(model)
    for one in (model, other):
        assert one.static_graph
        one(torch.full((1, 2), dist.get_rank() + 1.0)).sum().backward()
        torch.testing.assert_close(one.module.weight.grad, torch.full((2, 2), 1.5))


def test_no_reducer_of_torchs() -> None:
    run(check_no_reducer_of_torchs, 2)


def check_wrapped_again() -> None:
    """Either wrapper averages what comes through it, as torch's do."""
    module = torch.nn.Linear(1500, 1500)
    both = [smdp.torch.DistributedDataParallel(module) for _ in range(2)]
    rank = dist.get_rank()
    for wrapper in (*both, *both):
        module.zero_grad()
        wrapper(torch.full((1, 1500), rank + 1.0)).sum().backward()
        torch.testing.assert_close(module.weight.grad, torch.full((1500, 1500), 1.5))
        torch.testing.assert_close(module.bias.grad, torch.ones(1500))


def test_wrapped_again() -> None:
    run(check_wrapped_again, 2)
