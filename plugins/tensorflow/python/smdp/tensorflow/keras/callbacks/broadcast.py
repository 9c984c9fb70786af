"""A callback that starts all ranks with the same values."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdp.tensorflow.arguments import root_of
from smdp.tensorflow.groups import group_of
from smdp.tensorflow.keras.callbacks.training_apart import warn_of_training_apart
from smdp.tensorflow.keras.callbacks.variables import optimizer_variables, shared_variables
from smdp.tensorflow.tracing import leave_out_xla
from smdp.tensorflow.variables import broadcast_variables


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Sends the root's model and optimizer to all ranks after the first batch, when all variables exist."""

    def __init__(
        self, root_rank: int = 0, device: str = "", local_variables: Any = None, *, group: Any = None
    ) -> None:
        super().__init__()
        if local_variables:
            raise ValueError(
                "[smdp] BroadcastGlobalVariablesCallback got local_variables, but it sends all variables to"
                " all ranks. Remove the argument."
            )
        self._root = root_rank
        self._group = group
        self._is_done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks the root, warns about an optimizer that is not distributed, and turns XLA off.

        Raises:
            TypeError: root_rank is not an integer.
            ValueError: The group does not have the rank root_rank.
        """
        members = group_of(self._group)
        root_of("BroadcastGlobalVariablesCallback", self._root, members)
        warn_of_training_apart(self.model, members)
        leave_out_xla(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sends the variables after the first batch."""
        if self._is_done:
            return
        self._is_done = True
        broadcast_variables(shared_variables(self.model), self._root, group=self._group)
        broadcast_variables(optimizer_variables(self.model.optimizer), self._root, group=self._group)
