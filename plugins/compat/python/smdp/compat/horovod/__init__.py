"""The package that scripts import as `horovod`."""

from __future__ import annotations

from typing import Any

from smdp.compat.horovod.refusals import no_attribute

__version__ = "0.28.1"  # the Horovod release whose names this package provides


def __getattr__(name: str) -> Any:
    no_attribute("horovod", name)
