"""The program's other threads, as far as they may call smdp."""

from __future__ import annotations

import threading


def has_other_threads() -> bool:
    """Tell whether Python would wait for another thread at the program's end.

    Helpers of libraries, e.g. of progress bars and data loaders, are daemons.
    """
    own = threading.get_ident()
    return any(thread.ident != own and not thread.daemon for thread in threading.enumerate())
