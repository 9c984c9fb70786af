"""Workers of a DataLoader that outlive a SIGTERM to all processes, so that their rank can save."""

from __future__ import annotations

import os
import signal
import threading

from smdp.preemption import watched


def spare_worker(worker_id: int = 0) -> None:
    """Let a worker end by its rank's signals only, not by a launcher's; `DataLoader(worker_init_fn=...)`.

    Args:
        worker_id: Which the DataLoader gives; not used.
    """
    signals = watched()
    rank = os.getppid()
    # A handler does not learn who has sent a signal; who waits for one does.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def listen() -> None:
        while signal.sigwaitinfo(signals).si_pid != rank:
            pass
        os._exit(0)

    threading.Thread(target=listen, name="smdp signals", daemon=True).start()
