"""Each system call that may fail for want of something does so in turn, in real jobs: all ranks hear why."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smdp import _core

HERE = Path(__file__).parent
ONE_HOST = [0, 0]
TWO_HOSTS = [0, 0, 1]

# What makes each call fail, and what the message names.
FILES = (errno.EMFILE, "ulimit -n")
MEMORY = (errno.ENOMEM, "ulimit -v")
BUFFERS = (errno.ENOBUFS, "ulimit -v")
DENIED = (errno.EPERM, "sandbox")
CALLS = {
    "accept4": [FILES, (errno.ENFILE, "fs.file-max")],
    "aligned_alloc": [MEMORY],
    "bind": [BUFFERS],
    "calloc": [MEMORY],
    "connect": [BUFFERS],
    "epoll_create1": [FILES],
    "epoll_ctl": [(errno.ENOSPC, "max_user_watches"), MEMORY],
    "eventfd": [FILES, DENIED],
    "fallocate": [(errno.ENOSPC, "memory.max"), MEMORY],
    "fopen": [FILES],
    "ftruncate": [(errno.EFBIG, "ulimit -f"), (errno.ENOSPC, "memory.max")],
    "getaddrinfo": [FILES],
    "getifaddrs": [FILES],
    "listen": [BUFFERS],
    "memfd_create": [FILES, DENIED],
    "mmap": [MEMORY],
    "open": [FILES],
    "poll": [MEMORY],
    "pthread_create": [(errno.EAGAIN, "ulimit -u")],
    "recv": [MEMORY],
    "recvmsg": [FILES],
    "send": [BUFFERS],
    "sendmsg": [(errno.ETOOMANYREFS, "ulimit -n"), BUFFERS],
    "setsockopt": [BUFFERS],
    "socket": [FILES, DENIED],
    "syscall": [(errno.EAGAIN, "")],
}
# Less than the first leaves nothing to tell the others by, and the second is enough for this job.
FEWEST_FILES, MOST_FILES = 3, 40
# A rank that waits long calls recv() thousands of times, all in the same place.
MOST_PLACES = 400
# Where a job may go right all the same, and why.
OVERCOME = {
    "accept4": "the store takes the reserve",
    "connect": "who looks for the store takes the reserve",
    "epoll_ctl": "what is no longer watched is closed",
    "fopen": "cores, caches and limits of memory are assumed",
    "poll": "the store looks again for who calls",
    "recv": "the store's client connects again",
    "send": "the store's client connects again",
    "setsockopt": "of TCP: packets wait for others",
    "socket": "IPv4 where there is no IPv6; the reserve",
    "syscall": "a futex: who sleeps looks again within a second",
}
# What libsmdp calls besides, which takes nothing that could be short.
# fmt: off
HARMLESS = {
    "close", "dlerror", "dlopen", "dlsym", "epoll_wait", "eventfd_write", "fclose", "fread", "free",
    "freeaddrinfo", "freeifaddrs", "geteuid", "gethostname", "getnameinfo", "getpeername", "getpid",
    "getrandom", "getrlimit", "getsockname", "getsockopt", "llround", "log2", "lround", "memchr",
    "memcmp", "memcpy", "memmove", "memset", "munmap", "nanosleep", "pthread_cond_clockwait",
    "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_once", "pthread_rwlock_rdlock",
    "pthread_rwlock_unlock", "pthread_rwlock_wrlock", "pthread_self", "pthread_setname_np",
    "pthread_sigmask", "read", "sched_getaffinity", "setrlimit", "shutdown", "sigdelset", "sigfillset",
    "snprintf", "sqrt", "stat", "strcmp", "strerror", "strlen", "strnlen", "strtod", "toupper", "vsnprintf",
    "write",
}
# fmt: on


def library(folder: Path) -> Path:
    """Compiles fail_call.c."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    built = folder / "fail_call.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    subprocess.run([compiler, *flags, "-o", str(built), str(HERE / "fail_call.c"), "-ldl"], check=True)
    return built


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("shim"))


class Try(dict[str, Any]):
    """One job: which call of which rank fails, or how many files that rank may open."""

    def __init__(
        self, call: str, nth: int, error: int, rank: int, hosts: list[int], files: int | None = None
    ) -> None:
        super().__init__(call=call, nth=nth, error=error, rank=rank, hosts=hosts, files=files)

    def __str__(self) -> str:
        if self["files"] is not None:
            return f"{self['files']} files of rank {self['rank']} of {self['hosts']}"
        error = errno.errorcode[self["error"]]
        return f"{self['call']} #{self['nth']} of rank {self['rank']} of {self['hosts']} with {error}"


def run(preloaded: Path, tries: list[Try]) -> Iterator[tuple[Try, list[dict[str, Any]]]]:
    """Runs jobs; gives how their ranks ended, of which each must have."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "tries.py"), str(preloaded)],
        env={**os.environ, "LD_PRELOAD": str(preloaded), "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        with process.stdin:  # hundreds are too long for an argument
            json.dump(tries, process.stdin)
        for one, line in zip(tries, process.stdout, strict=False):
            ranks = json.loads(line)["ranks"]
            for number, report in enumerate(ranks):
                assert report is not None, f"{one}: rank {number} did not end; the others: {ranks}"
            yield one, ranks
    assert process.returncode == 0


def counts_of(preloaded: Path, hosts: list[int]) -> list[dict[str, int]]:
    """How often each rank of a job in which nothing fails makes each call."""
    [(_, ranks)] = run(preloaded, [Try("socket", 0, errno.EMFILE, 0, hosts)])
    assert [rank["error"] for rank in ranks] == [""] * len(hosts)
    return [rank["counts"] for rank in ranks]


@pytest.fixture(scope="module")
def counts(preloaded: Path) -> list[dict[str, int]]:
    return counts_of(preloaded, TWO_HOSTS)


def check(one: Try, ranks: list[dict[str, Any]], words: str) -> None:
    """Everybody knows what has failed, and which limit it was."""
    failed = ranks[one["rank"]]
    if not failed["has_failed"]:
        return  # this time there were fewer such calls
    call = one["call"]
    errors = [rank["error"] for rank in ranks]
    text = f"{one}: {errors}"
    if call in OVERCOME and errors == [""] * len(ranks):
        return
    # Where a job may go right, the call may fail after this rank's last step, while others are in theirs.
    if failed["error"] or call not in OVERCOME:
        assert call in failed["error"] and words in failed["error"], text
    for rank in ranks:
        # The last step sums over all ranks: a rank that ended it has had all that it needed of the others.
        if rank["error"]:
            assert call in rank["error"] and words in rank["error"], text


def test_all_calls_of_the_library_are_known() -> None:
    """A function that is new to the library belongs to one of the lists above."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("there is no nm")
    built = Path(str(_core.__file__)).parent / "libsmdp.so"
    lines = subprocess.run(
        [nm, "-D", "--undefined-only", str(built)], check=True, capture_output=True, text=True
    )
    names = {line.split()[-1].split("@")[0] for line in lines.stdout.splitlines()}
    unknown = {name for name in names if not name.startswith("_")} - HARMLESS - set(CALLS)
    assert not unknown, f"fail_call.c and this file do not know {sorted(unknown)}"


@pytest.mark.parametrize(
    ("error", "words"), sorted({pair for pairs in CALLS.values() for pair in pairs if pair[1]})
)
def test_a_message_names_limit_and_cure(error: int, words: str) -> None:
    call = "epoll_ctl" if words == "max_user_watches" else "memfd_create"
    text = _core.describe_shortage(call, "memory", error, 4096)
    assert text.startswith(f"[smdp] {call} for memory failed: {os.strerror(error)}. ") and words in text
    if error == errno.EMFILE:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert f"{soft} (hard limit {hard})" in text and f"`ulimit -n {max(4096, 2 * soft)}`" in text


def test_the_job_makes_all_calls(counts: list[dict[str, int]]) -> None:
    assert set(counts[0]) == set(CALLS)
    never = {call for call in CALLS if not any(rank[call] for rank in counts)}
    # Only with SMDP_SOCKET_IFNAME.
    assert never <= {"getifaddrs"}, never


@pytest.mark.parametrize("call", CALLS)
def test_every_rank_hears_which_call_failed_and_why(
    call: str, preloaded: Path, counts: list[dict[str, int]]
) -> None:
    """The first such call of rank 0, one in the middle of rank 1's, and the last one of rank 2."""
    error, words = CALLS[call][0]
    made = [of_rank[call] for of_rank in counts]
    places = [1, (made[1] + 1) // 2, made[2]]
    tries = [Try(call, places[rank], error, rank, TWO_HOSTS) for rank in range(3) if made[rank] > 0]
    for one, ranks in run(preloaded, tries):
        check(one, ranks, words)


def test_every_rank_hears_of_a_limit_of_open_files(preloaded: Path) -> None:
    check_limits(preloaded, 0, range(FEWEST_FILES, MOST_FILES, 6))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_whatever_the_limit_is(rank: int, preloaded: Path) -> None:
    check_limits(preloaded, rank, range(FEWEST_FILES, MOST_FILES))


def check_limits(preloaded: Path, rank: int, limits: range) -> None:
    """The last limit is enough for the job; what is less fails on all ranks."""
    tries = [Try("", 0, 0, rank, TWO_HOSTS, files) for files in limits]
    has_worked = [False]
    for one, ranks in run(preloaded, tries):
        errors = [report["error"] for report in ranks]
        has_worked.append(errors == [""] * 3)
        assert has_worked[-1] or all("ulimit -n" in error for error in errors), f"{one}: {errors}"
    assert has_worked == sorted(has_worked) and has_worked[-1], has_worked


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("hosts", [ONE_HOST, TWO_HOSTS], ids=["one host", "two hosts"])
@pytest.mark.parametrize("call", CALLS)
def test_wherever_it_fails(call: str, hosts: list[int], preloaded: Path) -> None:
    for rank, of_rank in enumerate(counts_of(preloaded, hosts)):
        for error, words in CALLS[call]:
            made = of_rank[call]
            places = range(1, made + 1, 1 + made // MOST_PLACES)
            tries = [Try(call, nth, error, rank, hosts) for nth in places]
            for one, ranks in run(preloaded, tries):
                check(one, ranks, words)
