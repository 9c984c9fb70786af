"""Checks of DistributedModel's options."""

from __future__ import annotations

from typing import Any


def check_options(trace_device: Any, trace_execution_times: Any, passes: Any) -> None:
    """Checks options of DistributedModel.

    Raises:
        ValueError: An option is wrong, or two options contradict each other.
    """
    if trace_device not in ("cpu", "gpu"):
        raise ValueError(f"[smdp] trace_device = {trace_device!r} is not valid; allowed: 'cpu', 'gpu'")
    if trace_device == "cpu" and trace_execution_times:
        raise ValueError(
            "[smdp] trace_execution_times cannot be combined with trace_device = 'cpu'; use 'gpu', or"
            " trace_execution_times = False"
        )
    if not isinstance(passes, int) or isinstance(passes, bool) or passes < 1:
        raise ValueError(
            f"[smdp] backward_passes_per_step = {passes!r} is not valid; allowed: an integer of at least 1"
        )
