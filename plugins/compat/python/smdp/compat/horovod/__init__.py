"""What scripts import as `horovod`."""

from __future__ import annotations

from typing import Any

from smdp.compat.horovod.refusals import no_attribute

__version__ = "0.28.1"  # whose names these are


def __getattr__(name: str) -> Any:
    no_attribute("horovod", name)
