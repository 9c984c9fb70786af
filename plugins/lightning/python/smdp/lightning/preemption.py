"""Lightning on machines that are taken away: a checkpoint on all ranks at the same step, and a restart."""

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
    """Once a rank got SIGTERM, all save a checkpoint after the same step and exit with code 75.

    For strategies whose checkpoint is one file, such as SmdpStrategy. Lightning's own handler of SIGTERM
    gives way while it trains: it starts a broadcast wherever a rank happens to be.

    Args:
        folder: Where the checkpoint lies; the next one replaces it.

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
        """What fit() is to go on from: the file; None if there is none."""
        return str(self._file) if self._file.exists() else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch SIGTERM."""
        self._is_watching = preemption.can_watch()
        if not self._is_watching:
            rank_zero_warn(
                "[smdp] SIGTERM is not watched, because training does not run in the main thread; call"
                " smdp.watch_preemption() there first."
            )
            return
        if threading.current_thread() is threading.main_thread():  # elsewhere Lightning sets no handlers
            handlers = trainer._signal_connector._original_handlers
            signal.signal(signal.SIGTERM, handlers.get(signal.SIGTERM) or signal.SIG_DFL)
        preemption.watch()
        self._steps = trainer.global_step
        self._group = find_ranks()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let SIGTERM end the process again: nobody asks any more."""
        preemption.give_back()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """As at the end of training, without hiding the exception."""
        preemption.give_back(is_failing=True)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Ask, after each step of the optimizer; if so, save and exit."""
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
