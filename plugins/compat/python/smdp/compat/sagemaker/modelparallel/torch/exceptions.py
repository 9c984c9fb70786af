"""`smdistributed.modelparallel.torch.exceptions`: smdp's errors under the names that launchers look for."""

from __future__ import annotations

from smdp import MismatchError as SMPMismatchError
from smdp import PeerLostError as SMPPeerLostError
from smdp import TimeoutError as SMPTimeoutError

__all__ = ["SMPMismatchError", "SMPPeerLostError", "SMPTimeoutError"]
