"""What goes wrong is an error on every rank, soon, that names the culprit. Real processes are killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from group_jobs import ONE_HOST, THREE_HOSTS, seconds

Job = Callable[..., list[Any]]


def test_a_call_in_a_signal_handler(job: Job, tmp_path: Path) -> None:
    """It would wait for the call that it interrupts; that one goes on."""
    code = f"""
import pathlib
handled = pathlib.Path({str(tmp_path / "handled")!r})
g = joined()
def handler(*_):
    report(g.barrier)
    report(lambda: g.barrier(async_op=True))
    handled.touch()
signal.signal(signal.SIGALRM, handler)
if g.rank == 0:
    signal.setitimer(signal.ITIMER_REAL, 2)
while g.rank == 1 and not handled.exists():
    time.sleep(0.05)
sums = np.ones(3, np.float32)
report(lambda: g.all_reduce(sums))
assert (sums == 2).all(), sums
report(g.barrier)
"""
    ranks = job(2, code, hosts=[0, 0])
    for rank in ranks:
        assert rank.finish(30) == 0, rank.output
        assert rank.output.count("no error") == 2, rank.output
    said = r"SmdpError: \[smdp\] rank 0 .*a signal handler called barrier while all_reduce #\d+ float32\[3\]"
    assert len(re.findall(said, ranks[0].output)) == 2, ranks[0].output


@pytest.mark.parametrize("hosts", [ONE_HOST, THREE_HOSTS], ids=["one host", "three hosts"])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("busy", [True, False], ids=["in an operation", "idle"])
def test_killed_rank_is_named(hosts: list[int], victim: int, busy: bool, job: Job) -> None:
    code = f"""
g = joined()
g.barrier()
if g.rank == {victim}:
    time.sleep(0.5)   # the others leave the barrier, too
    if os.fork() == 0:   # like a DataLoader's worker, it outlives its parent
        os.close(1)   # the test reads that pipe to its end
        os.close(2)
        time.sleep(10)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
if not {busy}:
    time.sleep(2)
    assert isinstance(g.error(), smdp.PeerLostError), g.error()
report(lambda: g.all_reduce(np.ones(1_000_000)))
try:
    g.barrier()
except smdp.PeerLostError as error:
    assert error.ranks == [{victim}], error.ranks
"""
    for rank in job(3, code, hosts=hosts):
        if rank.rank == victim:
            rank.process.wait(20)
            continue
        assert rank.finish(30) == 0, rank.output
        assert "PeerLostError" in rank.output
        assert f"rank {victim} (host" in rank.output and "died" in rank.output, rank.output
        assert seconds(rank.output) < 5


@pytest.mark.parametrize("hosts", [ONE_HOST, THREE_HOSTS], ids=["one host", "three hosts"])
@pytest.mark.parametrize("victim", [0, 2])
def test_stopped_rank_is_named_at_the_timeout(hosts: list[int], victim: int, job: Job) -> None:
    code = f"""
g = joined(timeout=4)
g.barrier()
if g.rank == {victim}:
    os.kill(os.getpid(), signal.SIGSTOP)
report(lambda: g.all_reduce(np.ones(1_000_000)))
"""
    for rank in job(3, code, hosts=hosts):
        if rank.rank == victim:
            continue
        assert rank.finish(30) == 0, rank.output
        assert "TimeoutError" in rank.output
        assert f"rank {victim} (host" in rank.output and "does not answer" in rank.output, rank.output
        assert 3 < seconds(rank.output) < 6


@pytest.mark.parametrize("call", ["g.recv(np.ones(3), 1, tag=42)", "g.send(np.ones(3_000_000), 1, tag=42)"])
@pytest.mark.parametrize("hosts", [ONE_HOST, THREE_HOSTS], ids=["one host", "three hosts"])
def test_a_message_to_or_from_a_killed_rank_is_named(hosts: list[int], call: str, job: Job) -> None:
    code = f"""
g = joined()
g.barrier()
if g.rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
if g.rank == 0:
    report(lambda: {call})
"""
    rank = job(3, code, hosts=hosts)[0]
    assert rank.finish(30) == 0, rank.output
    way = "from" if "recv" in call else "to"
    said = rf"rank 0 of 3 \(host .*\): a message with tag 42 {way} rank 1 .* exchanged: rank 1 .* died"
    assert re.search(said, rank.output), rank.output
    assert seconds(rank.output) < 5


@pytest.mark.parametrize("hosts", [ONE_HOST, THREE_HOSTS], ids=["one host", "three hosts"])
def test_stopped_rank_is_named_by_what_waits_in_the_queue(hosts: list[int], job: Job) -> None:
    code = """
g = joined(timeout=60)
g.barrier()
if g.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
first = g.all_reduce(np.ones(4), async_op=True)
second = g.all_reduce(np.ones(4), async_op=True, timeout=4)
report(second.wait)
"""
    for rank in job(3, code, hosts=hosts):
        if rank.rank == 1:
            continue
        assert rank.finish(30) == 0, rank.output
        assert "it waits for the end of all_reduce #2 " in rank.output, rank.output
        assert "rank 1 (host" in rank.output and "does not answer" in rank.output, rank.output
        assert 3 < seconds(rank.output) < 6


@pytest.mark.parametrize("hosts", [ONE_HOST, THREE_HOSTS], ids=["one host", "three hosts"])
def test_stopped_rank_that_goes_on_in_time(hosts: list[int], job: Job, finish: Callable[..., None]) -> None:
    code = """
g = joined(timeout=20)
g.barrier()
if g.rank == 1:
    print("stopping", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
assert (g.all_reduce(np.ones(1_000_000)) == 3).all()
"""
    ranks = job(3, code, hosts=hosts)
    ranks[1].output += ranks[1].process.stdout.readline()
    time.sleep(2)
    os.kill(ranks[1].process.pid, signal.SIGCONT)
    finish(ranks)


@pytest.mark.parametrize("hosts", [ONE_HOST, THREE_HOSTS], ids=["one host", "three hosts"])
def test_stopped_rank_that_goes_on_too_late_blames_nobody_else(hosts: list[int], job: Job) -> None:
    code = """
g = joined(timeout=2)
g.barrier()
print("goes on", flush=True)
report(lambda: [g.all_reduce(np.ones(1_000_000)) for _ in range(100_000)])
if g.rank != 1:
    time.sleep(3)
"""
    ranks = job(3, code, hosts=hosts)
    ranks[1].output += ranks[1].process.stdout.readline()
    time.sleep(0.3)  # in the middle of an operation
    os.kill(ranks[1].process.pid, signal.SIGSTOP)
    time.sleep(4)  # until the others have raised
    os.kill(ranks[1].process.pid, signal.SIGCONT)
    for rank in ranks:
        assert rank.finish(30) == 0, rank.output
        assert "TimeoutError" in rank.output and "rank 1 (host" in rank.output, rank.output
        assert "waiting for rank 0" not in rank.output and "waiting for rank 2" not in rank.output, (
            rank.output
        )


def test_late_rank_is_named(job: Job) -> None:
    code = """
g = joined(timeout=3)
g.all_reduce(np.ones(3))
if g.rank == 1:
    time.sleep(5)
else:
    report(lambda: g.all_reduce(np.ones(4)))
"""
    for rank in job(3, code):
        rank.finish(30)
        if rank.rank != 1:
            assert "TimeoutError" in rank.output
            assert "rank 1 (host" in rank.output and "has not called it" in rank.output, rank.output


@pytest.mark.parametrize(("call", "what", "undone"), [
    ("g.recv(np.ones(100_000), 1, tag=3, timeout=2)", "from", "has not sent it"),
    ("g.send(np.ones(100_000), 1, tag=3, timeout=2)", "to", "has not received it"),
])  # fmt: skip
def test_message_that_nobody_takes_part_in(job: Job, call: str, what: str, undone: str) -> None:
    code = f"""
g = joined()
if g.rank == 0:
    report(lambda: {call})
else:
    time.sleep(3)
"""
    ranks = job(2, code)
    for rank in ranks:
        rank.finish(30)
    expected = f"a message with tag 3 {what} rank 1 (host "
    assert expected in ranks[0].output and ", but " + undone + "." in ranks[0].output, ranks[0].output


def test_exception_of_a_rank_reaches_the_others(job: Job) -> None:
    code = """
g = joined()
g.barrier()
if g.rank == 1:
    raise RuntimeError("out of luck")
report(lambda: g.all_reduce(np.ones(3)))
"""
    for rank in job(3, code):
        code = rank.finish(30)
        assert code == (1 if rank.rank == 1 else 0)
        assert "RuntimeError: out of luck" in rank.output
        if rank.rank != 1:
            assert "PeerLostError" in rank.output and "rank 1 (host" in rank.output


@pytest.mark.parametrize("hosts", [ONE_HOST, THREE_HOSTS], ids=["one host", "three hosts"])
def test_killed_rank_of_a_part_is_named_by_both_its_ranks(hosts: list[int], job: Job) -> None:
    code = """
g = joined()
part = g.split(1 if g.rank else None)
if g.rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if g.rank == 1:
    try:
        part.all_reduce(np.ones(9))
    except smdp.PeerLostError as error:
        print(error.ranks, error, flush=True)
"""
    ranks = job(3, code, hosts=hosts)
    assert ranks[2].finish(30) == -signal.SIGKILL
    assert ranks[1].finish(30) == 0, ranks[1].output
    assert "[1] [smdp] rank 0 of 2 in group 'world/split-0/1' (rank 1 of the world, host " in ranks[1].output
    assert "rank 1 of the group (rank 2 of the world, host " in ranks[1].output, ranks[1].output
    ranks[0].finish(30)


@pytest.mark.parametrize("hosts", [ONE_HOST, THREE_HOSTS], ids=["one host", "three hosts"])
@pytest.mark.parametrize(
    ("name", "value"), [("SMDP_ALGORITHM", "two_shot"), ("SMDP_DETERMINISTIC", "strict")]
)
def test_a_variable_that_differs_is_named_on_all_ranks(
    name: str, value: str, hosts: list[int], job: Job
) -> None:
    ranks = job(3, "report(joined)", hosts=hosts, own={2: {name: value}})
    for rank in ranks:
        assert rank.finish(30) == 0, rank.output
        assert f"ConfigError: [smdp] rank {rank.rank} of 3" in rank.output, rank.output
        assert f"{name} is 'auto'" in rank.output or f"{name} is 'not strict'" in rank.output, rank.output
        assert f"but '{value}' on rank 2" in rank.output, rank.output
        assert seconds(rank.output) < 8


def test_message_of_another_size_or_dtype(job: Job) -> None:
    code = """
g = joined()
def talk():
    if g.rank == 0:
        g.recv(np.empty(3), 1, tag=4)
    else:
        g.send(np.ones(4), 0, tag=4)
        g.barrier()
report(talk)
"""
    for rank in job(2, code):
        assert rank.finish(30) == 0
        assert "MismatchError" in rank.output and "float64[3]" in rank.output and "float64[4]" in rank.output


@pytest.mark.parametrize(
    ("size", "here", "told"),
    [
        (3, [0, 2], "ranks 0, 2 of 3 joined; missing: 1."),
        (300, [0, 1], "ranks 0-1 of 300 joined; missing: 2-299."),
        (2, [1], "[smdp] rank 1 of 2 cannot reach rank 0's store: cannot connect to 127.0.0.1"),
    ],
)
def test_missing_rank_at_rendezvous(job: Job, size: int, here: list[int], told: str) -> None:
    ranks = job(size, "report(joined)", ranks=here, environ={"SMDP_INIT_TIMEOUT": "2"})
    for rank in ranks:
        assert rank.finish(30) == 0, rank.output
        assert "TimeoutError" in rank.output
        assert told in rank.output, rank.output


def test_wrong_secret_is_refused(job: Job) -> None:
    ranks = job(2, "report(joined)", own={1: {"SMDP_SECRET": "guess"}}, environ={"SMDP_INIT_TIMEOUT": "3"})
    for rank in ranks:
        assert rank.finish(30) == 0, rank.output
    assert "ConfigError" in ranks[1].output and "if you set SMDP_SECRET" in ranks[1].output, ranks[1].output
    assert "missing: 1" in ranks[0].output and "refused a connection" in ranks[0].output
    assert "guess" not in ranks[0].output + ranks[1].output


def test_garbage_on_the_port_is_refused_and_logged_once(job: Job, finish: Callable[..., None]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = """
g = joined()
print("joined", flush=True)
end = time.monotonic() + 3
while g.all_reduce(np.array([time.monotonic() < end]), smdp.BAND)[0]:
    pass
"""
    ranks = job(2, code, port=port)
    for rank in ranks:
        rank.output += rank.process.stdout.readline()
    for i in range(30):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
            stranger.sendall(os.urandom(7 * i + 1))
    finish(ranks)
    assert ranks[0].output.count("refused a connection") == 1, ranks[0].output


def test_forked_child_cannot_use_the_group(job: Job, finish: Callable[..., None]) -> None:
    code = """
g = joined()
child = os.fork()
if child == 0:
    try:
        g.barrier()
    except smdp.ClosedError as error:
        os._exit(7 if "forked child" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
g.barrier()
"""
    finish(job(2, code))


def test_forked_child_is_told_that_its_handles_and_its_world_are_not_its_own(
    job: Job, finish: Callable[..., None]
) -> None:
    code = """
g = joined()
if g.rank == 0:
    handle = g.all_reduce(np.ones(4), async_op=True)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        refused = 0
        smdp.shutdown()  # is the parent's to call
        for call in (handle.wait, joined, lambda: smdp.init(0, 1)):
            try:
                call()
            except smdp.ClosedError as error:
                refused += "forked child" in str(error)
        told = handle.done() and isinstance(handle.error(), smdp.ClosedError) and not smdp.is_initialized()
        os._exit(7 if refused == 3 and smdp.rank() == 0 and told else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert smdp.is_initialized() and not handle.done() and handle.error() is None
    everybody = g.barrier(async_op=True)
    assert handle.wait()[0] == 2
    everybody.wait()
else:
    time.sleep(1)
    g.all_reduce(np.ones(4))
    g.barrier()
"""
    finish(job(2, code))


def test_forked_children_of_a_process_without_a_group_may_be_ranks(
    job: Job, finish: Callable[..., None]
) -> None:
    code = """
child = os.fork()
if child == 0:
    joined().barrier()
    smdp.shutdown()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    finish(job(2, code))


@pytest.mark.parametrize(
    "ending",
    [
        "smdp.shutdown(); smdp.shutdown()",
        "pass",
        "g.shutdown(); del g",
        "h = g.all_reduce(np.ones(1_000_000), async_op=True)",
        "h = [g.all_reduce(np.ones(99_999), async_op=True) for _ in range(5)]; h[-1].wait()",
        "h = g.recv(np.ones(3), async_op=True) if g.rank else None",
    ],
)
def test_every_way_to_end_is_clean(ending: str, job: Job, finish: Callable[..., None]) -> None:
    finish(job(2, f"g = joined()\ng.barrier()\n{ending}\n"))


def test_leaving_with_operations_in_flight(job: Job) -> None:
    code = """
g = joined()
g.barrier()
def leave():
    handles = [g.all_reduce(np.ones(1_000_000), async_op=True) for _ in range(5)]
    smdp.shutdown()
    for handle in handles:
        handle.wait()
report(leave)
"""
    for rank in job(2, code):
        assert rank.finish(30) == 0, rank.output
        assert "no error" in rank.output or "ClosedError" in rank.output or "PeerLostError" in rank.output


def test_init_again_after_shutdown(job: Job, finish: Callable[..., None]) -> None:
    finish(job(1, "joined(); smdp.shutdown(); assert joined().size == 1"))


def test_a_signal_handler_may_shut_down_a_blocking_call(job: Job) -> None:
    code = """
import signal
g = joined()
g.barrier()
if g.rank == 1:
    time.sleep(2)
    report(lambda: g.barrier())
else:
    signal.signal(signal.SIGTERM, lambda *_: smdp.shutdown())
    print("waiting", flush=True)
    report(lambda: g.all_reduce(np.ones(4)))
"""
    ranks = job(2, code)
    ranks[0].output += ranks[0].process.stdout.readline()
    time.sleep(0.5)
    os.kill(ranks[0].process.pid, signal.SIGTERM)
    assert ranks[0].finish(20) == 0, ranks[0].output
    assert "ClosedError" in ranks[0].output, ranks[0].output
    assert ranks[1].finish(20) == 0, ranks[1].output


@pytest.mark.parametrize("rank", [0, 1])
def test_control_c_ends_a_start_that_waits_for_others(rank: int, job: Job) -> None:
    """For a rank that never comes, or for rank 0."""
    (waiting,) = job(2, "print('waiting', flush=True); joined()", ranks=[rank])
    waiting.output += waiting.process.stdout.readline()
    time.sleep(0.7)
    begin = time.monotonic()
    os.kill(waiting.process.pid, signal.SIGINT)
    assert waiting.finish(20) != 0
    assert time.monotonic() - begin < 5
    assert "KeyboardInterrupt" in waiting.output, waiting.output


AGAIN = """
def apart(slow, keeps):
    kept = smdp.world(), smdp.world().split(0)  # and with them the old store
    smdp.shutdown()
    if not keeps:
        del kept
    time.sleep(1.0 if g_rank == slow else 0.0)
    g = joined()
    assert (g.rank, g.size) == (g_rank, 2) and (g.all_reduce(np.ones(3)) == 2).all()
    assert (g.split(0).all_reduce(np.ones(3)) == 2).all()

g_rank = joined().rank
for slow in (0, 1, 0):
    for keeps in (True, False):
        apart(slow, keeps)
"""


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1]], ids=["one host", "two hosts"])
def test_ranks_init_again_one_after_the_other(
    hosts: list[int], job: Job, finish: Callable[..., None]
) -> None:
    finish(job(2, AGAIN, hosts=hosts), 60)


def test_a_rank_that_inits_again_alone_is_told_why(job: Job) -> None:
    code = """
g = joined()
smdp.shutdown()
if g.rank == 0:
    time.sleep(4)
else:
    report(joined)
"""
    ranks = job(2, code, environ={"SMDP_INIT_TIMEOUT": "2"})
    assert [rank.finish(30) for rank in ranks] == [0, 0], ranks[1].output
    assert "TimeoutError: [smdp] rank 1 of 2: this rank has called smdp.init() before, " in (ranks[1].output)


def test_control_c_ends_a_blocking_call(job: Job) -> None:
    code = """
g = joined()
g.barrier()
if g.rank == 1:
    time.sleep(3)
    report(lambda: g.barrier())
else:
    print("waiting", flush=True)
    g.barrier()
"""
    ranks = job(2, code)
    ranks[0].output += ranks[0].process.stdout.readline()
    time.sleep(0.5)
    os.kill(ranks[0].process.pid, signal.SIGINT)
    assert ranks[0].finish(20) != 0
    assert "KeyboardInterrupt" in ranks[0].output
    assert ranks[1].finish(20) == 0
    assert "interrupted" in ranks[1].output or "KeyboardInterrupt" in ranks[1].output


TIME_LIMITS = """
def refused(call, *values):
    for value in values:
        try:
            call(value)
        except (ValueError, TypeError) as error:
            text = f"[smdp] timeout = {value!r} is not valid; allowed: "
            assert str(error) in (text + "seconds above 0", text + "a number"), error
        else:
            raise AssertionError(f"accepted: {value}")

nonsense = (0, -1, -2.5, float("nan"), -float("inf"), "3", [1])
refused(lambda limit: smdp.init(timeout=limit), *nonsense)
assert not smdp.is_initialized()
lengths = (float("inf"), 1e300, 1e18, 1e10, 10**9, np.float32(60))
g = smdp.init(timeout=float("inf"))
n = g.size
calls = (
    lambda limit: g.all_reduce(np.ones(3), timeout=limit),
    lambda limit: g.barrier(timeout=limit),
    lambda limit: g.all_reduce_coalesced([np.ones(3)], timeout=limit)[0],
    lambda limit: g.recv(np.ones(3), timeout=limit) if g.rank else g.send(np.ones(3), 1, timeout=limit),
)
for call in calls:
    refused(call, *nonsense)
handle = g.all_reduce(np.ones(3), async_op=True)
refused(handle.wait, *nonsense)
assert (handle.wait(60) == n).all()
for limit in lengths:
    time.sleep(0.05 * g.rank)  # the other one waits
    assert (g.all_reduce(np.ones(3), timeout=limit) == n).all()
    time.sleep(0.05 * g.rank)
    assert (g.all_reduce(np.ones(3), async_op=True, timeout=limit).wait(limit) == n).all()
time.sleep(0.05 * g.rank)
assert (g.all_reduce(np.ones(3)) == n).all()
assert (g.split(0).all_reduce(np.ones(3)) == n).all()
"""


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1]], ids=["one host", "two hosts"])
def test_time_limits(hosts: list[int], job: Job, finish: Callable[..., None]) -> None:
    finish(job(2, TIME_LIMITS, hosts=hosts))


@pytest.mark.parametrize("value", ["1e300", "inf", "1e10"])
def test_a_variable_for_a_very_long_time(value: str, job: Job, finish: Callable[..., None]) -> None:
    code = "g = smdp.init()\ntime.sleep(0.2 * g.rank)\nassert (g.all_reduce(np.ones(3)) == 2).all()"
    finish(job(2, code, environ={"SMDP_TIMEOUT": value, "SMDP_INIT_TIMEOUT": value}))


WRONG_ARGUMENTS = """
g = joined()
a, blocks = np.ones(4), np.ones(4 * g.size)
ops = "smdp.SUM, smdp.AVG, smdp.PREMUL_SUM, smdp.PRODUCT, smdp.MIN, smdp.MAX, smdp.BAND, smdp.BOR, smdp.BXOR"
for call, text in (
    (lambda: g.all_reduce(a, "sum"), "op = 'sum' is not valid; allowed: " + ops),
    (lambda: g.all_reduce(a, True), "op = True is not valid; allowed: " + ops),
    (lambda: g.all_reduce(a, 1.0), "op = 1.0 is not valid; allowed: " + ops),
    (lambda: g.all_reduce(a, 9), "op = 9 is not valid; allowed: " + ops),
    (lambda: g.reduce(a, 0, None), "op = None is not valid; allowed: " + ops),
    (lambda: g.reduce_scatter(blocks, [1]), "op = [1] is not valid; allowed: " + ops),
    (lambda: g.all_reduce(a, smdp.PREMUL_SUM, factor="2"), "factor = '2' is not valid; allowed: a number"),
    (lambda: g.reduce(a, 0.0), "root = 0.0 is not valid; allowed: an integer"),
    (lambda: g.broadcast(a, "0"), "root = '0' is not valid; allowed: an integer"),
    (lambda: g.gather(a, None), "root = None is not valid; allowed: an integer"),
    (lambda: g.scatter(blocks, 2**40, out=a), f"root = {2**40} is not valid; allowed: an integer below 2^31"),
    (lambda: g.send(a, "next"), "dst = 'next' is not valid; allowed: an integer"),
    (lambda: g.send(a, 1, tag=2**80), f"tag = {2**80} is not valid; allowed: an integer below 2^63"),
    (lambda: g.recv(a, 0.5), "src = 0.5 is not valid; allowed: an integer"),
    (lambda: g.recv(a, tag="x"), "tag = 'x' is not valid; allowed: an integer"),
    (lambda: g.split("a"), "color = 'a' is not valid; allowed: an integer"),
    (lambda: g.split(0, 1.5), "key = 1.5 is not valid; allowed: an integer"),
    (lambda: g.barrier(async_op=1), "async_op = 1 is not valid; allowed: True, False"),
    (lambda: g.reduce_scatter([a]), "the array has 1 arrays; it needs one per rank, 2."),
    (lambda: g.all_to_all([], out=[a, a]), "the array has 0 arrays; it needs one per rank, 2."),
    (lambda: g.abort(3), "reason = 3 is not valid; allowed: a str"),
):
    try:
        call()
    except (ValueError, TypeError) as error:
        assert str(error) == "[smdp] " + text, error
    else:
        raise AssertionError("accepted: " + text)
# What looks alike is taken, and the group has not been harmed.
assert (g.all_reduce(np.ones(3), np.int64(smdp.MAX)) == 1).all()
assert (g.broadcast(np.full(3, g.rank), np.int64(1)) == 1).all()
assert (g.all_reduce(np.ones(3), smdp.PREMUL_SUM, factor=np.float32(2)) == 2 * g.size).all()
if g.rank == 0:
    g.send(a, 1, tag=2**40)
else:
    assert g.recv(a, np.int32(0), tag=2**40) == 0
"""


def test_wrong_arguments_are_one_line(job: Job, finish: Callable[..., None]) -> None:
    finish(job(2, WRONG_ARGUMENTS))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SMDP_RANK", "two"),
        ("SMDP_RANK", "-1"),
        ("SMDP_RANK", "5"),
        ("SMDP_WORLD_SIZE", "0"),
        ("SMDP_MASTER_PORT", "70000"),
        ("SMDP_TIMEOUT", "soon"),
        ("SMDP_ALGORITHM", "fastest"),
    ],
)
def test_nonsense_is_one_line(variable: str, value: str, job: Job) -> None:
    rank = job(2, "report(joined)", ranks=[0], environ={variable: value})[0]
    assert rank.finish(20) == 0
    assert "ConfigError" in rank.output and variable in rank.output and value in rank.output, rank.output
    assert len(rank.output.strip().splitlines()) == 1
