"""Checkpoints of Trainers with ModelParallel: read by from_pretrained(), and gone on from bit by bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import language_model as lm
import model_parallel_trainers as mp
import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers_spawn import run

import smdp.torch
from smdp.torch.mesh.agreement import on_every_rank

pytestmark = pytest.mark.timeout(240)

SAVING = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}


def digests(trainer: Any) -> dict[str, str]:
    """Of this job's parameters and their optimizer state, by name, of all ranks together."""
    import hashlib

    optimizer = trainer.optimizer.optimizer
    own = {}
    for name, parameter in trainer.model_wrapped.named_parameters():
        state = [value for _, value in sorted(optimizer.state.get(parameter, {}).items())]
        group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
        digest = hashlib.sha256(str((group["weight_decay"], group["lr"], group["betas"])).encode())
        for tensor in (parameter.detach(), *state):
            digest.update(torch.as_tensor(tensor).numpy().tobytes())
        own[name] = digest.hexdigest()
    return {name: text for part in on_every_rank(lambda: own) for name, text in part.items()}


def tiny(**options: Any) -> Any:
    """With dropout, and weights that are decayed or not by their names."""
    args = mp.arguments(**{**SAVING, "weight_decay": 0.1, "lr_scheduler_type": "cosine", **options})
    return mp.trainer(args, model=lm.model(n_layer=4, resid_pdrop=0.1), train_dataset=mp.ragged(64))


def adapted() -> list[str]:
    """Only the adapter is trained and saved, and can be gone on with."""
    from peft import LoraConfig, get_peft_model

    def make() -> Any:
        torch.manual_seed(1)
        config = LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.0, modules_to_save=["ln_f"])
        return mp.trainer(mp.arguments("lora", **SAVING), model=get_peft_model(lm.model(n_layer=4), config))

    trainer, resumed = make(), make()
    trainer.train()
    folder = Path(trainer.args.output_dir, "checkpoint-3")
    resumed.train(resume_from_checkpoint=str(folder))
    assert lm.losses(resumed) == lm.losses(trainer)
    weights = load_file(folder / "adapter_model.safetensors")
    assert len(weights) == 4 * 2 + 2
    return sorted(path.name for path in folder.iterdir())


def whole() -> Any:
    """What is written into the folder of this test run stays for those that go on."""
    trainer = tiny()
    trainer.args.output_dir = os.environ["KEPT"]
    trainer.train()
    trainer.save_model(os.path.join(os.environ["KEPT"], "final"))
    trainer.save_model(os.path.join(os.environ["KEPT"], "final"))  # once more, over what is there
    found = {"losses": lm.losses(trainer), "digests": digests(trainer)}
    os.environ["CHECKPOINT"] = os.path.join(os.environ["KEPT"], "checkpoint-3")
    os.environ["KEPT"] += "/resumed"
    return {**found, "resumed": again(), "adapter": adapted()}


def killed() -> None:
    """Rank 1 dies in the middle of an epoch."""

    class Killing(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 5 and args.process_index == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = tiny()
    trainer.args.output_dir = os.environ["KEPT"]
    trainer.add_callback(Killing())
    trainer.train()


def again() -> Any:
    """Goes on from the middle; with a model that has no memory before it is split."""
    with smdp.torch.delayed_initialization():
        model = lm.model(n_layer=4, resid_pdrop=0.1)
    trainer = tiny()
    resumed = mp.trainer(trainer.args, model=model, train_dataset=mp.ragged(64))
    resumed.args.output_dir = os.environ["KEPT"]
    resumed.train(resume_from_checkpoint=os.environ.get("CHECKPOINT", True))
    return {"losses": lm.losses(resumed), "digests": digests(resumed)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("trainer")
    first, second = run(whole, 2, env={"KEPT": str(folder)})
    assert first == second
    return folder, first


def test_from_pretrained(saved: tuple[Path, Any]) -> None:
    folder, _ = saved
    for name in ("checkpoint-6", "final"):
        files = {path.name for path in (folder / name).iterdir()}
        assert {"config.json", "generation_config.json", "training_args.bin"} <= files
        assert {"model-00001-of-00002.safetensors", "model.safetensors.index.json"} <= files
        assert ("trainer_state.json" in files) == (name != "final")
        assert "optimizer.pt" not in files
    one = transformers.GPT2LMHeadModel.from_pretrained(folder / "checkpoint-6", local_files_only=True)
    other, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "final", local_files_only=True, output_loading_info=True
    )
    assert not any(told.values()), told
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    trained = one.eval()(**torch.utils.data.default_collate(mp.ragged(8))).loss
    assert trained < lm.model(n_layer=4).eval()(**torch.utils.data.default_collate(mp.ragged(8))).loss - 0.3


def test_resume(saved: tuple[Path, Any]) -> None:
    """From the middle of a run that has ended."""
    expected = saved[1]
    assert expected["resumed"] == {name: expected[name] for name in ("losses", "digests")}


@pytest.mark.slow
def test_resume_of_a_killed_run_in_other_stages(saved: tuple[Path, Any], tmp_path: Path) -> None:
    _, expected = saved
    env = {"KEPT": str(tmp_path)}
    left, _ = run(killed, 2, env=env, exits={0: 1, 1: -signal.SIGKILL})
    assert "rank 1" in left
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3"]
    (tmp_path / "checkpoint-5" / "model_parallel").mkdir(parents=True)  # one that was begun
    for found in run(again, 4, env={**env, "STAGES": "4"}, timeout=200):
        assert found["losses"] == expected["losses"]
        assert found["digests"] == expected["digests"]


def test_lora(saved: tuple[Path, Any]) -> None:
    files = saved[1]["adapter"]
    assert {"adapter_config.json", "adapter_model.safetensors", "model_parallel"} <= set(files)
    assert not any(name.startswith("model") and name.endswith(".safetensors") for name in files)


def test_resume_with_divided_layers(saved: tuple[Path, Any], tmp_path: Path) -> None:
    """The sums over two ranks are rounded in another order."""
    folder, expected = saved
    env = {"KEPT": str(tmp_path), "CHECKPOINT": str(folder / "checkpoint-3"), "STAGES": "1", "TENSOR": "2"}
    for found in run(again, 2, env=env):
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
