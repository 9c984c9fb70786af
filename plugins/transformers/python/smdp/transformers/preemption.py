"""The Trainer on machines that are taken away: a checkpoint on all ranks at the same step, and a restart."""

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
    """Once a rank got SIGTERM, all save a checkpoint after the same step and exit with code 75.

    The plugins' Trainer has it by itself. It asks after every step of the optimizer, and lets no evaluation
    come before the checkpoint: that Trainer makes up for it when it goes on, others leave it out. After a
    training that failed, that Trainer lets SIGTERM end the process again; with others the next one does.
    """

    def __init__(self) -> None:
        self._is_watching = False
        self._is_leaving = False
        self._group: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Watch SIGTERM.

        Raises:
            ValueError: transformers is to do it, too.
        """
        if args.enable_jit_checkpoint:
            raise ValueError(
                "[smdp] enable_jit_checkpoint=True saves on the ranks that got SIGTERM only, the plugins save"
                " on all. Leave it out, or give the plugins preemption=False."
            )
        self._is_watching = preemption.can_watch()
        if not self._is_watching:
            _log.warning(
                "[smdp] SIGTERM is not watched, because training does not run in the main thread; call"
                " smdp.watch_preemption() there first."
            )
            return
        preemption.watch()
        self._group = find_ranks()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask; if so, save now and stop."""
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
        """Let SIGTERM end the process again: nobody asks any more."""
        preemption.give_back()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Exit when all ranks have saved.

        The Trainer comes here right after it has stopped, and later may delete checkpoints or load the best.
        """
        if self._is_leaving:
            preemption.leave()


def owes_evaluation(args: TrainingArguments, state: TrainerState) -> bool:
    """Tell whether the checkpoint that a state comes from was written in place of an evaluation."""
    kept = state.stateful_callbacks.get(PreemptionCallback.__name__)
    return args.eval_strategy != IntervalStrategy.NO and bool(kept == _evaluation_due(state))


def _evaluation_due(state: TrainerState) -> dict[str, int]:
    # With the step: the Trainer copies it to all later checkpoints, where nothing is due.
    return {"evaluation_due_at": state.global_step}


def _evaluates_at_epoch_end(args: TrainingArguments, state: TrainerState, control: TrainerControl) -> bool:
    # What ends training or an epoch early makes the Trainer evaluate there, too.
    ends = control.should_training_stop or control.should_epoch_stop or float(state.epoch).is_integer()
    return ends and args.eval_strategy == IntervalStrategy.EPOCH and args.eval_delay <= state.epoch


def spare_workers(loader: DataLoader[Any]) -> None:
    """Let forked workers of a loader outlive a SIGTERM that a launcher sends to them, too."""
    own = getattr(loader, "base_dataloader", loader)  # Accelerate's contain the one that starts workers
    if own.num_workers == 0:
        return
    # To ask for the default would settle it: a script could not set another one afterwards.
    asked = (own.multiprocessing_context or multiprocessing).get_start_method(allow_none=True)
    method = asked or multiprocessing.get_all_start_methods()[0]
    if method == "fork":
        own.multiprocessing_context = spared_workers()
    else:
        _log.warning(
            "[smdp] workers of the data loader start by %r, only forked ones outlive a SIGTERM to all"
            " processes, as torchrun and SLURM may send it: their rank then fails before it has saved. If"
            ' they can be forked: dataloader_multiprocessing_context="fork".',
            method,
        )
