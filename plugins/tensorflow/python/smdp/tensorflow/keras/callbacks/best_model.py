"""A callback that saves the best model on one rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from smdp.tensorflow.arguments import check_path
from smdp.tensorflow.groups import group_of
from smdp.tensorflow.library import is_keras_3


class BestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the best model so far on rank 0, as Keras's ModelCheckpoint does.

    Put it after MetricAverageCallback in the list of callbacks.

    Args:
        filepath: Path that ends in .keras or .h5. Other text is taken as ``monitor``, which is Horovod's
            first argument.
        monitor: Name of the metric.
        group: The ranks that train the model; all by default.
        save_best_only: Must be True; accepted for scripts that pass it.
        options: Options of keras.callbacks.ModelCheckpoint.

    Raises:
        ValueError: The first argument is a path with another ending, or save_best_only is not True.
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
                f"[smdp] BestModelCheckpoint keeps the best model; save_best_only is {save_best_only!r}."
                " To save all models, use keras.callbacks.ModelCheckpoint on rank 0."
            )
        if not str(filepath).endswith((".keras", ".h5")):
            if isinstance(filepath, Path) or os.sep in filepath:
                raise ValueError(
                    f"[smdp] BestModelCheckpoint got the path {str(filepath)!r}, but a model's file must"
                    f" end in .keras or .h5. Pass {str(filepath) + '.keras'!r} or, if it is the metric,"
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
    """Wraps a model of Keras 2, whose ModelCheckpoint passes options that the native format rejects."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, filepath: str, overwrite: bool = True, options: Any = None) -> None:
        more = {} if filepath.endswith(".keras") else {"options": options}
        self._model.save(filepath, overwrite=overwrite, **more)
