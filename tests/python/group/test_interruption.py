"""What a signal handler raises in a store of Python's reaches the caller as it is."""

from __future__ import annotations

import numpy
import pytest

import smdp
from smdp import _core


class Interrupted:
    """Torch's store interface; a signal comes in every call but those of `calm`."""

    def __init__(self, signal: BaseException, calm: str = "") -> None:
        self._signal = signal
        self._calm = calm

    def _come(self, call: str) -> None:
        if call != self._calm:
            raise self._signal

    def set(self, key: str, value: bytes) -> None:
        self._come("set")

    def get(self, key: str) -> bytes:
        self._come("get")
        return b""

    def check(self, keys: list[str]) -> bool:
        self._come("check")
        return True


@pytest.mark.parametrize(
    "signal", [SystemExit(3), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"]
)
def test_exceptions_of_signals_pass(signal: BaseException) -> None:
    store = _core.python_store(Interrupted(signal))
    after_check = _core.python_store(Interrupted(signal, calm="check"))
    for call in (
        lambda: store.set("key", b"value"),
        lambda: store.check("key"),
        lambda: store.get("key", 5.0),
        lambda: after_check.get("key", 5.0),
    ):
        with pytest.raises(type(signal)) as caught:
            call()
        assert caught.value is signal


def test_signal_while_an_error_is_made_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exceptions of smdp are made by Python code, in which handlers of signals run."""
    made = 0

    class Interrupted(smdp.SmdpError):
        def __init__(self, message: str) -> None:
            nonlocal made
            made += 1
            raise KeyboardInterrupt

    group = smdp.init()
    smdp.shutdown()
    monkeypatch.setattr("smdp._errors.ClosedError", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        group.all_reduce(numpy.ones(2))
    assert made == 1


def test_errors_of_the_store_are_told() -> None:
    store = _core.python_store(Interrupted(OSError("no route")))
    with pytest.raises(RuntimeError, match=r"(?s)\[smdp\] the rendezvous store failed: .*OSError: no route"):
        store.set("key", b"value")
