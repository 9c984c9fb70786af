"""The hierarchy of exceptions that users catch."""

from __future__ import annotations

import builtins
import pickle

import pytest

import smdp._errors as errors
from smdp._shown import shown_ranks


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


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([], ""),
        ([5], "5"),
        ([1, 0], "0-1"),
        ([9, 3, 4, 5, 0], "0, 3-5, 9"),
        (range(1, 1_000_000), "1-999999"),
    ],
)
def test_ranks_are_shown_as_ranges(ranks: list[int], expected: str) -> None:
    assert shown_ranks(ranks) == expected
