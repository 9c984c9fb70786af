"""Checkpoints of divided models: any number of slices and replicas goes on with the same bits."""

from __future__ import annotations

import copy
import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from divided_models import PLAN, VOCABULARY, Fused, Model, divide_fused, loss_of, own_part
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_spawn import run

import smdp.torch
from smdp.torch.checkpoints import checkpoint

HAS_SAFETENSORS = importlib.util.find_spec("safetensors") is not None
MOMENTS = ("exp_avg", "exp_avg_sq")


def whole() -> Model:
    torch.manual_seed(0)
    return Model(tied=True, key_heads=2)


def made(degree: int, *, is_sharded: bool = False, has_replicas: bool = True) -> tuple[nn.Module, Optimizer]:
    model: nn.Module = whole()
    if degree > 1:
        smdp.torch.tensor_parallel(model, degree, PLAN)
    if has_replicas:
        model = smdp.torch.DistributedDataParallel(model)
    plain = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, smdp.torch.ShardedOptimizer(plain, model) if is_sharded else plain  # type: ignore[arg-type]


def staged() -> tuple[nn.Module, Optimizer]:
    """Two stages of two slices."""
    model = smdp.torch.tensor_parallel(whole(), 2, PLAN)
    pipe = smdp.torch.pipeline(model, 2, 2, "1f1b", {"tokens": torch.zeros(2, 7, dtype=torch.long)})
    return pipe, torch.optim.AdamW(pipe.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        tokens = torch.randint(VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(step))
        loss_of(model, tokens).backward()
        optimizer.step()


def read_alone(folder: Path) -> dict[str, Tensor]:
    """What torch reads without smdp into a whole model and its optimizer's state."""
    model = whole()
    found = {f"model.{name}": value for name, value in model.state_dict().items() if name != "head.weight"}
    for name, parameter in model.named_parameters():
        found |= {f"optimizer.state.{name}.{key}": torch.zeros_like(parameter) for key in MOMENTS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this is a single process
        dcp.load(found, checkpoint_id=folder, no_dist=True)
    return found


def check(model: nn.Module, optimizer: Optimizer, expected: dict[str, Tensor]) -> None:
    """Every rank's part has the bits of the whole."""
    is_wrapped = isinstance(model, smdp.torch.DistributedDataParallel)
    for name, parameter in (model.module if is_wrapped else model).named_parameters():
        assert torch.equal(parameter, own_part(expected[f"model.{name}"], parameter)), name
        for key in MOMENTS if parameter in optimizer.state else ():
            part = own_part(expected[f"optimizer.state.{name}.{key}"], parameter)
            assert torch.equal(optimizer.state[parameter][key], part), (name, key)


def changes_the_layout() -> None:
    """From two slices of two replicas to four slices, four replicas, two stages of two slices, and back."""
    folder = Path(os.environ["SAVE"])
    first, first_optimizer = made(2)
    train(first, first_optimizer, range(2))
    checkpoint.save(folder / "plain", first, first_optimizer)
    expected = read_alone(folder / "plain")
    assert expected["model.blocks.0.key.weight"].any()
    assert expected["optimizer.state.embedding.weight.exp_avg"].any()
    check(first, first_optimizer, expected)

    sharded, its_optimizer = made(2, is_sharded=True)
    train(sharded, its_optimizer, range(2))
    checkpoint.save(folder / "two", sharded, its_optimizer)
    check(sharded, first_optimizer, read_alone(folder / "two"))

    last = folder / "two"
    for number, (degree, options) in enumerate(
        [(4, {"has_replicas": False}), (4, {"is_sharded": True}), (1, {"is_sharded": True}), (1, {}), (2, {})]
    ):
        model, optimizer = made(degree, **options)
        checkpoint.load(last, model, optimizer)
        check(model, optimizer, expected)
        last = folder / str(number)
        checkpoint.save(last, model, optimizer)
        for key, value in read_alone(last).items():
            assert torch.equal(value, expected[key]), (number, key)

    pipe, its_own = staged()
    checkpoint.load(last, pipe, its_own)
    check(pipe, its_own, expected)
    assert len(list(pipe.parameters())) < len(list(first.parameters()))
    last = folder / "stages"
    checkpoint.save(last, pipe, its_own)
    for key, value in read_alone(last).items():
        assert torch.equal(value, expected[key]), key
    if HAS_SAFETENSORS:
        checkpoint.save_safetensors(folder / "files", pipe)
        checkpoint.load_safetensors(folder / "files", pipe)
        check(pipe, its_own, expected)

    again, optimizer = made(2, is_sharded=True)
    checkpoint.load(last, again, optimizer)
    if HAS_SAFETENSORS:
        checkpoint.load_safetensors(folder / "files", again)
    for each in ((first, first_optimizer), (again, optimizer)):
        train(*each, range(2, 4))
    assert all(map(torch.equal, again.parameters(), first.parameters()))


def saves_ranges_once() -> None:
    """Of a layer of which two ranks hold the same range, with shards that are cut elsewhere on each rank."""
    folder = Path(os.environ["SAVE"])
    for is_loaded in (False, True):
        torch.manual_seed(int(is_loaded))
        model = smdp.torch.DistributedDataParallel(divide_fused(Fused()))
        plain = torch.optim.AdamW(model.parameters())
        optimizer = smdp.torch.ShardedOptimizer(plain, model)
        if is_loaded:
            checkpoint.load(folder / "fused", model, optimizer)
        else:
            model(torch.ones(2, 5)).backward()
            optimizer.step()
            checkpoint.save(folder / "fused", model, optimizer)
        both = {
            "model.both.weight": torch.zeros(12, 5),
            "optimizer.state.both.weight.exp_avg": torch.zeros(12, 5),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(both, checkpoint_id=folder / "fused", no_dist=True)
        weight = model.module.both.weight
        assert torch.equal(weight, own_part(both["model.both.weight"], weight))
        expected = own_part(both["optimizer.state.both.weight.exp_avg"], weight).flatten()
        assert expected.all()
        for piece, state in optimizer.local_state()["both.weight"]:
            assert torch.equal(state["exp_avg"], expected[piece.begin : piece.end])
    if HAS_SAFETENSORS:
        checkpoint.save_safetensors(folder / "fused files", model)
        checkpoint.load_safetensors(folder / "fused files", model)
    assert torch.equal(weight, own_part(both["model.both.weight"], weight))


def refuses() -> None:
    folder = Path(os.environ["SAVE"])
    model, _ = made(2)
    factored = torch.optim.Adafactor(model.parameters())
    train(model, factored, range(1))
    with pytest.raises(ValueError, match=r"has shape \[\d+, 1\], and parameter '.*' has shape .* is divided"):
        checkpoint.save(folder / "factored", model, factored)
    for width in (32, 28):
        other = nn.ModuleDict({"head": nn.Linear(width, 8)})
        smdp.torch.tensor_parallel(other, 4, {"head": "rowwise"})
        if width == 32:
            checkpoint.save(folder / "other", other)
    with pytest.raises(ValueError, match=r"'head.weight' is float32\[8, 32\] in .* float32\[8, 28\] in the"):
        checkpoint.load(folder / "other", other)


def takes_whole_states() -> None:
    """A divided model loads the state dict of a whole one, and keeps its cuts."""
    plain, other = whole(), whole()
    plain_state = copy.deepcopy(plain.state_dict())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    model = smdp.torch.tensor_parallel(plain, 4, PLAN)
    for assign in (False, True):
        model.load_state_dict(copy.deepcopy(other.state_dict()), assign=assign)
        for name, parameter in other.named_parameters():
            own = model.get_parameter(name)
            assert torch.equal(own, own_part(parameter, own)), name
        assert model.head.weight.shape[0] < VOCABULARY
        own_state = model.state_dict()
        model.load_state_dict(own_state)
        assert all(map(torch.equal, own_state.values(), model.state_dict().values()))
    copied = copy.deepcopy(model)
    copied.load_state_dict(plain_state)
    assert torch.equal(copied.head.weight, own_part(plain_state["head.weight"], model.head.weight))
    # The head of BERT and its decoder hold the same bias.
    outer = nn.Module()
    outer.decoder = nn.Linear(8, 4)
    outer.bias = outer.decoder.bias
    given = copy.deepcopy(outer.state_dict())
    smdp.torch.tensor_parallel(outer, 4, {"decoder": "colwise"}).load_state_dict(given)
    assert torch.equal(outer.bias, own_part(given["bias"], outer.bias)) and outer.bias is outer.decoder.bias


def all_of_it() -> None:
    changes_the_layout()
    saves_ranges_once()
    refuses()
    takes_whole_states()


def test_divided_checkpoints(tmp_path: Path) -> None:
    run(all_of_it, 4, env={"SAVE": str(tmp_path)})


def language_models() -> list[Any]:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16, "vocab_size": 31}
    torch.manual_seed(0)
    return [
        LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, intermediate_size=32)),
        GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=16, vocab_size=31, n_positions=16)),
    ]


def writes_safetensors() -> None:
    """A plain process reads the files, and any number of slices reads theirs."""
    folder = Path(os.environ["SAVE"])
    for number, alone in enumerate(language_models()):
        for degree in (2, 4):
            saved = folder / f"{number} {degree}"
            model = smdp.torch.tensor_parallel(copy.deepcopy(alone), degree)
            checkpoint.save_safetensors(saved, model)
            if dist.get_rank() == 0:
                alone.config.save_pretrained(saved)
            dist.barrier()
            read = type(alone).from_pretrained(saved)
            for name, value in alone.state_dict().items():
                assert torch.equal(value, read.state_dict()[name]), name
            assert len(list(saved.glob("*.safetensors"))) == degree
        for degree in (4, 2):
            model = language_models()[number]
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            smdp.torch.tensor_parallel(model, degree)
            checkpoint.load_safetensors(folder / f"{number} 2", model)
            for name, parameter in alone.named_parameters():
                own = model.get_parameter(name)
                assert torch.equal(own, own_part(parameter, own)), name
        wrapped = smdp.torch.DistributedDataParallel(language_models()[number])
        checkpoint.save_safetensors(folder / f"{number} whole", wrapped)
        checkpoint.load_safetensors(folder / f"{number} whole", model)


def test_divided_safetensors(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("safetensors")
    run(writes_safetensors, 4, env={"SAVE": str(tmp_path)})
