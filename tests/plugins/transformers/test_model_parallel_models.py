"""Models of transformers, unchanged, trained on 2 and on 4 stages to the parameters of one process."""

from __future__ import annotations

import copy
import inspect
import os
import traceback
from typing import Any

import pytest
import torch
from model_parallel_models import FAMILIES, batch, without_dropout
from transformers_spawn import run

from smdp.torch.pipelining.units.units import find_units

pytestmark = pytest.mark.filterwarnings("ignore")

BLOCKS, ROWS, MICROBATCHES, STEPS, RATE = 4, 8, 4, 3, 1e-3


def made(family: str) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return without_dropout(family, BLOCKS).train(), batch(family, ROWS)


def train_alone(
    model: Any, inputs: dict[str, torch.Tensor], copies: dict[str, dict[int, Any]]
) -> list[float]:
    """Train as one process; of a weight with copies, one per stage, add the gradients stage by stage."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    # As pipelines do: what has been through a cache lies in memory otherwise, by which some kernels round.
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    means = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses = []
        for index in range(MICROBATCHES):
            part = {name: item.chunk(MICROBATCHES)[index] for name, item in inputs.items()}
            losses.append(model(**part, **options).loss)
            (losses[-1] / MICROBATCHES).backward()
        for tied in copies.values():
            total = sum(tied[stage].grad for stage in sorted(tied))
            for parameter in tied.values():
                parameter.grad = total.clone()
        optimizer.step()
        means.append(torch.stack(losses).mean().item())
    return means


def with_copies(model: Any, split: Any) -> dict[str, dict[int, Any]]:
    """Give each stage that uses a tied weight a copy, as a pipeline does."""
    stage_of = {
        module: calls[0]
        for name, calls in split.stages.items()
        for module in model.get_submodule(name).modules()
    }
    parameters = dict(model.named_parameters())
    copies = {
        name: {stage: torch.nn.Parameter(parameters[name].detach().clone()) for stage in stages}
        for name, stages in split.weights.items()
        if len(stages) > 1
    }
    names = {id(parameters[name]): name for name in copies}
    for module, stage in stage_of.items():
        for key, parameter in module.named_parameters(recurse=False):
            if id(parameter) in names:
                setattr(module, key, copies[names[id(parameter)]][stage])
    return copies


def train_split(family: str) -> dict[str, Any]:
    import smdp.torch

    model, inputs = made(family)
    plain, ordered = copy.deepcopy(model), copy.deepcopy(model)
    stages = torch.distributed.get_world_size()
    example = inputs if os.environ["IS_TRACED"] == "True" else None
    pipe = smdp.torch.pipeline(model, stages=stages, microbatches=MICROBATCHES, example_inputs=example)
    optimizer = torch.optim.AdamW(pipe.parameters(), RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(pipe.train_step(inputs).item())
        optimizer.step()
    train_alone(plain, inputs, {})
    copies = with_copies(ordered, pipe.split)
    expected = train_alone(ordered, inputs, copies)
    stage = pipe.layout.stage_rank
    mine = dict(pipe.named_parameters())
    whole = dict(ordered.named_parameters()) | {name: tied.get(stage) for name, tied in copies.items()}
    assert mine.keys() == {name for name, users in pipe.split.weights.items() if stage in users}
    assert losses == pytest.approx(expected, abs=1e-6)
    assert losses[-1] < losses[0]
    return {
        "names": list(mine),
        "all": list(pipe.split.weights),
        "tied": list(copies),
        "other bits": [name for name, parameter in mine.items() if not torch.equal(parameter, whole[name])],
        "far": [
            name
            for name, parameter in plain.named_parameters()
            if name in mine and is_far(mine[name], parameter)
        ],
    }


def is_far(found: torch.nn.Parameter, expected: torch.nn.Parameter) -> bool:
    """Tell whether any element is, whose gradient is more than rounding.

    A key's bias moves no output, as softmax does not see it: its gradient is 0 but for rounding, which AdamW
    divides by its own size plus 1e-8.
    """
    if expected.grad is None:  # frozen
        return not torch.equal(found, expected)
    return bool(((found - expected).abs() > 1e-6).logical_and(expected.grad.abs() > 1e-7).any())


def train_all() -> dict[str, Any]:
    torch.distributed.init_process_group("smdp")
    found: dict[str, Any] = {}
    for family in FAMILIES:
        try:
            found[family] = train_split(family)
        except Exception as error:  # noqa: BLE001 - counts, and ends the groups of all ranks
            found[family] = {"error": "".join(traceback.format_exception(error))}
            break
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("stages", "is_traced"),
    [
        (2, True),
        pytest.param(4, True, marks=pytest.mark.slow),
        pytest.param(2, False, marks=pytest.mark.slow),
    ],
)
def test_models_train_to_the_parameters_of_one_process(
    stages: int, is_traced: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = run(train_all, stages, timeout=280, env={"IS_TRACED": str(is_traced)})
    wrong = {}
    for family in FAMILIES:
        found = [rank.get(family, {"error": "not reached"}) for rank in ranks]
        wrong[family] = [rank["error"] for rank in found if "error" in rank]
        if not wrong[family]:
            wrong[family] += [rank[key] for rank in found for key in ("other bits", "far") if rank[key]]
            names = [name for rank in found for name in rank["names"]]
            assert set(names) == set(found[0]["all"])
            assert {name for name in names if names.count(name) > 1} == set(found[0]["tied"])
    score = sum(not reasons for reasons in wrong.values())
    with capsys.disabled():
        how = "traced" if is_traced else "by parameters"
        print(f"\nsmdp.torch.pipeline() on {stages} stages, {how}: {score} of {len(FAMILIES)} models")
    assert score == len(FAMILIES) == 20, {family: why for family, why in wrong.items() if why}


def split_by_torch(family: str) -> str:
    """Give why torch's own way does not split a model in the middle, or nothing."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    model, inputs = made(family)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config.use_cache = False  # torch.export knows no caches; smdp leaves them out by itself
    blocks = [name for name in find_units(model) if name.rsplit(".", 1)[-1].isdigit()]
    middle = {blocks[len(blocks) // 2]: SplitPoint.BEGINNING}
    try:
        expected = model(**inputs)["loss"]
        pipe = pipeline(model, mb_args=(), mb_kwargs=inputs, split_spec=middle)
        output = pipe(**inputs)
        found = output["loss"] if isinstance(output, dict) else output[0]
    except Exception as error:  # noqa: BLE001 - the reason is printed
        cause = error.__cause__ if str(error.__cause__ or "") else error
        return f"{type(cause).__name__}: {str(cause).splitlines()[0][:100]}"
    if pipe.num_stages != 2:
        return f"{pipe.num_stages} stages"
    return "" if abs(found - expected) < 1e-5 else f"loss {found.item()}, not {expected.item()}"


def split_all_by_torch() -> dict[str, str]:
    return {family: split_by_torch(family) for family in FAMILIES}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_torch_splits(capsys: pytest.CaptureFixture[str]) -> None:
    (reasons,) = run(split_all_by_torch, 1, timeout=280)
    score = sum(not reason for reason in reasons.values())
    with capsys.disabled():
        print(f"\ntorch.distributed.pipelining.pipeline() on 2 stages: {score} of {len(FAMILIES)} models")
        print(*(f"  {family}: {reason}" for family, reason in reasons.items() if reason), sep="\n")
    assert len(reasons) == len(FAMILIES)
    assert score > 0  # or else it was not asked rightly
