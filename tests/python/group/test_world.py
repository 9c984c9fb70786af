"""How the world begins and ends: in two threads at once, twice on one store, with threads that still wait."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Job = Callable[..., list[Any]]


def test_two_threads_that_join_get_the_same(job: Job, finish: Callable[..., None]) -> None:
    code = """
import threading
found = []
threads = [threading.Thread(target=lambda: found.append(joined())) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert found[0] is found[1]
assert (found[0].all_reduce(np.ones(3)) == 2).all()
"""
    finish(job(2, code))


FOLDER_STORE = """
import pathlib
class Store:
    def __init__(self, folder): self.folder = pathlib.Path(folder)
    def path(self, key): return self.folder / key.encode().hex()
    def set(self, key, value):
        half = self.path(key + ".half" + os.environ["SMDP_RANK"])
        half.write_bytes(value if isinstance(value, bytes) else value.encode())
        half.rename(self.path(key))
    def check(self, keys): return all(self.path(key).exists() for key in keys)
    def get(self, key):
        self.wait([key])
        return self.path(key).read_bytes()
    def wait(self, keys, timeout=None):
        while not self.check(keys): time.sleep(0.01)
"""


def test_the_same_store_serves_again(job: Job, finish: Callable[..., None], tmp_path: Path) -> None:
    """Also for who comes before rank 0 does, and after a world that has left its keys there."""
    code = f"""
for life in range(3):
    if int(os.environ["SMDP_RANK"]) == life % 2: time.sleep(0.3)
    g = joined(store=Store({str(tmp_path)!r}))
    assert (g.all_reduce(np.ones(3)) == 2).all()
    smdp.shutdown()
"""
    finish(job(2, FOLDER_STORE + code))
    finish(job(2, FOLDER_STORE + code))


def test_a_rank_0_that_does_not_come_to_a_store_is_named(job: Job, tmp_path: Path) -> None:
    code = f"""
if os.environ["SMDP_RANK"] == "0": sys.exit()
report(lambda: joined(store=Store({str(tmp_path)!r})))
"""
    ranks = job(2, FOLDER_STORE + code, environ={"SMDP_INIT_TIMEOUT": "2"})
    assert [rank.finish(30) for rank in ranks] == [0, 0]
    assert (
        "TimeoutError: [smdp] rank 1 of 2: rank 0 has not joined through this store within 2 s"
        in ranks[1].output
    )


def test_the_text_of_sys_exit_reaches_the_others(job: Job) -> None:
    code = """
g = joined()
if g.rank == 1: sys.exit("no data at /data")
report(g.barrier)
"""
    ranks = job(2, code)
    assert [rank.finish(30) for rank in ranks] == [0, 1]
    assert "has left the group: it called sys.exit('no data at /data')" in ranks[0].output, ranks[0].output


def test_the_text_of_a_sys_exit_that_was_caught_is_not_told() -> None:
    code = """
import atexit, sys, threading
from smdp import _world

atexit.register(lambda: print(repr(_world.why_it_ends())))
_world.watch_end()
thread = threading.Thread(target=sys.exit, args=["in a thread"])
thread.start()
thread.join()
try:
    sys.exit("caught")
except SystemExit as error:
    kept = error
assert str(kept) == kept.code == "caught"
"""
    for end, told in (("", ""), ("sys.exit('at the end')", "it called sys.exit('at the end')")):
        done = subprocess.run([sys.executable, "-c", code + end], capture_output=True, text=True)
        assert done.stdout == f"{told!r}\n", done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "while True: g.all_reduce(np.ones(1000))",
        "g.recv(np.ones(1), 1 - g.rank)",
        "g.recv(np.ones(1), 1 - g.rank, async_op=True).wait(50)",
        "g.split(0) if g.rank == 0 else time.sleep(99)",
    ],
)
def test_threads_that_wait_at_the_end_do_no_harm(call: str, job: Job, finish: Callable[..., None]) -> None:
    code = f"""
import threading
g = joined()
def wait():
    try:
        {call}
    except smdp.SmdpError:
        pass
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.5)
"""
    for _ in range(4):
        finish(job(2, code))


def test_a_split_after_the_end_of_rank_0_is_an_error_soon(job: Job) -> None:
    code = """
g = joined()
part = g.split(min(g.rank, 1))
if g.rank == 0: sys.exit()
time.sleep(1)
part.barrier()
report(lambda: part.split(0))
part.barrier()
"""
    ranks = job(3, code)
    for rank in ranks:
        assert rank.finish(30) == 0, rank.output
    for rank in ranks[1:]:
        assert "rank 0 of the world, which serves it, has ended" in rank.output, rank.output
        assert float(rank.output.split("after ")[1].split(" s ")[0]) < 5, rank.output


def test_receives_give_their_source(job: Job, finish: Callable[..., None]) -> None:
    code = """
g = joined()
if g.rank == 0:
    g.send(np.ones(2), 1)
else:
    assert g.recv(np.ones(2), 0, async_op=True).wait() == 0
    try:
        g.recv(np.ones(2), -1)
    except ValueError as error:
        assert "src = -1 is not valid; allowed: 0 to 1, or None for any rank" in str(error), error
    else:
        raise AssertionError
"""
    finish(job(2, code))


def test_a_thread_that_has_called_nothing_yet_is_waited_for(job: Job, finish: Callable[..., None]) -> None:
    """Each rank's two threads use two groups, the helpers late: nobody is in the way of anybody."""
    code = """
import threading
g = joined()
groups = [g.split(0), g.split(0)]
def use(group, delay):
    time.sleep(delay)
    for _ in range(3): assert (group.all_reduce(np.ones(3)) == 2).all()
helper = threading.Thread(target=use, args=(groups[1 - g.rank], 4))
helper.start()
use(groups[g.rank], 0)
helper.join()
"""
    finish(job(2, code))


def test_a_variable_that_is_no_text_is_named(job: Job) -> None:
    (rank,) = job(1, "os.environb[b'SMDP_HOST_ID'] = b'a\\xff'\nreport(joined)")
    assert rank.finish(30) == 0
    assert r"ConfigError: SMDP_HOST_ID='a\udcff' is not valid; allowed: text in UTF-8" in rank.output


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_process_of_multiprocessings_says_why_it_ends(
    method: str, job: Job, finish: Callable[..., None]
) -> None:
    """Python runs no atexit in those that are forked, and tells it of no exception in the others."""
    code = f"""
import multiprocessing
def train(rank):
    port = int(os.environ["SMDP_MASTER_PORT"])
    g = joined(rank=rank, world_size=2, master_addr="127.0.0.1", master_port=port)
    g.barrier()
    if rank == 1: raise ValueError("out of luck")
    report(g.barrier)
    g.split(0) if g.error() is None else None
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    ranks = [context.Process(target=train, args=(rank,)) for rank in range(2)]
    for rank in ranks: rank.start()
    for rank in ranks: rank.join()
    assert [rank.exitcode for rank in ranks] == [0, 1]
"""
    (parent,) = job(1, code)
    assert parent.finish(60) == 0, parent.output
    assert "PeerLostError: [smdp] rank 0 of 2" in parent.output, parent.output
    assert "has left the group: it raised ValueError: out of luck" in parent.output, parent.output
    seconds = float(parent.output.split("after ")[1].split(" s ")[0])
    assert seconds < 3, parent.output
