"""Detects when ranks of one model make different collective calls.

Every rank counts such calls and writes the last few, with their numbers, to torch's store, which takes one
message without an answer. With a wrong guard, such as `if smp.rank() == 0: model.state_dict()`, a rank would
wait for others that never come. meet() then reads which calls the others make instead, and raises an error
that names them.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import time

from smdp._errors import MismatchError, SmdpError, TimeoutError
from smdp.config import Config
from smdp.torch.model_parallel.job.state import state

_log = logging.getLogger(__name__)

_END = "the end of the program"
_POLL_S = 0.001
_POLL_MAX_S = 0.05
# After this time the log names the ranks that have not come.
_PATIENCE_S = 10.0
_RULE = (
    "all ranks of a model-parallel group must make this call together: guard it with smp.dp_rank() == 0, not"
    " with smp.rank() == 0 or smp.pp_rank() == 0"
)
_RULE_OF_SHARDS = (
    "with sharded data parallelism, all ranks of the job must make this call together, because each has a"
    " shard of the model; do not guard it with a rank"
)


def enter(call: str) -> None:
    """Counts a call that all ranks of the model-parallel group make, without waiting for them.

    Args:
        call: Name of the call in messages, such as "smp.step".
    """
    job = state.running
    number = job.calls[-1][0] + 1 if job.calls else 0
    job.calls.append((number, call))
    # If rank 0, which hosts the store, is gone, a later operation fails with a better error.
    with contextlib.suppress(RuntimeError):
        job.store.set(_key(job.mesh.rank), json.dumps(dict(job.calls)))


def meet(call: str) -> None:
    """Waits until all ranks of the model-parallel group make this call.

    With sharded data parallelism, it waits for all ranks of the job.

    Args:
        call: Name of the call, with all arguments that must be the same on all ranks.

    Raises:
        smdp.MismatchError: A rank makes a different call or has ended.
        smdp.TimeoutError: A rank has not come within the deadline, SMDP_TIMEOUT.
        smdp.SmdpError: A rank is gone.
    """
    enter(call)
    try:
        _wait(call)
    except BaseException:
        # A call that failed is not counted. Other ranks may still read it, and then fail as well.
        state.running.calls.pop()
        raise


def _wait(call: str) -> None:
    job = state.running
    own = job.mesh.rank
    missing = [rank for rank in job.mesh.ranks("world" if _has_shards() else "mp") if rank != own]
    number = job.calls[-1][0]
    start = time.monotonic()
    deadline_s = Config.from_environ().timeout_s
    pause, is_told = _POLL_S, False
    while missing:
        # Checked first, because a rank that knows of a death may already be in another call.
        error = job.mesh.group("world").core.error()
        if error is not None:
            raise error
        missing = [rank for rank in missing if not _has_come(rank, number, call)]
        if not missing:
            return
        waited = time.monotonic() - start
        if waited > _PATIENCE_S and not is_told:
            is_told = True
            _log.warning("[smdp] rank %d waits in %s for rank(s) %s; %s", own, call, missing, _rule())
        if waited > deadline_s:
            raise TimeoutError(
                f"[smdp] rank {own} of {job.mesh.placement.size} waited {deadline_s:g} s in {call} for"
                f" rank(s) {missing}; {_rule()}. SMDP_TIMEOUT sets this time limit."
            )
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_MAX_S)


def _has_come(rank: int, number: int, call: str) -> bool:
    """Returns whether a rank has made the call.

    Raises:
        smdp.MismatchError: The rank has made a different call.
    """
    job = state.running
    try:
        calls = json.loads(job.store.get(_key(rank))) if job.store.check([_key(rank)]) else {}
    except RuntimeError as error:
        raise SmdpError(
            f"[smdp] rank {job.mesh.rank} waits in {call} for rank {rank}, but rank 0, which hosts torch's"
            f" store, has ended; {_rule()}"
        ) from error
    theirs = calls.get(str(number), call)
    if theirs != call or _END in calls.values():
        raise MismatchError(
            f"[smdp] rank {job.mesh.rank} is in {call}, but rank {rank} has gone on to"
            f" {_END if _END in calls.values() else theirs}; {_rule()}"
        )
    return max(map(int, calls), default=-1) >= number


def _has_shards() -> bool:
    return state.cfg.sharded_data_parallel_degree > 1


def _rule() -> str:
    return _RULE_OF_SHARDS if _has_shards() else _RULE


def _key(rank: int) -> str:
    # The store may outlive a job, and a slow rank may still read what others have written in the last one.
    return f"smp/calls/{state.running.number}/{rank}"


@atexit.register
def _tell_end() -> None:
    """Tells the other ranks that this rank will make no more calls."""
    if state.job is not None:
        with contextlib.suppress(Exception):
            enter(_END)
