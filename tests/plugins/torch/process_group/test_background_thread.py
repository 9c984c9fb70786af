"""The plugin's threads, which may be asked for at any place: a Work that is collected asks for one."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from smdp.torch.process_group.background_thread import BackgroundThread


def test_asked_for_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    has_run = threading.Event()

    def body() -> None:
        begun.append(threading.get_ident())
        has_run.set()

    thread = BackgroundThread("twice", body, lambda: None)

    class Collecting(threading.Thread):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            thread.start()  # as if objects were collected here, a Work among them
            super().__init__(*arguments, **more)

        def _bootstrap_inner(self) -> None:
            thread.start()  # or there, where the one that makes it waits for it
            super()._bootstrap_inner()  # type: ignore[misc]

    monkeypatch.setattr(threading, "Thread", Collecting)
    thread.start()
    assert has_run.wait(10)
    thread.start()
    assert len(begun) == 1
