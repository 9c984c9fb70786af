"""Variables whose names begin with SMDP_ and mean nothing, mostly misspelt ones: told once per job.

`smdp run` tells of them, or else rank 0 when it joins. The environment remembers it, so that neither other
ranks nor processes that a rank starts repeat it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, MutableMapping

from smdp import _log, config

_TOLD = "_SMDP_TOLD_OF"
_logger = logging.getLogger("smdp")


def described(name: str) -> str:
    """Returns a few words about a variable that means nothing, with the nearest name that does."""
    import difflib  # few processes need it

    names = [variable.name for variable in config.VARIABLES]
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"{name} means nothing to smdp" + (f"; did you mean {nearest[0]}?" if nearest else "")


def untold(environ: MutableMapping[str, str]) -> list[str]:
    """Returns descriptions of the variables that were not told of yet, and marks them as told."""
    told = _told(environ)
    names = [name for name in config.unknown(environ) if name not in told]
    if names:
        environ[_TOLD] = ",".join([*told, *names])
    return [described(name) for name in names]


def warn(*, is_teller: bool) -> None:
    """Logs one warning of all such variables.

    Args:
        is_teller: This process speaks for its job; others only mark the names, for what they start.
    """
    texts = untold(os.environ)
    if texts and is_teller:
        _log.follow()
        _logger.warning("[smdp] %s", " ".join(text if text.endswith("?") else f"{text}." for text in texts))


def _told(environ: Mapping[str, str]) -> list[str]:
    return [name for name in environ.get(_TOLD, "").split(",") if name]
