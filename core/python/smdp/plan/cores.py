"""Steps of ranks that share the cores of their host."""

from __future__ import annotations


def step_on_cores(seconds: float, bubble: float, *, ranks: int, cores: float) -> float:
    """Returns the seconds of a step if the ranks of a host share its cores.

    A rank that waits leaves its core to the others. As long as at least as many ranks as there are cores
    have work, the cores are always busy, and the step takes the work of all ranks divided by the cores. It
    never takes less than with a core for every rank.

    Args:
        seconds: The step's time with a core for every rank.
        bubble: The fraction of that time, 0 to 1, for which a rank waits for others.
        ranks: The number of ranks on the host, of one thread each.
        cores: The number of cores that they may use.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> step_on_cores(0.355, 0.2, ranks=4, cores=2)  # a pipeline of 2 x tensor 2 on two cores
        0.568
        >>> step_on_cores(0.355, 0.2, ranks=2, cores=2)
        0.355
    """
    if not (seconds >= 0 and 0 <= bubble <= 1 and ranks >= 1 and cores > 0):
        raise ValueError(
            f"[smdp] seconds = {seconds!r}, bubble = {bubble!r}, ranks = {ranks!r}, cores = {cores!r} are not"
            " valid; allowed: seconds of at least 0, a bubble from 0 to 1, a rank or more, cores above 0"
        )
    return max(seconds, seconds * (1 - bubble) * ranks / cores)
