"""`horovod.common.exceptions`."""

from __future__ import annotations

from smdp import SmdpError as HorovodInternalError

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]


class HorovodVersionMismatchError(ImportError):
    """Never raised: smdp and its Python package are one wheel."""


class HostsUpdatedInterrupt(RuntimeError):
    """Never raised: worlds have a fixed size."""
