"""Checkpoints of models in stages: any number of stages goes on with the same bits."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch_spawn import run

WORDS, WIDTH, LENGTH = 40, 16, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.dropout(self.down(self.up(x).relu()))


class Language(nn.Module):
    """Tied embedding, a parameter and a buffer outside of all units, running statistics, dropout."""

    scale: Tensor

    def __init__(self, blocks: int = 6, width: int = WIDTH) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.randn(LENGTH, width))
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.scale * self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), batch["ids"].flatten())


def batch(step: int) -> dict[str, Tensor]:
    return {"ids": torch.randint(0, WORDS, (8, LENGTH), generator=torch.Generator().manual_seed(step))}


def make(stages: int, *, virtual_stages: int = 1, **shape: int) -> tuple[Any, torch.optim.Optimizer]:
    from smdp.torch.model_parallel import pipeline

    torch.manual_seed(3)
    schedule = "1f1b" if virtual_stages == 1 else "interleaved_1f1b"
    pipe = pipeline(
        Language(**shape), stages, microbatches=4, schedule=schedule, virtual_stages=virtual_stages
    )
    return pipe, optimizer_of(pipe)


def optimizer_of(pipe: nn.Module) -> torch.optim.Optimizer:
    heavy = [parameter for parameter in pipe.parameters() if parameter.dim() > 1]
    light = [parameter for parameter in pipe.parameters() if parameter.dim() <= 1]
    return torch.optim.AdamW(
        [{"params": heavy, "weight_decay": 0.1}, {"params": light, "weight_decay": 0.0, "lr": 3e-3}], lr=1e-2
    )


def train(pipe: Any, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        losses.append(pipe.train_step(batch(step), loss_of).item())
        optimizer.step()
    return losses


def digest(tensor: Tensor) -> str:
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode() + data).hexdigest()


def digests(pipe: Any, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Of all that training depends on."""
    found = {name: digest(value) for name, value in pipe.state_dict().items()}
    for name, parameter in pipe.named_parameters():
        for key, value in optimizer.state[parameter].items():
            found[f"{name}: {key}"] = digest(value)
    for group in optimizer.param_groups:
        names = [
            name for name, parameter in pipe.named_parameters() for own in group["params"] if own is parameter
        ]
        values = {key: value for key, value in group.items() if key != "params"}
        found.update({f"{name}: group": json.dumps(values, sort_keys=True) for name in names})
    return found


def report(**values: Any) -> None:
    print("REPORT " + json.dumps(values))


def reports(outputs: list[str]) -> list[dict[str, Any]]:
    return [json.loads(output.rsplit("REPORT ", 1)[1].splitlines()[0]) for output in outputs]


def joined(told: list[dict[str, Any]]) -> dict[str, str]:
    """All ranks' digests; those that several ranks have are the same."""
    found: dict[str, str] = {}
    for each in told:
        for name, value in each["digests"].items():
            assert found.setdefault(name, value) == value, name
    return found


def go_on() -> None:
    """Train or load, save, and train on: as the environment says."""
    from smdp.torch.checkpoints import checkpoint

    stages, virtual = int(os.environ["STAGES"]), int(os.environ.get("VIRTUAL", "1"))
    pipe, optimizer = make(stages, virtual_stages=virtual)
    if "LOAD" in os.environ:
        checkpoint.load(os.environ["LOAD"], pipe, optimizer)
    else:
        train(pipe, optimizer, range(2))
        for group in optimizer.param_groups:
            group["lr"] /= 2  # as a learning rate schedule does
    found = digests(pipe, optimizer)
    if "SAVE" in os.environ:
        checkpoint.save(os.environ["SAVE"], pipe, optimizer)
    losses = train(pipe, optimizer, range(2, 4))
    report(digests=found, losses=losses, parameters=len(list(pipe.parameters())))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """What 2 stages have saved, and what they then did."""
    folder = tmp_path_factory.mktemp("two")
    return folder, reports(run(go_on, 2, env={"STAGES": "2", "SAVE": str(folder)}))


def test_two_four_one(two: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    folder, told = two
    four = reports(run(go_on, 4, env={"STAGES": "4", "LOAD": str(folder), "SAVE": str(tmp_path)}))
    (one,) = reports(run(go_on, 1, env={"STAGES": "1", "LOAD": str(tmp_path)}))
    assert "words.weight: exp_avg" in joined(told) and "blocks.5.norm.running_mean" in joined(told)
    assert joined(told) == joined(four) == one["digests"]
    assert one["parameters"] > max(each["parameters"] for each in told + four)
    for each in told + four:
        # The same forward, to the same bits; tied gradients then add up in another order.
        assert each["losses"][0] == one["losses"][0]
        assert each["losses"] == pytest.approx(one["losses"], abs=1e-6)


def test_virtual_stages_and_replicas(two: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    folder, told = two
    variables = {"STAGES": "2", "VIRTUAL": "2", "LOAD": str(folder), "SAVE": str(tmp_path)}
    replicas = reports(run(go_on, 4, env=variables))
    assert joined(told) == joined(replicas)
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("__*.distcp"))]
    assert min(sizes[:2]) > 0 and not any(sizes[2:]), "only the first replica writes"


def test_torch_alone_reads_it(two: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, told = two
    model = Language()
    state = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load({"model": state}, checkpoint_id=folder)
    expected = joined(told)
    assert all(digest(value) == expected[name] for name, value in model.state_dict().items())
    keys = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    assert "optimizer.state.words.weight.exp_avg_sq" in keys
    assert "optimizer.param_groups.places.weight_decay" in keys
    assert "model.head.weight" not in keys, "a tied weight is there once"


def check_state_dict() -> None:
    pipe, _ = make(2)
    torch.manual_seed(3)
    whole = Language().state_dict()
    own = pipe.state_dict()
    assert all(torch.equal(own[name], whole[name]) for name in own)
    assert list(own) == [name for name in whole if name in own]
    assert {"scale", "head.weight", "words.weight"} <= own.keys() and "hidden" not in own
    told: list[list[str]] = [[]] * 2
    dist.all_gather_object(told, list(own))
    assert set(told[0]) | set(told[1]) == whole.keys()
    assert set(told[0]) & set(told[1]) == {"scale", "head.weight", "words.weight"}
    assert ("blocks.5.norm.running_var" in own) == (dist.get_rank() == 1)

    changed = {name: value + 1 for name, value in whole.items()}
    assert tuple(pipe.load_state_dict(changed)) == ([], [])
    pipe.load_state_dict({name: changed[name] for name in own})
    assert all(torch.equal(value, changed[name]) for name, value in pipe.state_dict().items())
    assert pipe.state_dict(prefix="a.").keys() == {"a." + name for name in own}

    lacking = {name: value for name, value in whole.items() if name != "scale"}
    with pytest.raises(ValueError, match=r"lacks 'scale', which stages \[\d\] of the model hold"):
        pipe.load_state_dict(lacking)
    with pytest.raises(
        ValueError, match=r"contains 'scales', which the model does not have \(the most .* 'scale'\)"
    ):
        pipe.load_state_dict({**whole, "scales": torch.zeros(())})
    with pytest.raises(
        ValueError, match=r"'words.weight' is \[2\] in the state dict, but \[40, 16\] in the model"
    ):
        pipe.load_state_dict({**whole, "words.weight": torch.zeros(2)}, strict=False)
    with pytest.raises(ValueError, match="assign"):
        pipe.load_state_dict(whole, assign=True)
    assert tuple(pipe.load_state_dict({**lacking, "more": 1}, strict=False)) == (["scale"], ["more"])
    assert not torch.equal(pipe.state_dict()["scale"], whole["scale"]), "it was not in what was loaded"


def test_state_dict() -> None:
    run(check_state_dict)


def check_refusals() -> None:
    from smdp.torch.checkpoints import checkpoint

    folder, alone = Path(os.environ["SAVE"]), Path(os.environ["SAVE"]).with_name("alone")
    pipe, optimizer = make(2)
    train(pipe, optimizer, range(1))
    checkpoint.save(folder, pipe, optimizer)
    checkpoint.save(alone, pipe)

    with pytest.raises(ValueError, match=r"saved already contains a checkpoint\. Save to another folder"):
        checkpoint.save(folder, pipe, optimizer)
    with pytest.raises(ValueError, match=r"nowhere does not contain a complete checkpoint: \.metadata"):
        checkpoint.load(folder.with_name("nowhere"), pipe)
    with pytest.raises(ValueError, match=r"alone contains no optimizer state\. Call load"):
        checkpoint.load(alone, pipe, optimizer)
    stranger = torch.optim.AdamW([torch.zeros(2, 5, requires_grad=True)])
    with pytest.raises(
        ValueError, match=r"AdamW holds a parameter of shape \[2, 5\] that does not belong to this rank"
    ):
        checkpoint.save(folder.with_name("other"), pipe, stranger)
    (folder.with_name("file")).touch()
    with pytest.raises(RuntimeError, match=r"cannot save the checkpoint .*file.*rank [01]: "):
        checkpoint.save(folder.with_name("file") / "below", pipe)

    # Whatever only one stage finds out stops all of them, before anything has changed.
    larger, _ = make(2, blocks=7)
    before = {name: value.clone() for name, value in larger.state_dict().items()}
    with pytest.raises(
        (ValueError, RuntimeError),
        match=r"saved does not contain 'blocks\.6\.norm\.weight', which the model has",
    ):
        checkpoint.load(folder, larger)
    assert all(torch.equal(value, before[name]) for name, value in larger.state_dict().items())
    smaller, _ = make(2, blocks=5)
    with pytest.raises(
        ValueError, match=r"saved contains 'blocks\.5\.norm\.weight'.* and \d+ more, which the model does"
    ):
        checkpoint.load(folder, smaller)
    pipe.module.blocks[5].down.to(torch.float64)
    with pytest.raises(
        (ValueError, RuntimeError),
        match=r"'blocks.5.down.weight' is float32\[16, 32\] in .*, but float64\[16, 32\]",
    ):
        checkpoint.load(folder, pipe)
    pipe.module.blocks[5].down.to(torch.float32)
    one_group = torch.optim.AdamW(pipe.parameters())
    with pytest.raises(
        ValueError, match=r"weight_decay = 0\.\d for parameter .* in one group of the optimizer"
    ):
        checkpoint.load(folder, pipe, one_group)
    partly = folder.with_name("partly")
    checkpoint.save(partly, pipe, torch.optim.AdamW(list(pipe.parameters())[1:]))
    with pytest.raises(
        (ValueError, RuntimeError), match=r"has no optimizer state for parameter '(places|words.weight)'"
    ):
        checkpoint.load(partly, pipe, optimizer)
    checkpoint.load(folder, pipe, optimizer)

    sys.modules["safetensors"] = None  # type: ignore[assignment]
    with pytest.raises(ImportError, match="pip install safetensors"):
        checkpoint.save_safetensors(partly, pipe)


def test_refusals(tmp_path: Path) -> None:
    run(check_refusals, env={"SAVE": str(tmp_path / "saved")})
