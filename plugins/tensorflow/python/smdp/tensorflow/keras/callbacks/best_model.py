"""The best model so far, saved by one rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from smdp.tensorflow.arguments import check_path
from smdp.tensorflow.groups import group_of
from smdp.tensorflow.library import is_keras_3


class BestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Keras' ModelCheckpoint of the best model so far, on rank 0. Put it after MetricAverageCallback.

    Args:
        filepath: Ends in .keras or .h5. Anything else is taken for the metric, which comes first in Horovod.
        monitor: The metric.
        group: Default: all ranks.
        save_best_only: True; there for scripts that say so.
        options: Those of keras.callbacks.ModelCheckpoint.

    Raises:
        ValueError: The first argument is a path without such an end, or save_best_only is not True.
    """

    def __init__(
        self,
        filepath: str | Path = "best.keras",
        monitor: str = "val_loss",
        *,
        save_best_only: bool = True,
        group: Any = None,
        **options: Any,
    ) -> None:
        check_path("BestModelCheckpoint", filepath)
        if save_best_only is not True:
            raise ValueError(
                f"[smdp] BestModelCheckpoint keeps the best model; save_best_only is {save_best_only!r}. For"
                " all of them use keras.callbacks.ModelCheckpoint on rank 0."
            )
        if not str(filepath).endswith((".keras", ".h5")):
            if isinstance(filepath, Path) or os.sep in filepath:
                raise ValueError(
                    f"[smdp] BestModelCheckpoint got the path {str(filepath)!r}, and a model's file ends in"
                    f" .keras or .h5. Say {str(filepath) + '.keras'!r}, or, if it is the metric,"
                    f" monitor={str(filepath)!r}."
                )
            filepath, monitor = "best.keras", str(filepath)
        super().__init__(filepath=str(filepath), monitor=monitor, save_best_only=True, **options)
        self._is_root = group_of(group).rank == 0

    def _save_model(self, *arguments: Any, **options: Any) -> None:
        if not self._is_root:
            return
        if is_keras_3:
            super()._save_model(*arguments, **options)
            return
        model: Any = getattr(self, "model")  # noqa: B009 - mypy cannot tell its type
        self.model = _SavedByKeras2(model)
        try:
            super()._save_model(*arguments, **options)
        finally:
            self.model = model


class _SavedByKeras2:
    """A model: its callback hands the native format options, which that refuses."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, filepath: str, overwrite: bool = True, options: Any = None) -> None:
        more = {} if filepath.endswith(".keras") else {"options": options}
        self._model.save(filepath, overwrite=overwrite, **more)
