"""The keys in torch's store by which the ranks of a new group meet."""

from __future__ import annotations

SESSION = "smdp/session"
JOB = "smdp/job"
SIZE = "smdp/size"


def hello(session: str, rank: int) -> str:
    """Names the key at which a rank leaves the token of its process."""
    return f"smdp/{session}/hello/{rank}"


def go(session: str, token: str) -> str:
    """Names the key at which rank 0 says that all have come."""
    return f"smdp/{session}/go/{token}"


def objection(session: str) -> str:
    """Names the key at which a rank says why the group cannot be made."""
    return f"smdp/{session}/objection"


def failed(session: str, token: str = "") -> str:
    """Names the key at which rank 0 says why the meeting has failed; without a token, to who comes late."""
    return f"smdp/{session}/failed/{token}"


def read(session: str, token: str) -> str:
    """Names the key at which a process says that it has read why."""
    return f"smdp/{session}/read/{token}"
