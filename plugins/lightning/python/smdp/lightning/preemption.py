"""Preemption with Lightning: all ranks save a checkpoint at the same step and exit for a restart."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

import smdp
from smdp import preemption
from smdp.torch.plugin_support import find_ranks


class PreemptionCallback(Callback):
    """Saves a checkpoint when a rank receives SIGTERM, on all ranks after the same step, and exits.

    The exit code is 75, by which a scheduler can tell that the job should start again.

    Use it with strategies whose checkpoint is one file, such as SmdpStrategy. During training it replaces
    Lightning's SIGTERM handler, which starts a broadcast at an arbitrary point on each rank.

    Args:
        folder: The folder of the checkpoint. A new checkpoint replaces the previous one.

    Example:
        >>> preemption = PreemptionCallback("checkpoints")
        >>> trainer = Trainer(strategy="smdp", callbacks=[preemption])  # doctest: +SKIP
        >>> trainer.fit(model, data, ckpt_path=preemption.checkpoint)  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        self._file = Path(folder) / "preempted.ckpt"
        self._steps = 0
        self._is_watching = False
        self._group: Any = None

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint file to pass to fit(), or None if there is none."""
        return str(self._file) if self._file.exists() else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts watching SIGTERM."""
        self._is_watching = preemption.can_watch()
        if not self._is_watching:
            rank_zero_warn(
                "[smdp] SIGTERM is not watched, because training does not run in the main thread. Call"
                " smdp.watch_preemption() in the main thread first."
            )
            return
        if (
            threading.current_thread() is threading.main_thread()
        ):  # in other threads Lightning sets no handler
            handlers = trainer._signal_connector._original_handlers
            signal.signal(signal.SIGTERM, handlers.get(signal.SIGTERM) or signal.SIG_DFL)
        preemption.watch()
        self._steps = trainer.global_step
        self._group = find_ranks()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restores the effect of SIGTERM, because the callback no longer checks for it."""
        preemption.give_back()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restores the effect of SIGTERM without hiding the exception."""
        preemption.give_back(is_failing=True)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Saves and exits after an optimizer step if a rank has received SIGTERM."""
        if not self._is_watching or trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        if not smdp.preempted():
            return
        written = self._file.with_suffix(".new")
        trainer.save_checkpoint(written)
        if trainer.is_global_zero:
            os.replace(written, self._file)
        preemption.leave()
