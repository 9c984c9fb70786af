"""Weights as safetensors, of replicas too; and checkpoints that leave them to such files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from pipeline_models import Language, adam, batches, language_loss, made
from torch_spawn import run

import smdp.torch


def written_and_read() -> None:
    from smdp.torch.checkpoints import checkpoint
    from smdp.torch.checkpoints.safetensors_files import read_safetensors

    folder = Path(os.environ["KEPT"])
    first, second = batches(2)
    pipe = smdp.torch.pipeline(made(Language), stages=2, microbatches=4, example_inputs=first)
    optimizer = adam(pipe)
    pipe.train_step(first, language_loss)
    optimizer.step()
    checkpoint.save_safetensors(folder / "weights", pipe)
    checkpoint.save(folder / "state", pipe, optimizer, weights=False)
    assert not any(path.name == "model.safetensors" for path in (folder / "weights").iterdir())

    other = smdp.torch.pipeline(made(Language), stages=4, microbatches=4, schedule="gpipe")
    fresh = adam(other)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    checkpoint.load(folder / "state", other, fresh, weights=False)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    checkpoint.load_safetensors(folder / "weights", other)
    for one in (optimizer, fresh):
        one.zero_grad()
    losses = [each.train_step(second, language_loss) for each in (pipe, other)]
    assert torch.equal(losses[0], losses[1])
    optimizer.step()
    fresh.step()
    # All ranks of the first replica write what they have now.
    checkpoint.save_safetensors(folder / "one", pipe)
    checkpoint.save_safetensors(folder / "other", other)
    one, two = (read_safetensors(folder / name) for name in ("one", "other"))
    assert one is not None and two is not None and one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.allclose(tensor, two[name], atol=1e-6), name

    assert checkpoint.has_safetensors(folder / "one") and not checkpoint.has_safetensors(folder)
    with pytest.raises((ValueError, RuntimeError), match=r"contains neither model\.safetensors nor"):
        checkpoint.load_safetensors(folder, pipe)
    larger = smdp.torch.pipeline(made(lambda: Language(9)), stages=2, microbatches=4)
    with pytest.raises(
        (ValueError, RuntimeError), match=r"does not contain 'blocks\.8\..*, which the model has"
    ):
        checkpoint.load_safetensors(folder / "one", larger)


def test_written_and_read(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    run(written_and_read, 4, env={"KEPT": str(tmp_path)})
