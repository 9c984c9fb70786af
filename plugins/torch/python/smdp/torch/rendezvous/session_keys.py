"""The keys that the ranks of a new group use in torch's store."""

from __future__ import annotations

SESSION = "smdp/session"
JOB = "smdp/job"
SIZE = "smdp/size"


def hello(session: str, rank: int) -> str:
    """Returns the key under which a rank stores the token of its process."""
    return f"smdp/{session}/hello/{rank}"


def go(session: str, token: str) -> str:
    """Returns the key with which rank 0 announces that all ranks have joined."""
    return f"smdp/{session}/go/{token}"


def objection(session: str) -> str:
    """Returns the key under which a rank stores the reason why the group cannot be created."""
    return f"smdp/{session}/objection"


def failed(session: str, token: str = "") -> str:
    """Returns the key under which rank 0 stores the failure; without a token, for ranks that come late."""
    return f"smdp/{session}/failed/{token}"


def read(session: str, token: str) -> str:
    """Returns the key with which a process confirms that it has read the failure."""
    return f"smdp/{session}/read/{token}"
