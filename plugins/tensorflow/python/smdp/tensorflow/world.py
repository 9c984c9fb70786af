"""Shutdown of the world."""

from __future__ import annotations

import smdp
from smdp.tensorflow.gradient_steps import forget_all
from smdp.tensorflow.groups import forget_groups


def shutdown() -> None:
    """Leaves the world and closes the reducers of tapes and optimizers.

    It may be called twice, or without init().
    """
    forget_all()
    forget_groups()
    smdp.shutdown()
