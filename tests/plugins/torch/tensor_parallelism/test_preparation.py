"""What a model was before it is divided, and what may be done with it afterwards."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from divided_models import PLAN, VOCABULARY, Model, farthest, loss_of, own_part
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch
from smdp.torch.mesh.cuts import cut_of

PAIR = {"0": "colwise", "1": "rowwise"}


class Locked(nn.Linear):
    """A layer that says what of it is copied."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}


def made(**options: Any) -> Model:
    torch.manual_seed(0)
    return Model(**options)


def tokens_of(step: int) -> Tensor:
    return torch.randint(VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(step))


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, tokens_of(step)).backward()
        optimizer.step()


def takes_slices_of_models_without_memory() -> None:
    alone = made(tied=True)
    draws = torch.rand(3)
    with smdp.torch.delayed_initialization():
        model = made(tied=True)
    model.blocks[0].up.register_buffer("places", torch.arange(4))
    smdp.torch.tensor_parallel(model, 2, PLAN)
    assert torch.equal(torch.rand(3), draws)  # the generator is where one process has it
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, own_part(alone.get_parameter(name), parameter)), name
    assert model.head.weight is model.embedding.weight and cut_of(model.head.weight) is not None
    with torch.device("meta"):
        later = Model()
    torch.manual_seed(5)
    smdp.torch.tensor_parallel(later, 2, PLAN)
    train(later)

    torch.manual_seed(dist.get_rank())
    with smdp.torch.delayed_initialization():
        other = Model()
    with pytest.raises(ValueError, match=r"ranks 0 and 1 have built the model .* torch\.manual_seed"):
        smdp.torch.tensor_parallel(other, 2, PLAN)


def takes_the_values_and_the_generator_of_the_first_rank() -> None:
    """Scripts that seed each rank differently still train like one process."""
    alone = made(dropout=0.3)
    torch.manual_seed(dist.get_rank())
    model = Model(dropout=0.3)
    model.register_buffer("places", torch.randperm(20_000))  # the same values in another order
    first = copy.deepcopy(model) if dist.get_rank() == 0 else alone
    smdp.torch.tensor_parallel(model, 2, PLAN)
    if dist.get_rank() == 0:
        assert farthest(model, first) == 0
    own = {name: one for name, one in model.named_parameters() if cut_of(one) is None}
    own["places"] = model.places
    torch.manual_seed(100 + dist.get_rank())
    state = torch.get_rng_state()
    train(model)
    told: list[Any] = [None] * 2
    dist.all_gather_object(told, own)
    assert all(torch.equal(told[0][name], told[1][name]) for name in own)
    if dist.get_rank() == 0:
        torch.set_rng_state(state)
        train(first)
        assert farthest(model, first) < 1e-6

    wrong = torch.randint(VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(dist.get_rank()))
    fresh = smdp.torch.tensor_parallel(made(), 2, PLAN)
    with pytest.raises(ValueError, match=r"ranks 0 and 1 hold slices .* num_replicas=1, rank=0\)"):
        fresh(wrong)


def copies_and_conversions_keep_cuts() -> None:
    alone = made(tied=True)
    model = smdp.torch.tensor_parallel(made(tied=True), 2, PLAN)
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embedding.weight is not model.head.weight
    for each in (twin, copy.deepcopy(model).double().float(), model.to(torch.float64).to("cpu").float()):
        assert [cut_of(one) for one in each.parameters()] == [cut_of(one) for one in model.parameters()]
        assert farthest(each, alone) == 0
    train(alone)
    for each in (twin, model):
        train(each)
        assert farthest(each, alone) < 1e-6
    layers: Any = smdp.torch.tensor_parallel(nn.Sequential(Locked(4, 8), nn.Linear(8, 4)), 2, PAIR)
    assert cut_of(copy.deepcopy(layers)[0].weight) is not None
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    again = smdp.torch.tensor_parallel(made(tied=True), 2, PLAN)
    again.load_state_dict(torch.load(saved))
    assert farthest(again, alone) < 1e-6
    swapped = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        again.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(swapped)
    assert cut_of(again.blocks[0].up.weight) is not None


def unchanged(model: nn.Module, message: str, **options: Any) -> None:
    """The error comes before anything has changed."""
    kinds, shapes = ([type(one) for one in model.modules()], [one.shape for one in model.parameters()])
    with pytest.raises(ValueError, match=message):
        smdp.torch.tensor_parallel(model, **{"degree": 2, "plan": PLAN, **options})
    assert kinds == [type(one) for one in model.modules()]
    assert shapes == [one.shape for one in model.parameters()]


def refuses() -> None:
    model, alone = made(), made()
    early = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with_state = copy.deepcopy(model)
    train(with_state, stepped := torch.optim.AdamW(with_state.parameters()))
    unchanged(with_state, r"a AdamW already has state of the whole parameter '.*weight'\. Divide")
    del stepped
    wrapped: Any = smdp.torch.DistributedDataParallel(with_state)
    unchanged(with_state, r"parameter '.*' is already in a DistributedDataParallel\. Divide the model first")
    del wrapped
    smdp.torch.tensor_parallel(model, 2, PLAN)
    train(model, early)
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9))
    assert farthest(model, alone) < 1e-6


def all_of_it() -> None:
    parts: list[Callable[[], None]] = [
        takes_slices_of_models_without_memory,
        takes_the_values_and_the_generator_of_the_first_rank,
        copies_and_conversions_keep_cuts,
        refuses,
    ]
    for part in parts:
        part()


def test_preparation() -> None:
    run(all_of_it)
