"""The ranks of a group meet at torch's store, or all learn why they cannot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

import smdp
from smdp import _core
from smdp.torch.rendezvous import sessions as rendezvous
from smdp.torch.rendezvous.sessions import open_session


def meet(ranks: Sequence[tuple[int, int]], timeout_s: float = 5.0) -> list[str | Exception]:
    """Returns what each rank gets: (rank, world size) of those that come."""
    store = dist.HashStore()

    def join(rank: int, size: int) -> str | Exception:
        try:
            return open_session(store, rank, size, "torch:0", timeout_s)
        except smdp.SmdpError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(join, *zip(*ranks, strict=True)))


def test_all_come() -> None:
    prefixes = meet([(0, 3), (1, 3), (2, 3)])
    assert len(set(prefixes)) == 1 and str(prefixes[0]).startswith("smdp/")


def test_a_missing_rank_is_named_on_all_that_came() -> None:
    for error in meet([(0, 4), (1, 4), (3, 4)], 0.5):
        assert isinstance(error, smdp.TimeoutError)
        assert "joined 0-1, 3; missing 2 of 4." in str(error)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([(0, 2), (1, 3)], "rank 1 was started with world size 3, but rank 0 with 2."),
        ([(0, 3), (1, 2)], "rank 1 was started with world size 2, but rank 0 with 3."),
        ([(0, 3), (1, 3), (2, 4)], "rank 2 was started with world size 4, but rank 0 with 3."),
        # Rank 0 does not look for a rank 3, so that one has to object.
        ([(0, 3), (1, 3), (3, 4)], "rank 3 was started with world size 4, but rank 0 with 3."),
    ],
)
def test_another_world_size(ranks: list[tuple[int, int]], text: str) -> None:
    for (rank, size), error in zip(ranks, meet(ranks), strict=True):
        assert isinstance(error, smdp.ConfigError)
        # A thread may come when the others have heard.
        assert (
            str(error).replace("too late: ", "")
            == f"[smdp] rank {rank} of {size}: {text} Start all ranks with the same world size."
        )


def test_two_processes_with_the_same_rank() -> None:
    for error in meet([(0, 3), (1, 3), (1, 3)]):
        assert isinstance(error, smdp.ConfigError)
        assert "two processes were started as rank 1 of 3. Give each process a different RANK." in str(error)


def test_a_rank_that_leaves_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    class Meeting(_core.Meeting):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            self.checks = 0

        def check(self, has_failed: bool = False) -> None:
            self.checks += 1
            if self.checks == 5:
                raise KeyboardInterrupt

    store = dist.HashStore()
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(open_session, store, 0, 3, "torch:0", 20.0)
        while not store.check(["smdp/session"]):
            pass
        monkeypatch.setattr(rendezvous._core, "Meeting", Meeting)
        with pytest.raises(KeyboardInterrupt):
            open_session(store, 1, 3, "torch:0", 20.0)
        with pytest.raises(smdp.PeerLostError, match=re.escape("rank 1 left while")) as caught:
            leader.result()
    assert caught.value.ranks == [1]
