"""Why the ranks of a new group cannot meet: found by one of them, and raised by all."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from smdp._errors import ConfigError, MismatchError, PeerLostError, SmdpError, TimeoutError

_KINDS = {kind.__name__: kind for kind in (ConfigError, MismatchError, TimeoutError)}


@dataclass(frozen=True)
class MeetingFailure:
    """A reason that travels through torch's store.

    Attributes:
        kind: The name of the error's class.
        text: The reason.
        ranks: Those that are lost, of a PeerLostError.
        token: Of the process that noticed, if it waits for an answer.
    """

    kind: str
    text: str
    ranks: list[int] = field(default_factory=list)
    token: str = ""

    @classmethod
    def decode(cls, value: bytes) -> MeetingFailure:
        """Reads what encode() has written."""
        return cls(**json.loads(value))

    def encode(self) -> str:
        """Returns it as text."""
        return json.dumps(asdict(self))

    def error(self, rank: int, size: int, why: str = "") -> SmdpError:
        """Returns the error that a rank raises; `why` goes before the text."""
        text = f"[smdp] rank {rank} of {size}: {why + self.text}"
        if self.kind == PeerLostError.__name__:
            return PeerLostError(text, self.ranks)
        return _KINDS.get(self.kind, SmdpError)(text)
