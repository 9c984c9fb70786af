"""Models built without memory, whose own parameters are bitwise those of a whole initialisation."""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smdp
from smdp.torch.initialization.delayed_initialization import delayed_initialization, materialize, recording
from smdp.torch.mesh.cuts import Cut, cut_of, mark_cut
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.mesh.slices import Slices


def check(build: Callable[[], nn.Module], own: Callable[[list[str]], Iterable[str]]) -> nn.Module:
    """Compare values, flags, layout and the generator with a whole initialisation; give the delayed model."""
    torch.manual_seed(3)
    whole = build()
    after = torch.get_rng_state()
    torch.manual_seed(3)
    with delayed_initialization():
        model = build()
    assert torch.equal(torch.get_rng_state(), after)
    names = [name for name, _ in model.named_parameters()]
    assert names == [name for name, _ in whole.named_parameters()]
    assert all(parameter.is_meta for parameter in model.parameters())
    owned = set(own(names))
    materialize(model, owned.__contains__)
    assert torch.equal(torch.get_rng_state(), after)
    expected = dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        true = expected[name]
        assert type(parameter) is type(true) and parameter.is_meta == (name not in owned), name
        assert (parameter.requires_grad, parameter.dtype) == (true.requires_grad, true.dtype), name
        assert parameter.stride() == true.stride(), name
        assert parameter.is_meta or torch.equal(parameter, true), name
    buffers = dict(whole.named_buffers(remove_duplicate=False))
    for name, buffer in model.named_buffers(remove_duplicate=False):
        assert buffer.dtype is buffers[name].dtype and torch.equal(buffer, buffers[name]), name
    return model


def half(names: list[str]) -> list[str]:
    return names[::2]


def layers() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.GroupNorm(2, 8),
        nn.ConvTranspose2d(8, 4, 2, dtype=torch.float64),
        nn.PReLU(),
        nn.LSTM(20, 30, 2),
        nn.Embedding(10, 20, padding_idx=3),
        nn.Bilinear(3, 4, 5),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2),
        nn.Linear(20, 20).half(),
        nn.Linear(5, 3).requires_grad_(False),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 5)),
        nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
    )


class Odd(nn.Module):
    """What initialisers do besides filling a tensor once."""

    def __init__(self) -> None:
        super().__init__()
        own = torch.Generator().manual_seed(5)
        self.scaled = nn.Parameter(torch.randn(7, 5, generator=own) * 0.02)
        self.own = nn.Parameter(torch.rand(33, generator=own))
        self.linear = nn.Linear(9, 7)
        nn.init.orthogonal_(self.linear.weight)
        nn.init.trunc_normal_(self.linear.bias)
        self.rejected = nn.Parameter(torch.empty(64, 64))
        nn.init.trunc_normal_(self.rejected, std=1.0, a=-0.5, b=1.5)
        self.narrow = nn.Parameter(torch.empty(8, 8))
        nn.init.trunc_normal_(self.narrow, std=1.0, a=-3.0, b=-2.0)
        self.sparse = nn.Parameter(nn.init.sparse_(torch.empty(8, 6), 0.3))
        self.dirac = nn.Parameter(nn.init.dirac_(torch.empty(4, 4, 3)))
        self.eye = nn.Parameter(nn.init.eye_(torch.empty(3, 3)))
        with torch.random.fork_rng():
            self.forked = nn.Parameter(torch.randn(4))
        self.after_fork = nn.Parameter(torch.randn(20))
        self.table = nn.Parameter(torch.empty(6, 64))
        with torch.no_grad():
            self.table.copy_(torch.from_numpy(np.arange(64.0)))
            self.table[1:3].normal_()
            self.table[:, 2:9].uniform_()
            self.table[torch.tensor([1, 4])] *= 2
            self.table[[0, 2]] = 3.0
            self.table[self.table > 30] = 0.5
            self.after_fork.copy_(torch.where(self.after_fork > 0, 1.0, self.after_fork))
            torch._foreach_mul_([self.after_fork, self.forked], 2.0)
        self.mask = nn.Parameter(torch.bernoulli(torch.full((50,), 0.3)))
        self.dropped = nn.Parameter(nn.functional.dropout(torch.ones(50), 0.5))
        self.picked = nn.Parameter(torch.multinomial(torch.rand(6), 3).float())
        self.moved = nn.Parameter(torch.normal(torch.rand(5), torch.rand(5)))
        self.constant = nn.Parameter(torch.tensor(2.5))
        self.like = nn.Parameter(self.constant.new_tensor([1.0, 2.0], device=self.constant.device))
        self.register_buffer("order", torch.randperm(9))
        self.register_buffer("causal", torch.tril(torch.ones(4, 4, dtype=torch.bool)), persistent=False)
        self.plain = {"tables": [torch.triu(torch.ones(3, 3))]}
        torch.manual_seed(7)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.view = nn.Parameter(self.first.weight.data.t())
        self.copy = copy.deepcopy(self.linear)


@pytest.mark.parametrize("own", [half, list, lambda names: []], ids=["half", "all", "none"])
@pytest.mark.parametrize("build", [layers, Odd])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_equals_a_whole_initialisation(build: Callable[[], nn.Module], own: Any) -> None:
    check(build, own)


def test_tied_parameters_stay_tied_and_one_owned_name_is_enough() -> None:
    model = check(Odd, lambda names: ["first.weight", "view"])
    assert isinstance(model, Odd)
    assert model.first.weight is model.second.weight
    assert model.view.untyped_storage().data_ptr() == model.first.weight.untyped_storage().data_ptr()
    assert torch.equal(model.plain["tables"][0], torch.triu(torch.ones(3, 3)))
    with delayed_initialization():
        again = Odd()
    materialize(again, lambda name: name == "second.weight")
    assert not again.first.weight.is_meta


class Reads(nn.Module):
    """Values that Python reads while it builds."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)] + torch.linspace(0, 1, 3).tolist()
        self.rates += list(torch.arange(3).numpy()) + np.asarray(torch.ones(2)).tolist()
        drawn = torch.randn(5)
        self.largest = float(drawn.max())
        self.is_cpu = str(drawn.device) == "cpu" and drawn.is_cpu and not drawn.is_meta
        self.kind = nn.Linear(2, 3) if drawn[0] > 0 else nn.Linear(3, 2)
        self.where = nn.Parameter(torch.nonzero(drawn > 0).float())


def test_what_the_host_reads_is_computed_even_from_random_numbers() -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        whole = Reads()
        torch.manual_seed(seed)
        with delayed_initialization():
            model = Reads()
        assert model.rates == whole.rates and model.largest == whole.largest and model.is_cpu
        materialize(model, lambda name: True)
        for mine, theirs in zip(model.parameters(), whole.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def test_a_generator_of_the_users_own_ends_where_it_would() -> None:
    whole, delayed = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    expected = torch.randn(9, generator=whole)
    holder = nn.Module()
    with delayed_initialization():
        holder.weight = nn.Parameter(torch.randn(9, generator=delayed))
    assert torch.equal(whole.get_state(), delayed.get_state())
    torch.randn(3, generator=delayed)
    materialize(holder, lambda name: True)
    assert torch.equal(holder.weight, expected)


def test_more_names_may_follow_and_the_generator_does_not_matter() -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    torch.manual_seed(0)
    with delayed_initialization():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    torch.manual_seed(9)
    materialize(model, lambda name: name.startswith("1."))
    first = model[1].weight
    torch.randn(3)
    materialize(model, lambda name: True)
    assert model[1].weight is first
    for mine, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_real_model_gives_up_what_others_own() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = model[0].weight
    lost = weakref.ref(model[1].weight)
    materialize(model, lambda name: name == "0.weight")
    assert model[0].weight is before
    assert [parameter.is_meta for parameter in model.parameters()] == [False, True, True, True]
    assert lost() is None and not model[1].running_mean.is_meta


def resident() -> int:
    """Give the bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@contextlib.contextmanager
def most_resident() -> Iterator[list[int]]:
    """Yields a list that gets the most bytes by which this process has grown within the context."""
    before, found, is_done = resident(), [0], threading.Event()

    def watch() -> None:
        while not is_done.wait(0.001):
            found[0] = max(found[0], resident() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        is_done.set()
        watcher.join()


def normal(weight: torch.Tensor) -> None:
    nn.init.normal_(weight, 0, 0.02)


def cut_normal(weight: torch.Tensor) -> None:
    nn.init.trunc_normal_(weight, std=0.02, a=-0.08, b=0.08)  # looks at what it draws


@pytest.mark.parametrize("initialise", [normal, cut_normal])
def test_foreign_parameters_are_never_all_in_memory(initialise: Callable[[torch.Tensor], None]) -> None:
    def build(count: int) -> nn.Module:
        model = nn.Sequential(*(nn.Linear(1024, 512) for _ in range(count)))
        for layer in model:
            initialise(layer.weight)
        return model

    with delayed_initialization():
        build(1)  # imports what meta tensors need
    with most_resident() as most:
        with delayed_initialization():
            model = build(48)  # 2 MiB each
        materialize(model, lambda name: name.startswith("7."))
    assert most[0] < 24 * 2**20  # of 96 MiB
    assert sum(parameter.nbytes for parameter in model.parameters() if not parameter.is_meta) < 3 * 2**20


def test_slices_are_computed_one_by_one() -> None:
    def build() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(1024, 512) for _ in range(48)))  # 2 MiB each

    slices = Slices(0, ((0, 64), (256, 320)), (512, 1024))
    with delayed_initialization():
        model = build()
    with most_resident() as most:
        for layer in model:
            with recording(layer.weight):
                layer.weight.data = slices.take(layer.weight.data)
            mark_cut(layer.weight, Cut("tp", ParallelMesh(tp=4, rank=0), slices))
        materialize(model, lambda name: True)
    assert most[0] < 40 * 2**20  # 24 MiB of slices, and less than a whole model of 96 MiB
    for mine, theirs in zip(model, build(), strict=True):
        assert torch.equal(mine.weight, slices.take(theirs.weight))
        assert torch.equal(mine.bias, theirs.bias) and cut_of(mine.weight) is not None


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_plain_meta_model_is_reset_in_module_order() -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Transformer(16, 2, 1, 1, 24), nn.Embedding(5, 4, 1)
        )

    torch.manual_seed(1)
    whole = build()
    after = torch.get_rng_state()
    with torch.device("meta"):
        model = build()
    torch.manual_seed(1)
    materialize(model, lambda name: not name.startswith("0."))
    assert torch.equal(torch.get_rng_state(), after)
    for (name, mine), theirs in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert mine.is_meta if name.startswith("0.") else torch.equal(mine, theirs), name
    for mine, theirs in zip(model.buffers(), whole.buffers(), strict=True):
        assert torch.equal(mine, theirs)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(2))


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("table", torch.ones(2))


@pytest.mark.parametrize(("kind", "place"), [(Custom, "scale"), (Table, "0.table")])
def test_a_meta_model_that_cannot_be_reset_is_named(kind: type[nn.Module], place: str) -> None:
    with torch.device("meta"):
        model = nn.Sequential(kind())
    with pytest.raises(smdp.SmdpError, match=rf"\[smdp\] .*{place}.*delayed_initialization\(\)"):
        materialize(model, lambda name: True)


def test_changes_outside_are_refused() -> None:
    with delayed_initialization():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].half()
    with pytest.raises(smdp.SmdpError, match=r"0\.weight was built in .*Do all of this inside"):
        materialize(model, lambda name: True)


def test_two_models_do_not_mix() -> None:
    with delayed_initialization():
        first = nn.Linear(2, 2)
    with pytest.raises(smdp.SmdpError, match="another delayed_initialization"):
        with delayed_initialization():
            nn.Linear(2, 2).weight.data.copy_(first.weight.data)
    assert not torch.empty(1).is_meta  # an error leaves it


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(smdp.SmdpError, match="supports only dense tensors"):
        with delayed_initialization():
            torch.eye(3).to_sparse() * 2


def test_within_another_it_does_nothing() -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    torch.manual_seed(0)
    with delayed_initialization():
        first = nn.Linear(3, 3)
        with delayed_initialization():
            second = nn.Linear(3, 3)
        model = nn.Sequential(first, second)
    materialize(model, lambda name: True)
    for mine, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_device_takes_what_is_owned() -> None:
    with delayed_initialization():
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    materialize(model, lambda name: name.startswith("0."), device="cpu")
    assert model[0].weight.device.type == "cpu" and model[1].running_var.device.type == "cpu"
