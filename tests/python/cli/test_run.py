"""`smdp run` with real processes: output, codes, signals, and that nothing is left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smdp._errors import ConfigError
from smdp.cli import rank_environments

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., "subprocess.Popen[str]"]


def smdp_run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "smdp", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, **more)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def start(default_signals: Callable[[], None]) -> Iterator[Start]:
    started = []

    def begin(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "smdp", "run", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "condition did not come true"
        time.sleep(0.02)


def since_noted(path: Path) -> float:
    """Seconds since a rank has called note_time(): the start of processes does not count."""
    return time.monotonic() - float(path.with_name(f"{path.name}.time").read_text())


def read_pids(process: subprocess.Popen[str], count: int) -> list[int]:
    """Read lines like "[rank 0] pid 17" until there are count numbers."""
    assert process.stdout is not None
    pids: list[int] = []
    while len(pids) < count:
        line = process.stdout.readline()
        assert line, "the output ended early"
        pids += [int(word) for word in line.split("pid", 1)[1].split()] if "pid" in line else []
    return pids


def test_ranks_get_their_variables_and_lines_their_prefix(script: Callable[[str], Path]) -> None:
    names = (
        "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR SMDP_RANK SMDP_WORLD_SIZE SMDP_LOCAL_RANK "
        "SMDP_LOCAL_WORLD_SIZE SMDP_MASTER_ADDR"
    )
    path = script(
        f"print([os.environ[name] for name in '{names}'.split()], sys.argv[1:])\n"
        "print(int(os.environ['SMDP_MASTER_PORT']) - int(os.environ['MASTER_PORT']), file=sys.stderr)\n"
        "print(len(os.environ['SMDP_SECRET']))\n"
        "assert int(os.environ['OMP_NUM_THREADS']) >= 1\n"
        "assert os.environ['TF_NUM_INTEROP_THREADS'] == os.environ['TF_NUM_INTRAOP_THREADS'] > '0'\n"
    )
    done = smdp_run("-n", 2, path, "--lr", "0.1", "-n", "7")
    assert done.returncode == 0, done.stderr
    for rank in "01":
        values = [rank, "2", rank, "2", "127.0.0.1", rank, "2", rank, "2", "127.0.0.1"]
        assert f"[rank {rank}] {values} ['--lr', '0.1', '-n', '7']" in done.stdout.splitlines()
    assert sorted(done.stderr.splitlines()) == ["[rank 0] 1", "[rank 1] 1"]
    assert done.stdout.count("] 64\n") == 2


def test_ranks_for_scripts_of_smddp_have_open_mpis_numbers(script: Callable[[str], Path]) -> None:
    path = script(
        "from smdp import environments\n"
        "numbers = [os.environ.get(f'OMPI_COMM_WORLD_{name}', '-')\n"
        "           for name in ('RANK', 'SIZE', 'LOCAL_RANK', 'LOCAL_SIZE')]\n"
        "print(*numbers, environments.detect().source)\n"
    )
    done = smdp_run("-n", 2, "--compat", path)
    assert sorted(done.stdout.splitlines()) == [
        "[rank 0] 0 2 0 2 SMDP_* variables",
        "[rank 1] 1 2 1 2 SMDP_* variables",
    ], done.stderr
    assert "[rank 0] - - - - SMDP_* variables" in smdp_run("-n", 1, path).stdout


def test_a_given_secret_and_thread_number_are_kept(script: Callable[[str], Path]) -> None:
    path = script("print(os.environ['SMDP_SECRET'], os.environ['OMP_NUM_THREADS'])\n")
    done = smdp_run(path, env={**os.environ, "SMDP_SECRET": "mine", "OMP_NUM_THREADS": "13"})
    assert done.stdout == "[rank 0] mine 13\n"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_"]),
        ({"MALLOC_ARENA_MAX": "2"}, ["MALLOC_ARENA_MAX"]),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}, []),
    ],
)
def test_settings_of_malloc(given: dict[str, str], names: list[str], script: Callable[[str], Path]) -> None:
    path = script("print(*sorted(name for name in os.environ if name.startswith('MALLOC_')))\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    assert smdp_run(path, env={**environ, **given}).stdout == f"[rank 0] {' '.join(names)}\n"


@pytest.mark.parametrize("flag", ["-n", "-np", "--nproc-per-node", "--nproc_per_node"])
def test_spellings_of_the_number_of_ranks(flag: str) -> None:
    assert smdp_run(flag, 2, "--", "echo", "--hi").stdout.count("--hi\n") == 2


def test_modules_programs_and_python() -> None:
    assert "usage" in smdp_run("-m", "json.tool", "--help").stdout
    assert smdp_run("-n", 1, "--", sys.executable, "-c", "print(5)").stdout == "[rank 0] 5\n"
    assert smdp_run("python3", "-c", "print(6)").stdout == "[rank 0] 6\n"


def test_what_cannot_be_run(tmp_path: Path) -> None:
    missing = smdp_run("-n", 2, "no-such-file.py")
    assert (missing.returncode, missing.stderr) == (127, "smdp: no such file: no-such-file.py\n")
    assert smdp_run("no-such-program").returncode == 127
    script = tmp_path / "train.sh"
    script.write_text("echo")
    done = smdp_run(script)
    assert (done.returncode, done.stderr.partition(":")[2]) == (
        126,
        (
            f" '{script}' is not executable: run chmod +x on it, or name its interpreter, e.g. smdp run --"
            f" bash {script}\n"
        ),
    )
    assert f"'{tmp_path}' is a directory" in smdp_run(tmp_path).stderr


def test_a_limit_of_processes_is_said() -> None:
    program = [sys.executable, "-m", "smdp", "run", "--", "echo", "hi"]
    somebody: list[str] = []
    if os.getuid() == 0:  # root has no such limit; whoever takes its place must read its Python
        if shutil.which("setpriv") is None:
            pytest.skip("root has no limit of processes, and there is no setpriv to be somebody else")
        right = "-all,+dac_read_search"
        rights = [f"--{kind}={right}" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
        somebody = ["setpriv", "--reuid", "61235", "--regid", "61235", "--clear-groups", *rights]
        if subprocess.run([*somebody, "true"], capture_output=True).returncode != 0:
            pytest.skip("root may not become somebody else here, and itself has no limit of processes")
    limit = ["bash", "-c", 'ulimit -u 1; exec "$@"', "bash"]
    done = subprocess.run([*somebody, *limit, *program], capture_output=True, text=True, timeout=50)
    assert done.returncode == 126, done.stderr
    words = r"Resource temporarily unavailable\. .* is 1 \(hard limit 1\).*ulimit -u "
    assert re.fullmatch(rf"smdp: cannot start rank 0: .*{words}.*\n", done.stderr), done.stderr


def test_a_limit_of_open_files_is_named(script: Callable[[str], Path]) -> None:
    program = [sys.executable, "-m", "smdp", "run", "-n", "9", str(script("stay()"))]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -n 20; exec "$@"', "bash", *program],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 126, done.stderr
    words = r"Too many open files\. .* is 20 \(hard limit 20\).*`ulimit -n 4096`"
    assert re.search(rf"smdp: cannot start rank \d: .*{words}.*\n", done.stderr), done.stderr


def test_output_passes_as_bytes(script: Callable[[str], Path]) -> None:
    path = script("sys.stdout.buffer.write(b'\\xff\\xfe\\nlast')\n")
    done = subprocess.run([sys.executable, "-m", "smdp", "run", str(path)], capture_output=True, check=True)
    assert done.stdout == b"[rank 0] \xff\xfe\n[rank 0] last\n"


def test_much_output_of_many_ranks_keeps_its_lines(script: Callable[[str], Path]) -> None:
    path = script("for i in range(3000): print(rank, 'x' * 50, i)\n")
    done = smdp_run("-n", 3, path)
    lines = done.stdout.splitlines()
    assert len(lines) == 9000
    for rank in range(3):
        own = [line for line in lines if line.startswith(f"[rank {rank}] {rank} ")]
        assert [int(line.split()[-1]) for line in own] == list(range(3000))


def test_the_first_failure_stops_the_others_and_gives_the_code(script: Callable[[str], Path]) -> None:
    path = script(
        "signal.signal(signal.SIGTERM, lambda *_: (print('asked'), os._exit(9)))\n"
        "meet()\n"
        "if rank != 1: stay()\n"
        "note_time()\n"
        "sys.exit(7)\n"
    )
    done = smdp_run("-n", 3, path)
    assert done.returncode == 7
    assert "rank 1 (pid" in done.stderr
    assert "failed first: exit code 7; stopping 2 other ranks" in done.stderr
    assert done.stdout.count("asked") == 2
    assert since_noted(path) < 5


def test_who_ignores_sigterm_is_killed(script: Callable[[str], Path]) -> None:
    path = script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "meet()\n"
        "if rank != 0: stay()\n"
        "note_time()\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    done = smdp_run("-n", 2, "--stop-timeout", "1", path)
    assert done.returncode == 128 + signal.SIGSEGV
    assert "killed by SIGSEGV" in done.stderr
    assert 1 <= since_noted(path) < 8


def test_children_of_a_failed_rank_are_stopped_too(script: Callable[[str], Path]) -> None:
    path = script("pid = os.fork()\nif pid == 0:\n    stay()\nprint('pid', pid)\nmeet()\nsys.exit(2)\n")
    done = smdp_run("-n", 2, path)
    assert done.returncode == 2
    pids = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(pids) == 2
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_who_left_well_before_the_first_failure_is_named(script: Callable[[str], Path]) -> None:
    path = script("leave_first(1)\nsys.exit(0 if rank == 1 else 4)\n")
    done = smdp_run("-n", 2, path)
    assert done.returncode == 4
    assert "failed first: exit code 4 (rank 1 had exited before it with exit code 0)" in done.stderr


@pytest.mark.parametrize(
    "number",
    [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT],
)
def test_signals_are_passed_on(number: signal.Signals, script: Callable[[str], Path], start: Start) -> None:
    path = script(
        "def stop(number, _):\n    print('got', number)\n    sys.exit(0)\n"
        f"signal.signal({int(number)}, stop)\n"
        "print('pid', os.getpid())\n"
        "stay()\n"
    )
    process = start("-n", 2, path)
    read_pids(process, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert out.count(f"got {int(number)}") == 2


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_all_stop_and_go_on_together(script: Callable[[str], Path], start: Start) -> None:
    path = script(
        "pid = os.fork()\n"
        "sys.stdout.write(f'pid {os.getpid()}\\n')\n"  # at once: two processes write to one pipe
        "signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))\n"
        "stay()\n"
    )
    process = start("-n", 2, path)
    pids = [process.pid, *read_pids(process, 4)]
    for _ in range(2):
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: all(is_stopped(pid) for pid in pids))
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: not any(is_stopped(pid) for pid in pids))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    process.send_signal(signal.SIGCONT)  # not only after a SIGTSTP of its own
    wait_until(lambda: not any(is_stopped(pid) for pid in pids))
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")


def test_a_grace_does_not_run_while_all_are_stopped(script: Callable[[str], Path], start: Start) -> None:
    path = script(
        "def save(*_):\n    print('pid 0')\n    for _ in range(6): time.sleep(0.05)\n"
        "    print('saved')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('pid', os.getpid())\n"
        "stay()\n"
    )
    process = start("-n", 1, "--grace", "2", path)
    read_pids(process, 1)
    process.terminate()
    read_pids(process, 1)
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: is_stopped(process.pid))
    time.sleep(2.3)  # longer than the grace
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=20)
    assert "saved" in out, err
    assert process.returncode == 0


def test_a_rank_that_obeys_a_signal_does_not_cut_short_one_that_saves(
    script: Callable[[str], Path], start: Start
) -> None:
    path = script(
        "def save(*_):\n    time.sleep(0.5)\n    print('saved')\n    sys.exit(0)\n"
        "if rank == 0: signal.signal(signal.SIGTERM, save)\n"
        "print('pid', os.getpid())\n"
        "stay()\n"
    )
    process = start("-n", 2, "--stop-timeout", "0.1", path)
    read_pids(process, 2)
    process.terminate()
    out, _ = process.communicate(timeout=20)
    assert "saved" in out
    assert process.returncode == 128 + signal.SIGTERM


def in_a_shell(path: Path) -> Path:
    """A shell script that waits for its Python: SIGTERM ends the shell at once, and Python saves on."""
    shell = path.with_suffix(".sh")
    shell.write_text(f'#!/bin/sh\n"{sys.executable}" -u "{path}"\necho never\n')
    shell.chmod(0o755)
    return shell


AROUND = {
    "nothing": [],
    "pid 1": ["unshare", "--fork", "--pid", "--mount-proc"],  # of a container, where orphans are its own
    # As a program in a container that waits for its own child alone: orphans would stay as zombies.
    "one that reaps nobody": [
        sys.executable,
        "-c",
        (
            "import ctypes, subprocess, sys; ctypes.CDLL(None).prctl(36, 1);"
            " sys.exit(subprocess.Popen(sys.argv[1:]).wait())"
        ),
    ],
}


@pytest.mark.parametrize("around", AROUND)
def test_what_a_shell_has_started_may_save_after_the_shell_has_died(
    around: str, script: Callable[[str], Path], default_signals: Callable[[], None]
) -> None:
    path = script(
        "def save(*_):\n    time.sleep(0.5 * (1 + rank))\n    print('saved')\n    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('pid', os.getpid())\n"
        "stay()\n"
    )
    shell = str(in_a_shell(path))
    command = [sys.executable, "-m", "smdp", "run", "-n", "2", "--stop-timeout", "0.1", shell]
    if AROUND[around] and subprocess.run([*AROUND[around], "true"], capture_output=True).returncode:
        pytest.skip("unshare --pid is not allowed here")
    process = subprocess.Popen(
        [*AROUND[around], *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
    )
    read_pids(process, 2)
    target = process.pid
    if AROUND[around]:
        target = int(Path(f"/proc/{target}/task/{target}/children").read_text())
    begin = time.monotonic()
    os.kill(target, signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert out.count("saved") == 2, err
    assert "never" not in out
    assert process.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - begin < 15  # and not the whole grace


def test_what_a_shell_has_started_is_killed_after_the_grace(
    script: Callable[[str], Path], start: Start
) -> None:
    path = script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('pid', os.getpid())\nstay()\n")
    process = start("-n", 1, "--grace", "1", in_a_shell(path))
    (pid,) = read_pids(process, 1)
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert "1 rank did not exit within 1 s; killing it" in err
    assert process.returncode == 128 + signal.SIGTERM
    wait_until(lambda: not is_alive(pid))


def test_asked_twice_it_insists(script: Callable[[str], Path], start: Start) -> None:
    path = script(
        "signal.signal(signal.SIGINT, lambda *_: print('pid 0'))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('pid', os.getpid())\n"
        "stay()\n"
    )
    process = start("-n", 1, "--stop-timeout", "0.2", path)
    read_pids(process, 1)
    process.send_signal(signal.SIGINT)
    read_pids(process, 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGKILL


def test_a_killed_launcher_leaves_nobody(script: Callable[[str], Path], start: Start) -> None:
    path = script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    stay()\n"
        "print('pid', os.getpid(), pid)\n"
        "stay()\n"
    )
    process = start("-n", 2, path)
    pids = read_pids(process, 4)
    assert all(is_alive(pid) for pid in pids)
    guards = [
        int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    assert len(guards) == 3  # the ranks and the guard
    process.kill()
    process.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in [*pids, *guards]))


def test_nothing_is_left_after_a_good_end(script: Callable[[str], Path], start: Start) -> None:
    path = script(
        "print('pid', os.getpid(), flush=True)\n"
        "if rank == 1: wait_until(lambda: os.path.exists(f'{__file__}.end'))\n"
    )
    process = start("-n", 2, path)
    pids = read_pids(process, 2)
    # One has ended, and the launcher has waited for it.
    wait_until(lambda: not all(Path(f"/proc/{pid}").exists() for pid in pids))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    path.with_name("train.py.end").touch()
    assert process.wait(timeout=20) == 0
    assert not any(is_alive(int(pid)) for pid in children)


def test_a_reader_that_leaves_ends_the_job(script: Callable[[str], Path]) -> None:
    path = script("while True: print('x' * 1000)\n")
    command = f"{sys.executable} -m smdp run -n 2 {path} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)
    assert done.returncode == 128 + signal.SIGPIPE
    assert "failed first" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed: str, script: Callable[[str], Path], tmp_path: Path) -> None:
    path = script(
        "for stream in (sys.stdout, sys.stderr):\n"
        "    stream.write('x\\n\\x02\\x0f' * 1000)\n"
        f"open(f'{tmp_path}/end{{rank}}', 'w').close()\n"
    )
    command = f"{sys.executable} -m smdp run -n 2 {path} {closed}"
    assert subprocess.run(["bash", "-c", command], capture_output=True, timeout=30).returncode == 0
    assert all((tmp_path / f"end{rank}").exists() for rank in range(2))


def test_output_that_cannot_be_written_ends_the_job_and_is_said(script: Callable[[str], Path]) -> None:
    path = script("while True: print('x' * 1000)\n")
    command = f"{sys.executable} -m smdp run -n 2 {path} >/dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)
    assert done.returncode == 74
    assert "smdp: cannot write the output of the ranks: [Errno 28] No space left on device" in done.stderr


def test_dead_processes_without_parents_are_waited_for(script: Callable[[str], Path]) -> None:
    """Also those of ranks that run on, in process groups of their own."""
    path = script(
        "import subprocess\n"
        "for i in range(5):\n"
        "    subprocess.run(['sh', '-c', 'setsid true & true &'])\n"
        "def dead():\n"
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "        try: state = open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()\n"
        "        except OSError: continue\n"
        "        if state[:2] == ['Z', str(os.getppid())]: return True\n"
        "    return False\n"
        "wait_until(lambda: not dead())\n"
        "print(0)\n"
    )
    assert smdp_run(path).stdout == "[rank 0] 0\n"


def test_standard_input_goes_to_rank_0(script: Callable[[str], Path]) -> None:
    path = script("print(repr(sys.stdin.read()))\n")
    done = smdp_run("-n", 2, path, input="hello")
    assert sorted(done.stdout.splitlines()) == ["[rank 0] 'hello'", "[rank 1] ''"]


def test_ports(script: Callable[[str], Path]) -> None:
    path = script("print(os.environ['MASTER_PORT'], os.environ['SMDP_MASTER_PORT'])\n")
    port = rank_environments.free_ports()
    assert smdp_run("--master-port", port, path).stdout == f"[rank 0] {port} {port + 1}\n"
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", port + 1))
        busy.listen()
        done = smdp_run("--master_port", port, path)
        assert done.returncode == 2
        assert f"--master-port={str(port)!r}" in done.stderr
        with pytest.raises(ConfigError):
            rank_environments.rank_environments({}, 2, master_port=port)


def test_another_launchers_variables_do_not_leak() -> None:
    environ = {"TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "3", "RANK": "9", "MASTER_ADDR": "far"}
    made = rank_environments.rank_environments(environ, 2)[1]
    assert "TORCHELASTIC_RUN_ID" not in made
    assert (made["RANK"], made["MASTER_ADDR"]) == ("1", "127.0.0.1")


def test_the_thread_number_is_said_when_debugging(script: Callable[[str], Path]) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = smdp_run(script(""), env={**environ, "SMDP_LOG_LEVEL": "debug"})
    assert "OMP_NUM_THREADS=" in done.stderr


# As smdp.exit_if_preempted() ends ranks; `busy` are seconds of saving.
ASKS = (
    "def save(*_):\n    time.sleep(busy)\n    print('saved')\n    sys.exit(75)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "print('pid', os.getpid())\n"
)


def test_one_rank_that_asks_for_a_restart_is_no_failure(script: Callable[[str], Path]) -> None:
    path = script(f"busy = 0\n{ASKS}meet()\ntime.sleep(0 if rank == 1 else 0.5)\nsave()\n")
    done = smdp_run("-n", 3, "--stop-timeout", "0.1", path)
    assert done.returncode == 75
    assert done.stdout.count("saved") == 3
    assert "rank 1 (pid" in done.stderr and "requested a restart: exit code 75" in done.stderr
    assert "2 other ranks have 120 s to exit" in done.stderr
    assert done.stderr.count("smdp:") == 1 and "failed" not in done.stderr


def test_a_restart_code_of_ones_own(script: Callable[[str], Path]) -> None:
    path = script("sys.exit(99)\n")
    done = smdp_run("-n", 2, path, env={**os.environ, "SMDP_PREEMPTED_EXIT_CODE": "99"})
    assert done.returncode == 99 and "requested a restart" in done.stderr
    wrong = smdp_run("-n", 2, path, env={**os.environ, "SMDP_PREEMPTED_EXIT_CODE": "200"})
    assert wrong.returncode == 2 and "SMDP_PREEMPTED_EXIT_CODE='200' is not valid" in wrong.stderr


def test_sigterm_gives_ranks_the_time_to_save(script: Callable[[str], Path], start: Start) -> None:
    path = script(f"busy = 0.5 * rank\n{ASKS}stay()\n")
    process = start("-n", 2, "--stop-timeout", "0.1", path)
    read_pids(process, 2)
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert out.count("saved") == 2
    assert process.returncode == 75, err


@pytest.mark.parametrize("by_rank", [False, True], ids=["signal", "a rank asked"])
def test_the_grace_ends(by_rank: bool, script: Callable[[str], Path], start: Start) -> None:
    path = script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('pid', os.getpid())\n"
        "meet()\n"
        f"sys.exit(75) if {by_rank} and rank == 0 else stay()\n"
    )
    process = start("-n", 2, "--grace", "1", path)
    read_pids(process, 2)
    begin = time.monotonic()
    if not by_rank:
        process.terminate()
    _, err = process.communicate(timeout=20)
    assert 0.8 < time.monotonic() - begin < 8
    assert "did not exit within 1 s; killing" in err
    assert process.returncode == (75 if by_rank else 128 + signal.SIGKILL)


def test_a_failure_while_others_save_counts(script: Callable[[str], Path]) -> None:
    path = script("leave_first(0)\nsys.exit(75 if rank == 0 else 3)\n")
    done = smdp_run("-n", 2, path)
    assert done.returncode == 3
    assert "rank 1 (pid" in done.stderr and "failed first: exit code 3" in done.stderr


def test_who_raised_first_is_named_though_it_ends_slowly(script: Callable[[str], Path]) -> None:
    path = script(
        "import atexit\n"
        "atexit.register(time.sleep, 0.4 * rank)\n"  # after smdp has said goodbye
        "import smdp\n"
        "smdp.init()\n"
        "if rank == 1:\n"
        "    raise ValueError('boom')\n"
        "smdp.world().barrier()\n"
    )
    done = smdp_run("-n", 2, path)
    assert "rank 1 (pid" in done.stderr and "failed first: exit code 1" in done.stderr, done.stderr


def test_children_of_a_rank_that_saves_live_until_it_ends(
    script: Callable[[str], Path], start: Start
) -> None:
    # Like torch's DataLoader: a worker that dies is an error of the rank.
    path = script(
        "pid = os.fork()\n"
        "if pid == 0:\n    stay()\n"
        "def save(*_):\n"
        "    time.sleep(0.3)\n"
        "    assert os.waitpid(pid, os.WNOHANG) == (0, 0)\n"
        "    print('saved')\n"
        "    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('pid', pid)\n"
        "stay()\n"
    )
    process = start("-n", 2, path)
    pids = read_pids(process, 2)
    begin = time.monotonic()
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert out.count("saved") == 2 and process.returncode == 75, err
    assert time.monotonic() - begin < 10
    wait_until(lambda: not any(is_alive(pid) for pid in pids))
