"""SIGTERM to one rank stops all at the same step, they save and ask for a restart, which goes on."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Job = Callable[..., list[Any]]

# Every step depends on all before it and on all ranks; what is saved is all that a step needs.
TRAIN = """
import pathlib
folder = pathlib.Path(sys.argv[0]).parent / "state"
g = joined()
state = folder / "state.npy"
x, step = np.random.default_rng(0).normal(size=50), 0
if state.exists():
    saved = np.load(state)
    x, step = saved[1:], int(saved[0])

def save():
    if g.rank == 0:
        time.sleep(0.5)  # others must not leave it alone
        np.save(folder / "new.npy", np.concatenate([[step], x]))
        os.replace(folder / "new.npy", state)
    print("saved at", step, flush=True)

while step < STEPS:
    part = np.sin(x * (g.rank + step % 7))
    x = 0.9 * x + 0.1 * g.all_reduce(part, op=smdp.AVG)
    step += 1
    time.sleep(PAUSE)
    smdp.exit_if_preempted(save)
    if step == 1 or step % 50 == 0:
        print("step", step, flush=True)
print("result", x.tobytes().hex(), flush=True)
"""


def steps(count: int, pause: float = 0.0) -> str:
    return TRAIN.replace("STEPS", str(count)).replace("PAUSE", str(pause))


def read_until(rank: Any, word: str) -> None:
    while word not in rank.output:
        line = rank.process.stdout.readline()
        assert line, rank.output
        rank.output += line


def finish(ranks: list[Any], code: int = 0) -> list[str]:
    """Wait for all; give what they printed."""
    codes = [rank.finish(40) for rank in ranks]
    outputs = [rank.output for rank in ranks]
    assert codes == [code] * len(ranks), "\n".join(outputs)
    assert not any("Traceback" in output for output in outputs), "\n".join(outputs)
    return outputs


@pytest.mark.parametrize("ending", ["", "smdp.shutdown()"])
@pytest.mark.parametrize("hosts", [[0, 0], [0, 1]], ids=["one host", "two hosts"])
def test_a_rank_that_is_behind_gets_its_last_answer(hosts: list[int], ending: str, job: Job) -> None:
    code = """
g = joined()
for step in range(3):
    if step == 2 and g.rank == 1:
        time.sleep(1.5)
    assert not smdp.preempted()
"""
    finish(job(2, code + ending, hosts=hosts))


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1], [0, 0, 1, 1]], ids=["one host", "two hosts", "2 x 2"])
def test_all_stop_at_one_step_and_the_next_start_goes_on(hosts: list[int], job: Job, tmp_path: Path) -> None:
    size = len(hosts)
    (tmp_path / "state").mkdir()
    whole = finish(job(size, steps(300), hosts=hosts))
    ranks = job(size, steps(300, 0.01), hosts=hosts)
    for rank in ranks:
        read_until(rank, "step 1\n")
    victim = random.randrange(size)
    time.sleep(random.uniform(0, 1))
    ranks[victim].process.send_signal(signal.SIGTERM)
    outputs = finish(ranks, 75)
    stopped = {re.findall(r"saved at (\d+)", output)[0] for output in outputs}
    assert len(stopped) == 1, outputs
    told = [output for output in outputs if "all ranks stop" in output]
    assert told == [outputs[victim]] and f"ranks [{victim}] of {size} received SIGTERM" in told[0], outputs
    resumed = finish(job(size, steps(300), hosts=hosts))
    for before, after in zip(whole, resumed, strict=True):
        assert re.findall("result .*", after) == re.findall("result .*", before)


def test_at_the_latest_in_the_second_call_after_the_signal(job: Job) -> None:
    code = """
g = joined()
calls = []
for step in range(20):
    if step == 10 and g.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    g.barrier()
    calls.append(smdp.preempted())
print("first", calls.index(True), all(calls[calls.index(True):]))
"""
    assert all("first 11 True" in output for output in finish(job(2, code)))


def test_several_ranks_and_several_signals(job: Job) -> None:
    code = """
g = joined()
smdp.watch_preemption(signal.SIGTERM, signal.SIGUSR1)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
    os.kill(os.getpid(), number)
while not smdp.preempted():
    pass
sys.exit(75)
"""
    outputs = finish(job(3, code), 75)
    assert "ranks [0, 1, 2] of 3 received SIGTERM" in outputs[0]


def test_one_rank_alone_and_a_code_of_ones_own(job: Job) -> None:
    code = """
joined()
smdp.watch_preemption()
os.kill(os.getpid(), signal.SIGTERM)
smdp.exit_if_preempted(lambda: print("saved"), code=VALUE)
"""
    assert "saved" in finish(job(1, code.replace("VALUE", "None")), 75)[0]
    assert "saved" in finish(job(1, code.replace("VALUE", "9")), 9)[0]
    by_variable = job(1, code.replace("VALUE", "None"), environ={"SMDP_PREEMPTED_EXIT_CODE": "99"})
    assert "saved" in finish(by_variable, 99)[0]


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1]], ids=["one host", "two hosts"])
@pytest.mark.parametrize("end", ["smdp.shutdown()", "sys.exit(0)", ""])
def test_an_exchange_in_flight_does_not_disturb_the_end(end: str, hosts: list[int], job: Job) -> None:
    code = f"""
g = joined()
for _ in range(3):
    assert not smdp.preempted()
if g.rank == 1:
    time.sleep(0.3)
{end}
"""
    assert finish(job(2, code, hosts=hosts)) == ["", ""]


def test_a_world_after_another(job: Job) -> None:
    code = """
import socket
port = int(os.environ["SMDP_MASTER_PORT"])
for _ in range(2):
    g = smdp.init(master_port=port, timeout=20)
    assert not smdp.preempted() and not smdp.preempted()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(g.broadcast(np.array([probe.getsockname()[1]]), root=0)[0])
    smdp.shutdown()
"""
    finish(job(2, code))


def test_unequal_calls_are_an_error_that_names_the_rank(job: Job) -> None:
    code = """
g = joined(timeout=3)
smdp.preempted()
if g.rank == 1:
    time.sleep(6)
else:
    report(lambda: [smdp.preempted() for _ in range(2)])
"""
    outputs = finish(job(2, code))
    assert "TimeoutError" in outputs[0] and "rank 1 (host" in outputs[0], outputs
    assert "the same number of times" in outputs[0]


def test_a_rank_killed_meanwhile_is_named(job: Job) -> None:
    code = """
g = joined()
while not smdp.preempted():
    g.barrier()
    print("step 1", flush=True)
    if g.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    ranks = job(3, code)
    ranks[1].process.wait(20)
    # As torchrun does with those that are left: the flag must not keep them from ending.
    ranks[0].process.send_signal(signal.SIGTERM)
    for rank in (ranks[0], ranks[2]):
        # Python, while it ends, has no handlers.
        assert rank.finish(20) in (1, -signal.SIGTERM), rank.output
        assert "PeerLostError" in rank.output and "rank 1 (host" in rank.output


def test_a_rank_that_fails_to_save_is_named(job: Job) -> None:
    code = """
g = joined()
def save():
    if g.rank == 1:
        raise OSError("disk full")
smdp.watch_preemption()
os.kill(os.getpid(), signal.SIGTERM)
while True:
    smdp.exit_if_preempted(save)
"""
    ranks = job(2, code)
    assert [rank.finish(20) for rank in ranks] == [1, 1]
    assert "rank 1 (host" in ranks[0].output and "disk full" in ranks[0].output, ranks[0].output


def test_handlers_of_others(job: Job) -> None:
    code = """
signal.signal(signal.SIGTERM, lambda *_: print("mine", flush=True))
joined()
assert not smdp.preempted()
ours = signal.getsignal(signal.SIGTERM)
smdp.watch_preemption()
assert signal.getsignal(signal.SIGTERM) is ours
# Somebody puts a handler before ours that calls it, and we are put before that one.
signal.signal(signal.SIGTERM, lambda *them: (print("theirs", flush=True), ours(*them)))
smdp.watch_preemption()
os.kill(os.getpid(), signal.SIGTERM)
assert smdp.preempted()
# A child can be ended as before.
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
smdp.watch_preemption(signal.SIGUSR1)
pid = os.fork()
if pid == 0:
    time.sleep(20)
    os._exit(0)
time.sleep(0.5)  # it must have begun
os.kill(pid, signal.SIGUSR1)
assert os.waitpid(pid, 0)[1] == signal.SIGUSR1
"""
    output = finish(job(1, code))[0]
    assert output.count("theirs\n") == output.count("mine\n") == 1


GIVING_BACK = """
from smdp import preemption
term = signal.SIGTERM
joined()

def told():
    os.kill(os.getpid(), term)

def end():
    preemption.give_back()
    assert signal.getsignal(term) is signal.SIG_DFL and not preemption.is_watching()
"""


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("preemption.watch(); told()", id="that nobody has heard"),
        pytest.param("preemption.watch(); told(); preemption.watch()", id="before a training begins again"),
        pytest.param(
            "preemption.watch(); told(); preemption.give_back(is_failing=True); preemption.watch()",
            id="in a training that failed, whose next one does not ask",
        ),
        pytest.param(
            "preemption.watch(); told(); assert smdp.preempted(); end();"
            " smdp.shutdown(); smdp.init(rank=0, world_size=1); preemption.watch(); told()",
            id="that is another one than preempted() told of",
        ),
        pytest.param(
            "smdp.watch_preemption(signal.SIGUSR1); preemption.watch(); told();"
            " os.kill(os.getpid(), signal.SIGUSR1)",
            id="beside one that the program watches",
        ),
        pytest.param(
            "preemption.watch(); ours = signal.getsignal(term); end(); signal.signal(term, ours); told()",
            id="at a handler of ours that was put back later",
        ),
    ],
)
def test_a_signal_comes_again(body: str, job: Job) -> None:
    (rank,) = job(1, f"{GIVING_BACK}\n{body}\nprint('still here', flush=True)\npreemption.give_back()\n")
    assert rank.finish(20) == -signal.SIGTERM, rank.output
    assert ("still here" in rank.output) == ("signal(term, ours)" not in body)


def test_a_signal_that_was_acted_on_does_not_come_again(job: Job) -> None:
    code = """
preemption.watch()
told()
assert smdp.preempted() and smdp.preempted()
told()  # further ones change nothing
end()
# A handler of Python code has been called already.
heard = []
mine = lambda *_: heard.append(1)
signal.signal(term, mine)
preemption.watch()
told()
preemption.give_back()
assert signal.getsignal(term) is mine and len(heard) == 1
preemption.give_back()
assert len(heard) == 1
"""
    finish(job(1, GIVING_BACK + code))


def test_handlers_are_given_back_after_a_training_that_failed(job: Job) -> None:
    code = """
for _ in range(3):  # the first two fail without a word
    preemption.watch()
end()
preemption.watch()
assert not smdp.preempted()
preemption.give_back(is_failing=True)
end()
# Somebody else has put the handlers back.
preemption.watch()
signal.signal(term, signal.SIG_DFL)
assert not preemption.is_watching()
end()
assert not smdp.preempted() and preemption.is_watching()
end()
# One of ours, which somebody had kept.
preemption.watch()
ours = signal.getsignal(term)
end()
signal.signal(term, ours)
preemption.watch()
end()
# What a failed training was told, the next one hears.
preemption.watch()
told()
preemption.give_back(is_failing=True)
assert signal.getsignal(term) is signal.SIG_DFL
preemption.watch()
assert smdp.preempted()
end()
"""
    finish(job(1, GIVING_BACK + code))


@pytest.mark.parametrize("wish", ["smdp.watch_preemption()", "assert not smdp.preempted()"])
@pytest.mark.parametrize("order", ["WISH; preemption.watch()", "preemption.watch(); WISH"])
def test_what_the_program_watches_stays(wish: str, order: str, job: Job) -> None:
    is_lasting = order.startswith("WISH") or "watch" in wish
    code = f"""
{order.replace("WISH", wish)}
preemption.give_back()
assert preemption.is_watching() == {is_lasting}
"""
    finish(job(1, GIVING_BACK + code))


def test_a_thread_asks_once_the_main_thread_watches(job: Job) -> None:
    code = """
import threading
joined()
smdp.watch_preemption()
os.kill(os.getpid(), signal.SIGTERM)
def ask():
    smdp.watch_preemption(signal.SIGTERM)
    print("told", smdp.preempted(), flush=True)
thread = threading.Thread(target=ask)
thread.start()
thread.join()
"""
    assert "told True" in finish(job(1, code))[0]


def test_a_rank_forked_from_a_process_that_watches(job: Job) -> None:
    code = """
smdp.watch_preemption()
os.kill(os.getpid(), signal.SIGTERM)
pid = os.fork()
if pid:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
joined()
assert not smdp.preempted(), "that was the parent's"
os.kill(os.getpid(), signal.SIGTERM)
assert smdp.preempted()
"""
    finish(job(1, code))


THREAD = """import threading
    thread = threading.Thread(target=report, args=(smdp.preempted,), name="mine")
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("smdp.preempted()", ["ConfigError", "smdp.init()", 'init_process_group("smdp")']),
        ("smdp.watch_preemption(signal.SIGKILL)", ["ValueError", "cannot watch signal 9"]),
        ("smdp.watch_preemption(1000)", ["ValueError", "cannot watch signal 1000"]),
        ("smdp.watch_preemption('TERM')", ["TypeError", "'TERM'"]),
        ("smdp.exit_if_preempted(print, code=0)", ["ValueError", "code = 0", "1 to 125"]),
        ("smdp.exit_if_preempted(print, code=True)", ["ValueError", "code = True"]),
        (
            THREAD,
            ["ConfigError", "main thread", "'mine'"],
        ),
    ],
)
def test_wrong_calls(call: str, words: list[str], job: Job) -> None:
    code = f"def body():\n    {call}\nreport(body)\n"
    output = finish(job(1, code))[0]
    assert all(word in output for word in words), output


def test_a_wrong_exit_code_is_found_before_training(job: Job) -> None:
    output = job(1, "report(smdp.watch_preemption)", environ={"SMDP_PREEMPTED_EXIT_CODE": "0"})[0]
    output.finish(20)
    assert "SMDP_PREEMPTED_EXIT_CODE='0' is not valid; allowed: an integer >= 1 and <= 125" in output.output
