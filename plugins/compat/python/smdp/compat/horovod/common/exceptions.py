"""`horovod.common.exceptions`."""

from __future__ import annotations

from smdp import SmdpError as HorovodInternalError

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]


class HorovodVersionMismatchError(ImportError):
    """Never raised: the native library and the Python package of smdp come in one wheel."""


class HostsUpdatedInterrupt(RuntimeError):
    """Never raised: a world has a fixed size."""
