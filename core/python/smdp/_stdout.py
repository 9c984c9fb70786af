"""Lines on standard output that only report: where they cannot be written, the program goes on."""

from __future__ import annotations

import logging
import sys

from smdp import _log

_logger = logging.getLogger("smdp")
_has_failed = False


def write_line(text: str) -> None:
    """Writes a line at once; where that fails, a warning says so the first time."""
    global _has_failed
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    # A full disk or closed pipe; a closed file, or a character that its encoding lacks; no file at all.
    except (OSError, ValueError, AttributeError) as error:
        if not _has_failed:
            _has_failed = True
            _log.follow()
            _logger.warning("[smdp] standard output cannot be written (%s); the program goes on", error)
