"""init_process_group("smdp") without torch's variables: what is read, refused, and left alone."""

from __future__ import annotations

import errno
import os
import random
import re
import socket

import pytest
from torch_program import Program

pytestmark = pytest.mark.timeout(200)

_JOIN = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group(*sys.argv[1:])
total = torch.ones(1)
dist.all_reduce(total)
rank, ranks, port = dist.get_rank(), dist.get_world_size(), os.environ["MASTER_PORT"]
print(f"rank {rank} of {ranks}, sum {total.item():g}, MASTER_PORT={port}")
dist.destroy_process_group()
"""
_LAUNCHERS = re.compile(r"(SMDP|MASTER|OMPI|PMI|PMIX|SLURM|PET)_|(LOCAL_)?(RANK|WORLD_SIZE)$")


def start(backend: str = "smdp", code: str = _JOIN, **more: str) -> Program:
    environ = {name: value for name, value in os.environ.items() if not _LAUNCHERS.match(name)}
    return Program(code, [backend], {**environ, "OMP_NUM_THREADS": "1", **more})


def run(backend: str = "smdp", code: str = _JOIN, **more: str) -> tuple[int | None, str]:
    process = start(backend, code, **more)
    output = process.communicate(timeout=180)[0]
    return process.returncode, output


def task(rank: int, ranks: int, **more: str) -> dict[str, str]:
    known = {"SLURM_PROCID": rank, "SLURM_NTASKS": ranks, "SLURM_STEP_NUM_TASKS": ranks, "SLURM_STEP_ID": 0}
    names = {"SLURM_JOB_ID": "17", "SLURM_STEP_NODELIST": "localhost"}
    return {**{name: str(value) for name, value in known.items()}, **names, **more}


def full(**more: str) -> dict[str, str]:
    """All that torch reads."""
    return {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **more}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_ranks_of_a_launcher_that_torch_does_not_know() -> None:
    # The tasks of srun; a store of smdp's own could stand beside torch's, which is one port below.
    port = int(free_port())
    both = [start(**task(rank, 2, SMDP_MASTER_PORT=str(port))) for rank in range(2)]
    outputs = [one.communicate(timeout=180)[0] for one in both]
    for rank, output in enumerate(outputs):
        assert f"rank {rank} of 2, sum 2, MASTER_PORT={port - 1}" in output, outputs


def test_both_worlds_where_the_launcher_names_no_port() -> None:
    code = "import smdp; smdp.init()" + _JOIN
    job = str(random.randrange(1 << 30))
    both = [start(code=code, **task(rank, 2, SLURM_JOB_ID=job)) for rank in range(2)]
    outputs = [one.communicate(timeout=180)[0] for one in both]
    for rank, output in enumerate(outputs):
        assert f"rank {rank} of 2, sum 2" in output, outputs


def test_worlds_one_after_the_other() -> None:
    """Rank 1 begins the second while rank 0 still ends the first, which holds the store; then none waits."""
    code = """
import os, sys, time, torch.distributed as dist
for world in range(20):
    dist.init_process_group(*sys.argv[1:])
    if world == 0 and dist.get_rank() == 0:
        time.sleep(0.5)  # the other one is at the next world's store
    dist.destroy_process_group()
print("20 worlds")
"""
    port = free_port()
    both = [start(code=code, **full(RANK=str(rank), MASTER_PORT=port)) for rank in range(2)]
    outputs = [one.communicate(timeout=180)[0] for one in both]
    assert all("20 worlds" in output for output in outputs), outputs


def test_alone_with_one_warning() -> None:
    code, output = run()
    assert code == 0, output
    assert "rank 0 of 1, sum 1" in output
    assert output.count("no launcher has started this process, so it trains alone") == 1


def test_figures_are_printed_once_where_no_launcher_has_given_the_ranks() -> None:
    code = (
        "import os, smdp, torch.distributed as dist\n"
        "url = 'tcp://127.0.0.1:' + os.environ['PORT']\n"
        "dist.init_process_group('smdp', init_method=url, rank=int(os.environ['PART']), world_size=2)\n"
        "smdp.print_step(1, loss=0.5)\n"
        "dist.barrier()\n"
    )
    port = free_port()
    both = [start(code=code, PORT=port, PART=str(rank)) for rank in range(2)]
    outputs = [one.communicate(timeout=180)[0] for one in both]
    assert "smdp_step=1 loss=0.5\n" in outputs[0] and "smdp_step" not in outputs[1], outputs
    assert [one.returncode for one in both] == [0, 0], outputs


def test_a_misspelt_variable_is_told_by_rank_0_alone() -> None:
    port = free_port()
    both = [start(**full(RANK=str(rank), MASTER_PORT=port, SMDP_TIMEOT="3")) for rank in range(2)]
    outputs = [one.communicate(timeout=180)[0] for one in both]
    assert [output.count("did you mean SMDP_TIMEOUT?") for output in outputs] == [1, 0], outputs


def test_a_rank_of_another_launcher_is_refused_or_told() -> None:
    """As a library gives it that looks for launchers itself; without env:// the place is somebody's own."""
    code = (
        "import datetime, torch.distributed as dist\n"
        "dist.init_process_group('smdp', {}rank=0, world_size=2, timeout=datetime.timedelta(seconds=2))\n"
    )
    told = (
        "[smdp] this process is rank 0 of 2 according to init_process_group() with rank=0, world_size=2, and"
        " rank 1 of 2 according to SLURM."
    )
    environ = task(1, 2, SMDP_INIT_TIMEOUT="2")
    exit_code, output = run(code=code.format(""), **environ)
    assert exit_code == 1 and f"ConfigError: {told}" in output, output
    store = "store=dist.HashStore(), "
    exit_code, output = run(code=code.format(store), **environ)
    assert told in output and "ConfigError" not in output, output


def test_other_backends_are_left_alone() -> None:
    code, output = run("gloo", **task(0, 1))
    assert code == 1
    assert "environment variable RANK expected, but not set" in output
    assert "[smdp]" not in output


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"WORLD_SIZE": "2"}, "environment variable RANK expected"),
        ({"MASTER_ADDR": "192.0.2.1"}, "environment variable RANK expected"),
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            "torchrun does not provide the address of rank 0 of 2; set MASTER_ADDR=",
        ),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK='5' is not valid; allowed: 0 to 1, since WORLD_SIZE=2"),
        (task(0, 2, SLURM_NTASKS="x"), "SLURM_NTASKS='x' is not valid"),
        (
            full(RANK="1", MASTER_ADDR="no-such.invalid"),
            "[smdp] MASTER_ADDR='no-such.invalid' cannot be resolved on host",
        ),
        (full(RANK="a"), "RANK='a' is not valid; allowed: an integer >= 0"),
        (full(RANK="-1"), "RANK='-1' is not valid; allowed: an integer >= 0"),
        (full(RANK="2"), "RANK='2' is not valid; allowed: 0 to 1, since WORLD_SIZE=2"),
        (full(WORLD_SIZE="0"), "WORLD_SIZE='0' is not valid; allowed: an integer >= 1"),
        (full(WORLD_SIZE="two"), "WORLD_SIZE='two' is not valid; allowed: an integer >= 1"),
        (full(MASTER_PORT="0"), "MASTER_PORT='0' is not valid; allowed: a port, 1 to 65535"),
        (full(MASTER_PORT="70000"), "MASTER_PORT='70000' is not valid; allowed: a port, 1 to 65535"),
        (full(MASTER_PORT="http"), "MASTER_PORT='http' is not valid; allowed: a port, 1 to 65535"),
    ],
)
def test_wrong_input(more: dict[str, str], message: str) -> None:
    code, output = run(SMDP_INIT_TIMEOUT="5", **more)
    assert code == 1
    assert message in output.strip().splitlines()[-1], output


def test_a_rank_of_ones_own_goes_before_a_variable() -> None:
    code = "import torch.distributed as dist\ndist.init_process_group('smdp', rank={}, world_size=2)\n"
    exit_code, output = run(code=code.format(5), SMDP_INIT_TIMEOUT="2", **full(RANK="a", WORLD_SIZE="b"))
    assert exit_code == 1
    assert "rank='5' is not valid; allowed: 0 to 1, since world_size=2" in output, output
    exit_code, output = run(
        code=code.format(0),
        SMDP_INIT_TIMEOUT="2",
        **full(RANK="a", WORLD_SIZE="b", MASTER_PORT=free_port()),
    )
    assert "[smdp] rank 0 of 2: after 2 s not all ranks of group 'torch:0' have joined" in output, output


def test_one_rank_alone_may_draw_its_port() -> None:
    code, output = run(**full(WORLD_SIZE="1", MASTER_PORT="0"))
    assert code == 0, output
    assert "rank 0 of 1, sum 1" in output


def test_one_rank_alone_frees_its_port() -> None:
    port = free_port()
    # A thread closes the port soon after.
    code = f"""
import socket, time
for _ in range(50):
    if error := socket.socket().connect_ex(("127.0.0.1", {port})):
        break
    time.sleep(0.1)
print("error", error)
"""
    exit_code, output = run(code=_JOIN + code, **full(WORLD_SIZE="1", MASTER_PORT=port))
    assert exit_code == 0 and f"MASTER_PORT={port}\nerror {errno.ECONNREFUSED}\n" in output, output


def test_a_port_that_is_taken() -> None:
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        code, output = run(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert code == 1
    assert f"[smdp] rank 0 of 2 cannot listen at MASTER_ADDR=127.0.0.1, MASTER_PORT={port}, because" in output


_TCP = """
import os, torch.distributed as dist
where = "tcp://127.0.0.1:" + os.environ["PORT"]
dist.init_process_group("smdp", init_method=where, rank=int(os.environ["PART"]), world_size=3)
"""


@pytest.mark.parametrize("scheme", ["env", "tcp"])
def test_a_rank_that_never_comes_is_named_on_all_that_came(scheme: str) -> None:
    port = free_port()
    around = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3"}
    both = [
        start(SMDP_INIT_TIMEOUT="3", RANK=str(rank), **around)
        if scheme == "env"
        else start(code=_TCP, SMDP_INIT_TIMEOUT="3", PORT=port, PART=str(rank))
        for rank in (0, 2)
    ]
    place = f"MASTER_ADDR=127.0.0.1, MASTER_PORT={port}" if scheme == "env" else f"tcp://127.0.0.1:{port}"
    for rank, one in zip((0, 2), both, strict=True):
        line = one.communicate(timeout=180)[0].strip().splitlines()[-1]
        assert line.startswith(f"smdp._errors.TimeoutError: [smdp] rank {rank} of 3: after 3 s"), line
        assert (
            "joined 0, 2; missing 1 of 3. Check that the missing ranks are running, with the same world"
            f" size and {place}." in line
        )


@pytest.mark.parametrize(("rank", "more"), [(1, {}), (0, {"TORCHELASTIC_USE_AGENT_STORE": "True"})])
def test_rank_0_or_an_agent_that_never_comes(rank: int, more: dict[str, str]) -> None:
    code, output = run(SMDP_INIT_TIMEOUT="3", **full(RANK=str(rank), MASTER_PORT=free_port(), **more))
    assert code == 1
    assert f"[smdp] rank {rank} of 2: nothing listens at MASTER_ADDR=127.0.0.1" in output, output
    assert "after 3 s. Rank 0, or the launcher that holds the store, has not started" in output


def test_who_listens_and_never_answers() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        code, output = run(SMDP_INIT_TIMEOUT="3", **full(RANK="1", MASTER_PORT=str(mute.getsockname()[1])))
    assert code == 1
    assert "[smdp] rank 1 of 2: a process listens at MASTER_ADDR=127.0.0.1" in output, output
    assert "has not answered like torch's store within 3 s" in output


def test_ctrl_c_while_others_have_not_come() -> None:
    code = (
        "import os, signal, threading, torch.distributed as dist\n"
        "from datetime import timedelta\n"
        "heard = threading.Event()\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background ignores it
        "def press():\n"
        "    while not heard.wait(3):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=press).start()\n"
        "try:\n"
        "    dist.init_process_group('smdp', timeout=timedelta(seconds=900))\n"
        "except KeyboardInterrupt:\n"
        "    heard.set()\n"
        "    print('heard')\n"
    )
    exit_code, output = run(code=code, **full(MASTER_PORT=free_port()))
    assert exit_code == 0 and "heard" in output, output


def test_a_timeout_of_ones_own_counts_for_the_start() -> None:
    around = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    code = (
        "import datetime, torch.distributed as dist\n"
        "dist.init_process_group('smdp', timeout=datetime.timedelta(seconds=4))\n"
    )
    exit_code, output = run(code=code, SMDP_INIT_TIMEOUT="2", **around)
    assert exit_code == 1
    assert "after 4 s not all ranks of group 'torch:0' have joined" in output, output


def test_a_start_that_failed_leaves_no_place_and_no_timeout_to_a_store() -> None:
    code = (
        "import datetime, smdp, torch.distributed as dist\n"
        "try:\n"
        "    dist.init_process_group('smdp', timeout=datetime.timedelta(seconds=0.5))\n"
        "except smdp.SmdpError:\n"
        "    dist.init_process_group('smdp', store=dist.HashStore(), rank=0, world_size=2)\n"
    )
    exit_code, output = run(code=code, SMDP_INIT_TIMEOUT="1", **full(RANK="1", MASTER_PORT=free_port()))
    assert exit_code == 1
    assert "after 1 s not all ranks" in output, output
    assert "ranks are running, with the same world size. SMDP_INIT_TIMEOUT sets the wait." in output, output


def test_a_timeout_without_end() -> None:
    code = _JOIN.replace(
        "(*sys.argv[1:])", "('smdp', timeout=__import__('datetime').timedelta(days=365_000))"
    )
    port = free_port()
    both = [start(code=code, **full(RANK=str(rank), MASTER_PORT=port)) for rank in range(2)]
    outputs = [one.communicate(timeout=180)[0] for one in both]
    for rank, output in enumerate(outputs):
        assert f"rank {rank} of 2, sum 2" in output, outputs


def test_a_timeout_of_nothing_is_refused_before_the_start() -> None:
    code = "import datetime as d, torch.distributed as dist\n"
    exit_code, output = run(
        code=code + "dist.init_process_group('smdp', timeout=d.timedelta(seconds=-3))", **full()
    )
    assert exit_code == 1
    assert "ValueError: [smdp] timeout = -3.0 is not valid; allowed: seconds above 0" in output, output


def test_a_rank_of_another_job_is_refused_and_the_job_goes_on() -> None:
    port = free_port()
    more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SMDP_INIT_TIMEOUT": "120"}
    # Rank 2 comes when the stranger has gone.
    early = [start(**task(rank, 3, **more)) for rank in (0, 1)]
    code, output = run(**task(1, 3, **{**more, "SLURM_JOB_ID": "18"}))
    assert code == 1
    assert f"MASTER_PORT={port} belongs to a different job, '17.0'; this job is '18.0'" in output, output
    code, output = run(**task(2, 3, **more))
    outputs = [*(one.communicate(timeout=180)[0] for one in early), output]
    assert [*(one.returncode for one in early), code] == [0, 0, 0], outputs
    assert "rank 0 of 3, sum 3" in outputs[0]


def test_many_ranks_that_do_not_come_are_a_short_line() -> None:
    code = (
        "import torch.distributed as dist\n"
        "from smdp.torch.rendezvous.sessions import open_session\n"
        "open_session(dist.HashStore(), 0, 3000, 'world', 0.2)\n"
    )
    exit_code, output = run(code=code)
    assert exit_code == 1
    assert "of group 'world' have joined: joined 0; missing 1-2999 of 3000." in output, output


_STORE = """
import time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(100)
"""


def test_a_store_that_goes_away_while_the_ranks_meet() -> None:
    holder = start(code=_STORE)
    port = holder.read_line(0)
    code = (
        "import torch.distributed as dist\n"
        "from smdp.torch.rendezvous.sessions import open_session\n"
        f"store = dist.TCPStore('127.0.0.1', {port}, 2, False)\n"
        "print('waits', flush=True)\n"
        "open_session(store, 1, 2, 'world', 60.0)\n"
    )
    waiting = start(code=code)
    assert waiting.read_line(0) == "waits"
    holder.kill()
    holder.communicate(timeout=60)
    output = waiting.communicate(timeout=60)[0]
    line = output.strip().splitlines()[-1]
    assert line.startswith("smdp._errors.PeerLostError: [smdp] rank 1 of 2: lost the connection to"), line
    assert "the store while the ranks of group 'world' were joining" in line
    assert "Rank 0, or the launcher that holds the store, has ended" in line


@pytest.mark.parametrize(
    "store", ["dist.HashStore()", "dist.TCPStore('127.0.0.1', 0, 2, True, wait_for_workers=False)"]
)
def test_a_signal_ends_the_wait_of_rank_0(store: str) -> None:
    code = (
        "import os, signal, threading, time\n"
        "import torch.distributed as dist\n"
        "from smdp.torch.rendezvous.sessions import open_session\n"
        f"store = {store}\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "begin = time.monotonic()\n"
        "try:\n"
        "    open_session(store, 0, 2, 'world', 60.0)\n"
        "except KeyboardInterrupt:\n"
        "    assert time.monotonic() - begin < 10\n"
        "    print('interrupted')\n"
    )
    exit_code, output = run(code=code)
    assert (exit_code, output.strip()) == (0, "interrupted"), output
