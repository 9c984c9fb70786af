"""The hierarchy of exceptions that users catch."""

from __future__ import annotations

import builtins
import pickle

import smdp._errors as errors


def test_hierarchy() -> None:
    assert issubclass(errors.SmdpError, RuntimeError)
    for name in ("TimeoutError", "PeerLostError", "MismatchError", "ConfigError", "ClosedError"):
        assert issubclass(getattr(errors, name), errors.SmdpError)
    assert issubclass(errors.TimeoutError, builtins.TimeoutError)


def test_peer_lost_names_the_ranks_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(errors.PeerLostError("rank 3 is gone", [3])))
    assert error.ranks == [3]
    assert str(error) == "rank 3 is gone"
    assert errors.PeerLostError("nobody").ranks == []


def test_timeout_keeps_its_message() -> None:
    assert str(errors.TimeoutError("waited 3 s")) == "waited 3 s"
