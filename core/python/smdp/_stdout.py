"""Progress lines on standard output; a program continues if they cannot be written."""

from __future__ import annotations

import logging
import sys

from smdp import _log

_logger = logging.getLogger("smdp")
_has_failed = False


def write_line(text: str) -> None:
    """Writes a line and flushes it. The first time this fails, it logs a warning."""
    global _has_failed
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    # OSError: full disk or closed pipe; ValueError: closed file or encoding; AttributeError: stdout is None.
    except (OSError, ValueError, AttributeError) as error:
        if not _has_failed:
            _has_failed = True
            _log.follow()
            _logger.warning("[smdp] cannot write to standard output (%s); the program continues", error)
