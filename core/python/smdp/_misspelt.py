"""Warns once per job about SMDP_* variables that smdp does not know, most of which are misspelled.

`smdp run` reports them; with other launchers, rank 0 does when it joins. An environment variable records what
was reported, so that other ranks and child processes do not repeat it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, MutableMapping

from smdp import _log, config

_TOLD = "_SMDP_TOLD_OF"
_logger = logging.getLogger("smdp")


def described(name: str) -> str:
    """Returns a short description of an unknown variable, with the most similar known name."""
    import difflib  # rarely needed

    names = [variable.name for variable in config.VARIABLES]
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"{name} is not a variable of smdp" + (f"; did you mean {nearest[0]}?" if nearest else "")


def untold(environ: MutableMapping[str, str]) -> list[str]:
    """Returns descriptions of the unknown variables not reported so far, and marks them as reported."""
    told = _told(environ)
    names = [name for name in config.unknown(environ) if name not in told]
    if names:
        environ[_TOLD] = ",".join([*told, *names])
    return [described(name) for name in names]


def warn(*, is_teller: bool) -> None:
    """Logs one warning that lists all unknown variables.

    Args:
        is_teller: Whether this process reports for its job. Other processes only mark the names as reported,
            for their child processes.
    """
    texts = untold(os.environ)
    if texts and is_teller:
        _log.follow()
        _logger.warning("[smdp] %s", " ".join(text if text.endswith("?") else f"{text}." for text in texts))


def _told(environ: Mapping[str, str]) -> list[str]:
    return [name for name in environ.get(_TOLD, "").split(",") if name]
