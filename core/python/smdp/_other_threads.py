"""Detects other threads of the program that may call smdp."""

from __future__ import annotations

import threading


def has_other_threads() -> bool:
    """Returns whether Python would wait for another thread at the end of the program.

    Daemon threads do not count; libraries use them for progress bars and data loaders.
    """
    own = threading.get_ident()
    return any(thread.ident != own and not thread.daemon for thread in threading.enumerate())
