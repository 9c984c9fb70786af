"""`smdistributed.dataparallel.exceptions`: smdp's errors under the names that launchers look for."""

from __future__ import annotations

from smdp import ConfigError as SMDDPConfigError
from smdp import MismatchError as SMDDPMismatchError
from smdp import PeerLostError as SMDDPPeerLostError
from smdp import SmdpError as SMDDPError
from smdp import TimeoutError as SMDDPTimeoutError

__all__ = ["SMDDPConfigError", "SMDDPError", "SMDDPMismatchError", "SMDDPPeerLostError", "SMDDPTimeoutError"]
