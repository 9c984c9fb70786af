"""The Trainer on machines that are taken away: a checkpoint on all ranks at the same step, and a restart."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

import smdp
from smdp import preemption
from smdp.torch import spared_workers
from smdp.torch.preemption_ranks import find_ranks

_log = logging.get_logger(__name__)

_OWES_EVALUATION = "owes_evaluation"


class PreemptionCallback(TrainerCallback, ExportableState):
    """Once a rank got SIGTERM, all save a checkpoint after the same step and exit with code 75.

    The plugins' Trainer has it by itself. It asks after every step of the optimizer, and lets no evaluation
    come before the checkpoint: that Trainer makes up for it when it goes on, others leave it out.
    """

    def __init__(self) -> None:
        self._is_watching = False
        self._is_leaving = False
        self._owes_evaluation = False
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
        smdp.watch_preemption()
        self._group = find_ranks()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask; if so, save now and stop."""
        if self._is_watching and smdp.preempted():
            self._is_leaving = True
            ends_epoch = state.epoch is not None and float(state.epoch).is_integer()
            self._owes_evaluation = control.should_evaluate or (
                args.eval_strategy == IntervalStrategy.EPOCH and ends_epoch and args.eval_delay <= state.epoch
            )
            control.should_training_stop = True
            control.should_save = True
            control.should_evaluate = False

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Exit when all ranks have saved.

        The Trainer comes here right after it has stopped, and later may delete checkpoints or load the best.
        """
        if self._is_leaving:
            preemption.leave()

    def state(self) -> dict[str, Any]:
        """Give what the checkpoint keeps."""
        return {"args": {}, "attributes": {_OWES_EVALUATION: self._owes_evaluation}}


def owes_evaluation(args: TrainingArguments, state: TrainerState) -> bool:
    """Tell whether the checkpoint that a state comes from was written in place of an evaluation."""
    if args.eval_strategy == IntervalStrategy.NO:
        return False
    kept = (state.stateful_callbacks or {}).get(PreemptionCallback.__name__, {})
    return isinstance(kept, dict) and bool(kept.get("attributes", {}).get(_OWES_EVALUATION))


def spare_workers(loader: DataLoader[Any]) -> None:
    """Let the workers of a loader outlive a SIGTERM that a launcher sends to them, too."""
    own = getattr(loader, "base_dataloader", loader)  # Accelerate's contain the one that starts workers
    if own.num_workers > 0 and own.multiprocessing_context is None:
        own.multiprocessing_context = spared_workers()
