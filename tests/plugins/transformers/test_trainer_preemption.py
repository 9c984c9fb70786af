"""The Trainer on spot machines: SIGTERM to one rank, a checkpoint on all, exit code 75, and the same end."""

from __future__ import annotations

import hashlib
import os
import random
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import language_model as lm
import pytest
import torch.distributed as dist
import transformers
from torch.utils.data import DataLoader
from transformers_spawn import run

import smdp
from smdp.torch import spared_workers
from smdp.torch.mesh.agreement import on_every_rank
from smdp.transformers import DataParallel, ModelParallel, PreemptionCallback, Trainer
from smdp.transformers.preemption import spare_workers

pytestmark = pytest.mark.timeout(900)

STEPS = 12


class Signalling(transformers.TrainerCallback):
    """SIGTERM to one rank in the middle of a step, and to all its children as torchrun would do it."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if os.environ.get("VICTIM") != str(args.process_index) or state.global_step != int(os.environ["AT"]):
            return
        os.kill(os.getpid(), signal.SIGTERM)
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        # Else this would test no workers: those of an epoch are gone at its last step.
        assert bool(children) == bool(args.dataloader_num_workers)
        if children:
            subprocess.run(["kill", *children], check=True)


def plugins() -> list[Any]:
    kind = os.environ["PLUGIN"]
    if kind == "ModelParallel":
        return [ModelParallel(stages=2, microbatches=2)]
    return [DataParallel()] if kind == "DataParallel" else []


def train() -> dict[str, str]:
    """Goes on if there is a checkpoint; gives digests of all parameters, wherever the model has been cut."""
    options = {"weight_decay": 0.1, "lr_scheduler_type": "cosine", "eval_steps": 4}
    workers = int(os.environ.get("WORKERS", "0"))
    args = lm.arguments(
        max_steps=STEPS,
        eval_strategy=os.environ.get("EVALUATES", "epoch"),
        dataloader_num_workers=workers,
        dataloader_multiprocessing_context="fork" if workers else None,
        **options,
    )
    args.output_dir = os.environ["KEPT"]
    trainer = lm.trainer(
        args,
        model=lm.model(n_layer=4, resid_pdrop=0.1),
        train_dataset=lm.rows(40),  # 5 steps an epoch
        plugins=plugins(),
        callbacks=[Signalling()] + ([PreemptionCallback()] if os.environ["PLUGIN"] == "none" else []),
    )
    trainer.train(resume_from_checkpoint=any(Path(args.output_dir).glob("checkpoint-*/trainer_state.json")))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "SIGTERM no longer ends this process"
    own = {
        name: hashlib.sha256(parameter.detach().numpy().tobytes()).hexdigest()
        for name, parameter in trainer.model_wrapped.named_parameters()
    }
    parts = on_every_rank(lambda: own) if dist.is_initialized() else [own]
    found = {name: digest for part in parts for name, digest in part.items()}
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return {**found, "evaluations": str(losses)}


# All stop two steps later, where an evaluation would come: after 5 an epoch ends, after 8 none does.
@pytest.mark.parametrize(
    ("plugin", "size", "workers", "evaluates", "at"),
    [
        ("DataParallel", 2, 2, "epoch", 3),
        ("ModelParallel", 2, 0, "steps", 6),
        pytest.param("ModelParallel", 4, 0, "epoch", 3, marks=pytest.mark.slow),
    ],
)
def test_it_goes_on_to_the_same_parameters(
    plugin: str, size: int, workers: int, evaluates: str, at: int, tmp_path: Path
) -> None:
    env = {"PLUGIN": plugin, "WORKERS": str(workers), "EVALUATES": evaluates}
    whole = run(train, size, env={**env, "KEPT": str(tmp_path / "whole")}, timeout=600)
    kept = {**env, "KEPT": str(tmp_path / "kept")}
    signalled = {**kept, "VICTIM": str(random.randrange(size)), "AT": str(at)}
    outputs = run(train, size, env=signalled, exits=dict.fromkeys(range(size), 75), timeout=600)
    told = [output for output in outputs if "all ranks stop" in output]
    assert len(told) == 1 and f"ranks [{signalled['VICTIM']}] of {size} received SIGTERM" in told[0]
    saved = [path.name for path in (tmp_path / "kept").glob("checkpoint-*")]
    assert saved == [f"checkpoint-{at + 2}"]
    assert run(train, size, env=kept, timeout=600) == whole


def test_one_process_and_a_plain_trainer(tmp_path: Path) -> None:
    whole = run(train, 1, env={"PLUGIN": "none", "KEPT": str(tmp_path / "whole")})
    kept = {"PLUGIN": "none", "KEPT": str(tmp_path / "kept")}
    run(train, 1, env={**kept, "VICTIM": "0", "AT": "6"}, exits={0: 75})
    assert (tmp_path / "kept" / "checkpoint-7").is_dir()
    assert run(train, 1, env=kept) == whole


class Failing(transformers.TrainerCallback):
    """Fails in the second step of each training but the last."""

    def __init__(self, error: Exception, trainings: int = 1) -> None:
        self.error = error
        self.trainings = trainings

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1 and self.trainings:
            self.trainings -= 1
            raise self.error


def failing() -> None:
    memory = RuntimeError("CUDA out of memory.")
    for cls, own in ((Trainer, {"plugins": [DataParallel()]}), (transformers.Trainer, {})):
        for again in (True, False):
            args = lm.arguments(max_steps=2, auto_find_batch_size=again)
            callbacks = [Failing(memory)] + ([] if own else [PreemptionCallback()])
            trainer = cls(lm.model(), args, train_dataset=lm.rows(40), callbacks=callbacks, **own)
            if not again:
                with pytest.raises(RuntimeError, match="out of memory"):
                    trainer.train()
                # No callback of a plain Trainer hears of it.
                is_given = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
                assert is_given == (cls is Trainer)
            trainer.train()
            assert trainer.state.global_step == 2
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, (cls, again)
    # Whoever asked first stays asked.
    smdp.watch_preemption()
    ours = signal.getsignal(signal.SIGTERM)
    trainer.train()
    assert signal.getsignal(signal.SIGTERM) is ours


def test_handlers_after_a_training_that_failed() -> None:
    run(failing, 1)


def loader(context: str | None) -> DataLoader[Any]:
    return DataLoader(lm.rows(8), num_workers=1, multiprocessing_context=context)


@pytest.mark.parametrize("context", [None, "fork"])
def test_forked_workers_are_spared(context: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.get_start_method", lambda allow_none: "fork")
    spared = loader(context)
    spare_workers(spared)
    assert type(spared.multiprocessing_context) is type(spared_workers())


@pytest.mark.parametrize("context", [None, "spawn", "forkserver"])
def test_a_start_method_that_was_asked_for_stays(
    context: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("multiprocessing.get_start_method", lambda allow_none: "spawn")
    left = loader(context)
    asked = left.multiprocessing_context
    spare_workers(left)
    assert left.multiprocessing_context is asked
    assert f"workers of the data loader use the start method '{context or 'spawn'}'" in caplog.text


def switched_off() -> None:
    """SIGTERM ends it, as without smdp."""
    trainer = lm.trainer(lm.arguments(max_steps=4), plugins=[DataParallel(preemption=False)])
    assert not any(isinstance(one, PreemptionCallback) for one in trainer.callback_handler.callbacks)
    os.kill(os.getpid(), signal.SIGTERM)


def test_it_can_be_switched_off() -> None:
    run(switched_off, 2, exits={0: -signal.SIGTERM, 1: -signal.SIGTERM})


def test_transformers_own_way_is_refused(tmp_path: Path) -> None:
    args = transformers.TrainingArguments(
        str(tmp_path), enable_jit_checkpoint=True, use_cpu=True, report_to=[]
    )
    before = signal.getsignal(signal.SIGTERM)
    try:
        trainer = Trainer(lm.model(), args, train_dataset=lm.rows(8), plugins=[DataParallel()])
        with pytest.raises(ValueError, match=re.escape("enable_jit_checkpoint=True saves only on the ranks")):
            trainer.train()
    finally:
        signal.signal(signal.SIGTERM, before)
