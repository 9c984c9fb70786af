"""Preemption with the Trainer: all ranks save a checkpoint at the same step and exit for a restart."""

from __future__ import annotations

import multiprocessing
from typing import Any

from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

import smdp
from smdp import preemption
from smdp.torch import spared_workers
from smdp.torch.plugin_support import find_ranks

_log = logging.get_logger(__name__)


class PreemptionCallback(TrainerCallback):
    """Saves a checkpoint when a rank receives SIGTERM, on all ranks after the same step, and exits.

    The exit code is 75, by which a scheduler can tell that the job should start again. smdp's Trainer adds
    this callback itself. After every optimizer step the ranks check whether one of them has received the
    signal. An evaluation that is due at that step is skipped. smdp's Trainer makes up for it when training
    resumes, but other Trainers do not. If training fails, smdp's Trainer restores the effect of SIGTERM at
    once, and other Trainers at the end of the next training.
    """

    def __init__(self) -> None:
        self._is_watching = False
        self._is_leaving = False
        self._group: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts watching SIGTERM.

        Raises:
            ValueError: `enable_jit_checkpoint` is set, with which transformers handles the signal itself.
        """
        if args.enable_jit_checkpoint:
            raise ValueError(
                "[smdp] enable_jit_checkpoint=True saves only on the ranks that receive SIGTERM, but the"
                " plugins save on all ranks. Remove it, or pass preemption=False to the plugins."
            )
        self._is_watching = preemption.can_watch()
        if not self._is_watching:
            _log.warning(
                "[smdp] SIGTERM is not watched, because training does not run in the main thread. Call"
                " smdp.watch_preemption() in the main thread first."
            )
            return
        preemption.watch()
        self._group = find_ranks()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Makes the Trainer save and stop if a rank has received SIGTERM."""
        if self._is_watching and smdp.preempted():
            self._is_leaving = True
            if control.should_evaluate or _evaluates_at_epoch_end(args, state, control):
                state.stateful_callbacks[PreemptionCallback.__name__] = _evaluation_due(state)
            control.should_training_stop = True
            control.should_save = True
            control.should_evaluate = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restores the effect of SIGTERM, because the callback no longer checks for it."""
        preemption.give_back()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Exits when all ranks have saved.

        The Trainer calls this right after it stops. Later it may delete checkpoints or load the best model.
        """
        if self._is_leaving:
            preemption.leave()


def owes_evaluation(args: TrainingArguments, state: TrainerState) -> bool:
    """Returns whether a preemption checkpoint with this state has postponed an evaluation."""
    kept = state.stateful_callbacks.get(PreemptionCallback.__name__)
    return args.eval_strategy != IntervalStrategy.NO and bool(kept == _evaluation_due(state))


def _evaluation_due(state: TrainerState) -> dict[str, int]:
    # Includes the step, because the Trainer copies the entry to later checkpoints, where nothing is due.
    return {"evaluation_due_at": state.global_step}


def _evaluates_at_epoch_end(args: TrainingArguments, state: TrainerState, control: TrainerControl) -> bool:
    # Ending training or an epoch early also makes the Trainer evaluate.
    ends = control.should_training_stop or control.should_epoch_stop or float(state.epoch).is_integer()
    return ends and args.eval_strategy == IntervalStrategy.EPOCH and args.eval_delay <= state.epoch


def spare_workers(loader: DataLoader[Any]) -> None:
    """Makes the forked workers of a loader survive a SIGTERM that a launcher sends to all processes."""
    own = getattr(loader, "base_dataloader", loader)  # Accelerate's loader wraps the one with the workers
    if own.num_workers == 0:
        return
    # Without allow_none=True this would fix the default, and a script could not set it afterwards.
    asked = (own.multiprocessing_context or multiprocessing).get_start_method(allow_none=True)
    method = asked or multiprocessing.get_all_start_methods()[0]
    if method == "fork":
        own.multiprocessing_context = spared_workers()
    else:
        _log.warning(
            "[smdp] the workers of the data loader use the start method %r. Only forked workers survive a"
            " SIGTERM to all processes, as torchrun and SLURM may send it; with others, the rank fails before"
            ' it has saved. If they can be forked, pass dataloader_multiprocessing_context="fork".',
            method,
        )
