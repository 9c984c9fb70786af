"""Workers of a DataLoader that outlive a SIGTERM to all processes, so that their rank can save."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.context import BaseContext, ForkContext, ForkProcess

from smdp.preemption import watched


class _SparedProcess(ForkProcess):
    def start(self) -> None:
        # Inherited by the fork, so that no moment is left in which the signal ends the worker.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, watched())
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run(self) -> None:
        signals = watched()
        rank = os.getppid()

        # A handler does not learn who has sent a signal; who waits for one does.
        def listen() -> None:
            while signal.sigwaitinfo(signals).si_pid != rank:
                pass
            os._exit(0)

        threading.Thread(target=listen, name="smdp signals", daemon=True).start()
        super().run()


class _SparedContext(ForkContext):
    Process = _SparedProcess


def spared_workers() -> BaseContext:
    """Let workers end by their rank's signals only, not by a launcher's.

    Returns:
        For `DataLoader(multiprocessing_context=...)`, which torch refuses with num_workers=0. It forks
        workers, whatever the start method of this process is.
    """
    return _SparedContext()
