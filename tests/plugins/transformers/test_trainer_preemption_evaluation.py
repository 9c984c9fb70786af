"""The evaluation that a stopped Trainer makes up for when it goes on, in this process alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import language_model as lm
import pytest
import transformers

import smdp
from smdp import preemption
from smdp.torch import spared_workers
from smdp.transformers import DataParallel, Trainer

EVERY_TWO = {"eval_strategy": "steps", "eval_steps": 2}
SCORED = {**EVERY_TWO, "metric_for_best_model": "score", "load_best_model_at_end": True}
AND_SAVED = {**SCORED, "save_strategy": "steps", "save_steps": 2}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SMDP_TEST_FOLDER", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    yield
    smdp.shutdown()
    signal.signal(signal.SIGTERM, before)


class Scripted(transformers.TrainerCallback):
    """Gives `score` by step, keeps which keys evaluations were to ignore, and may send SIGTERM in a step."""

    def __init__(self, scores: dict[int, float], at: int | None) -> None:
        self.scores = scores
        self.at = at

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
        metrics["eval_score"] = self.scores.get(state.global_step, 0.0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def make(
    folder: Path,
    at: int | None = None,
    scores: dict[int, float] | None = None,
    patience: int | None = None,
    cls: Any = Trainer,
    **options: Any,
) -> Any:
    """A Trainer with 5 steps an epoch, which stops after the step that follows step `at`."""
    args = lm.arguments(**{"use_cpu": True, **options})
    args.output_dir = str(folder)
    stop = [] if patience is None else [transformers.EarlyStoppingCallback(patience)]
    trainer = cls(
        lm.model(resid_pdrop=0.1),
        args,
        train_dataset=lm.rows(40),
        eval_dataset=lm.rows(21, 160),
        callbacks=[Scripted(scores or {}, at), *stop],
        **({"plugins": [DataParallel()]} if cls is Trainer else {}),
    )
    trainer.ignored = []
    evaluate = trainer.evaluate

    def noting(**options: Any) -> Any:
        trainer.ignored.append(options["ignore_keys"])
        return evaluate(**options)

    trainer.evaluate = noting
    return trainer


def preempt(folder: Path, at: int, **options: Any) -> str:
    """Train until the signal; give the checkpoint."""
    preemption.forget()
    with pytest.raises(SystemExit, match="75"):
        make(folder, at, **options).train()
    preemption._received.clear()
    preemption.forget()
    return str(folder / f"checkpoint-{at + 1}")


def evaluations(trainer: Any) -> list[tuple[int, float]]:
    log = trainer.state.log_history
    return [(entry["step"], entry["eval_loss"]) for entry in log if "eval_loss" in entry]


def result(trainer: Any) -> dict[str, Any]:
    state = trainer.state
    return {
        "weights": lm.weights_hash(trainer.model),
        "steps": state.global_step,
        "evaluations": evaluations(trainer),
        "best": (state.best_global_step, state.best_metric),
    }


@pytest.mark.parametrize(
    ("at", "options"),
    [
        pytest.param(3, {**EVERY_TWO, "max_steps": 8}, id="in an epoch"),
        pytest.param(9, {"eval_strategy": "epoch", "max_steps": 10}, id="at the last step of an epoch"),
        pytest.param(6, {"eval_strategy": "epoch", "max_steps": 7}, id="at the last step, in an epoch"),
        pytest.param(
            3,
            {**SCORED, "save_strategy": "best", "scores": {2: 1.0, 4: 3.0, 6: 2.0}, "max_steps": 8},
            id="best",
        ),
        pytest.param(
            7, {**AND_SAVED, "scores": {4: 1.0, 8: 3.0}, "max_steps": 8}, id="best at the last step"
        ),
        pytest.param(3, {**AND_SAVED, "scores": {2: 1.0}, "patience": 1}, id="early stopping"),
    ],
)
def test_it_is_as_if_it_had_not_stopped(at: int, options: dict[str, Any], tmp_path: Path) -> None:
    whole = make(tmp_path / "whole", **options)
    whole.train(ignore_keys_for_eval=["past"])
    checkpoint = preempt(tmp_path / "kept", at, **options)
    resumed = make(tmp_path / "kept", **options)
    resumed.train(checkpoint, ignore_keys_for_eval=["past"])
    assert at + 1 in dict(evaluations(resumed))
    assert result(resumed) == result(whole)
    assert set(map(str, resumed.ignored)) == {"['past']"}


def test_what_is_made_up_for_is_not_due_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {**EVERY_TWO, "save_strategy": "steps", "save_steps": 5}
    checkpoint = preempt(tmp_path, 3, **options)
    # It leaves out the one at step 4.
    make(tmp_path, max_steps=5, cls=transformers.Trainer, **options).train(checkpoint)
    resumed = make(tmp_path, max_steps=6, **options)
    resumed.train(str(tmp_path / "checkpoint-5"))
    assert [step for step, _ in evaluations(resumed)] == [2, 5, 6]


def test_it_goes_on_from_a_plain_trainers_checkpoint(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    make(tmp_path, max_steps=2, cls=transformers.Trainer, **options).train()
    make(tmp_path, max_steps=4, **options).train(str(tmp_path / "checkpoint-2"))
    assert (tmp_path / "checkpoint-4" / "trainer_state.json").exists()


def test_a_finished_run_trains_no_further(tmp_path: Path) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 7, "max_steps": 7}
    whole = make(tmp_path, **options)
    whole.train()
    again = make(tmp_path, **options)
    again.train(str(tmp_path / "checkpoint-7"))
    assert result(again) == result(whole)


def test_workers_of_evaluation_are_spared_too(tmp_path: Path) -> None:
    trainer = make(tmp_path, dataloader_num_workers=1)
    for loader in (trainer.get_train_dataloader(), trainer.get_eval_dataloader()):
        own = getattr(loader, "base_dataloader", loader)
        assert type(own.multiprocessing_context) is type(spared_workers())
