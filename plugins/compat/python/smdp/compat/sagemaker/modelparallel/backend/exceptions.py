"""`smdistributed.modelparallel.backend.exceptions`: smdp's errors under the names that launchers look for."""

from __future__ import annotations

from smdp import ConfigError as SMPConfigError
from smdp import SmdpError as SMPError

__all__ = ["SMPConfigError", "SMPError"]
