"""smp.step and what it returns, DistributedModel and DistributedOptimizer, beside one process."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from pipeline_models import Language, adam, batches, differences, language_loss, made
from torch import Tensor
from torch_spawn import run

import smdp.torch.model_parallel as smp

MICROBATCHES = 4


class Pair(NamedTuple):
    loss: Tensor
    count: int


def trained_alone(steps: list[dict[str, Tensor]]) -> Any:
    from pipeline_models import train_alone

    alone = made(Language)
    train_alone(alone, steps, MICROBATCHES)
    return alone


def trained_as_documented() -> None:
    smp.init({"partitions": 2, "microbatches": MICROBATCHES, "ddp": True})
    steps = batches(3)
    alone = trained_alone(steps)
    torch.manual_seed(0)
    model = smp.DistributedModel(Language())
    optimizer = smp.DistributedOptimizer(adam(model))
    whole = sum(parameter.numel() for parameter in model.parameters())
    hooked: list[str] = []
    model.register_post_partition_hook(lambda model, opt: hooked.append(f"cut {opt is optimizer}"))
    model.register_post_step_hook(lambda model, opt: hooked.append("step"))
    assert not model.partitioned

    @smp.step
    def train_step(model: Any, batch: dict[str, Tensor], options: dict[str, Any]) -> Any:
        output = model(batch["ids"], mask=batch["mask"])
        loss = language_loss(output, batch)
        model.backward(loss)
        return loss, {"logits": output["logits"]}, loss.item(), Pair(loss, len(batch["ids"])), options

    @smp.step
    def look(model: Any, batch: dict[str, Tensor], options: dict[str, Any]) -> Any:
        return model(batch["ids"], mask=batch["mask"])["logits"]

    # Two functions with arguments of the same shapes are two, also where gradients are on and one has none.
    look(model, steps[0], {"any": object})
    losses = []
    for batch in steps:
        optimizer.zero_grad()
        loss, output, numbers, pair, options = train_step(model, batch, {"any": object})
        optimizer.step()
        losses.append(loss.reduce_mean())
        assert isinstance(loss, smp.StepOutput) and len(loss.outputs) == MICROBATCHES
        assert output["logits"].concat().shape[0] == len(batch["ids"])
        assert list(numbers) == [each.item() for each in loss.outputs]
        assert isinstance(pair, Pair) and pair.count == [4] * MICROBATCHES
        assert options == {"any": [object] * MICROBATCHES}
        assert torch.equal(loss.merge(), loss.detach().concat().cpu()) and len(loss.merge()) == MICROBATCHES
    assert hooked == ["cut True", "step"]
    assert model.partitioned and differences(model, alone) == {}
    local = sum(parameter.numel() for parameter in model.local_parameters())
    assert 0 < local < whole
    assert sum(p.numel() for group in optimizer.param_groups for p in group["params"]) == local

    # Evaluation by the same decorator, with and without arguments.
    @smp.step(non_split_inputs=["weights"], input_split_axes={"turned": 1})
    def evaluate(ids: Tensor, weights: Tensor, turned: Tensor) -> Tensor:
        assert weights.shape == (3,) and torch.equal(turned.T, ids)
        return model(ids)["logits"] * weights.sum()

    model.eval()
    ids = steps[0]["ids"]
    with torch.no_grad():
        found = evaluate(ids, torch.ones(3), turned=ids.T)
        expected = torch.cat([alone.eval()(part)["logits"] for part in ids.chunk(MICROBATCHES)])
    assert torch.equal(found.concat(), expected * 3)
    # Without no_grad() and without backward there are no gradients either.
    optimizer.zero_grad()
    evaluate(ids, torch.ones(3), ids.T)
    look(model, steps[0], {"any": object})
    assert all(parameter.grad is None for parameter in model.parameters())

    # State: whole, local, of the optimizer; loaded into a plain model and optimizer.
    state, local_state = model.state_dict(), model.local_state_dict()
    assert list(state) == list(alone.state_dict())
    assert all(torch.equal(state[name], value) for name, value in alone.state_dict().items())
    assert local_state.pop("_smp_is_partial") and set(local_state) < set(state)
    plain = adam(alone)
    plain.load_state_dict(optimizer.state_dict())
    assert len(plain.state) == len(list(alone.parameters()))
    before = optimizer.state_dict()
    optimizer.load_state_dict(before)
    optimizer.load_state_dict(optimizer.local_state_dict())
    after = optimizer.state_dict()
    assert all(
        torch.equal(after["state"][i]["exp_avg"], before["state"][i]["exp_avg"]) for i in before["state"]
    )
    assert model.get_module_partition("words") == 0
    assert model.get_module_partition("head") == 1
    assert (smp.state.model is model) and model.module.module is model.get_module()
    assert model(ids) if False else True
    model.cpu()
    assert torch.equal(model.get_module()(ids)["logits"], alone(ids)["logits"])
    with pytest.raises(RuntimeError, match=r"after model.cpu\(\), which ends training"):
        train_step(model, steps[0], {})
    smp.shutdown()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_trained_as_documented(ranks: int) -> None:
    run(trained_as_documented, ranks)
