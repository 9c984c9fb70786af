"""What scripts import as `horovod`."""

from __future__ import annotations

__version__ = "0.28.1"  # whose names these are
