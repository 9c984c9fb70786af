"""Python's side of SMDP_LOG_LEVEL: the loggers "smdp..." of the standard library.

Whoever has set up logging gets the messages there; else they go to standard error, as the core's do.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from smdp import config

_root = logging.getLogger("smdp")


def follow(environ: Mapping[str, str] = os.environ) -> None:
    """Set the level of the loggers "smdp..." from SMDP_LOG_LEVEL, unless the program has set one itself.

    Raises:
        ConfigError: SMDP_LOG_LEVEL is no level.
    """
    level = config.read_log_level(environ)
    if level is None or _root.level != logging.NOTSET:
        return
    _root.setLevel(level.upper())
    if not _root.hasHandlers():
        handler = logging.StreamHandler()
        # Should the program set up logging later, its handlers get what ours got until then.
        handler.addFilter(lambda _: not logging.getLogger().handlers)
        handler.setFormatter(logging.Formatter("%(message)s"))
        _root.addHandler(handler)
