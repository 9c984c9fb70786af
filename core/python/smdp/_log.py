"""SMDP_LOG_LEVEL for Python code: the "smdp" loggers of the standard library.

If the program has configured logging, messages go there; otherwise to standard error, like the core's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from smdp import config

_root = logging.getLogger("smdp")


def follow(environ: Mapping[str, str] = os.environ) -> None:
    """Sets the level of the "smdp" loggers from SMDP_LOG_LEVEL, unless the program has set one itself.

    Raises:
        ConfigError: SMDP_LOG_LEVEL is not a level.
    """
    level = config.read_log_level(environ)
    if level is None or _root.level != logging.NOTSET:
        return
    _root.setLevel(level.upper())
    if not _root.hasHandlers():
        handler = logging.StreamHandler()
        # If the program configures logging later, its handlers take over from this one.
        handler.addFilter(lambda _: not logging.getLogger().handlers)
        handler.setFormatter(logging.Formatter("%(message)s"))
        _root.addHandler(handler)
