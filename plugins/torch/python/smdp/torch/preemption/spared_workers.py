"""DataLoader workers that survive a SIGTERM to all processes, so that their rank can save a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.context import BaseContext, ForkContext, ForkProcess

from smdp.preemption import watched


class _SparedProcess(ForkProcess):
    def start(self) -> None:
        # The fork inherits the mask, so the signal cannot end the worker at any moment.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, watched())
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run(self) -> None:
        signals = watched()
        rank = os.getppid()

        # Unlike a handler, sigwaitinfo() tells which process has sent the signal.
        def listen() -> None:
            while signal.sigwaitinfo(signals).si_pid != rank:
                pass
            os._exit(0)

        threading.Thread(target=listen, name="smdp signals", daemon=True).start()
        super().run()


class _SparedContext(ForkContext):
    Process = _SparedProcess


def spared_workers() -> BaseContext:
    """Returns a context for DataLoader workers that obey SIGTERM only if their rank sends it.

    Returns:
        The value for `DataLoader(multiprocessing_context=...)`, which torch refuses with num_workers=0. It
        always forks the workers, whatever the start method of this process is.
    """
    return _SparedContext()
