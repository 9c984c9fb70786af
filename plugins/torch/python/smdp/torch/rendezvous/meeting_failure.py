"""The reason why a new group cannot be created, which one rank finds and all ranks raise."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from smdp._errors import ConfigError, MismatchError, PeerLostError, SmdpError, TimeoutError

_KINDS = {kind.__name__: kind for kind in (ConfigError, MismatchError, TimeoutError)}


@dataclass(frozen=True)
class MeetingFailure:
    """A reason that ranks exchange through torch's store.

    Attributes:
        kind: The name of the error's class.
        text: The reason.
        ranks: The lost ranks of a PeerLostError.
        token: The token of the process that found the reason, if it waits for an answer.
    """

    kind: str
    text: str
    ranks: list[int] = field(default_factory=list)
    token: str = ""

    @classmethod
    def decode(cls, value: bytes) -> MeetingFailure:
        """Returns the failure that encode() has written."""
        return cls(**json.loads(value))

    def encode(self) -> str:
        """Returns the failure as text."""
        return json.dumps(asdict(self))

    def error(self, rank: int, size: int, why: str = "") -> SmdpError:
        """Returns the error that a rank raises, with `why` before the text."""
        text = f"[smdp] rank {rank} of {size}: {why + self.text}"
        if self.kind == PeerLostError.__name__:
            return PeerLostError(text, self.ranks)
        return _KINDS.get(self.kind, SmdpError)(text)
