"""What a mistake or a dead rank looks like to the others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch_spawn import run

KILLED = {1: -signal.SIGKILL}


@contextlib.contextmanager
def raises_within(
    seconds: float, *words: str, kind: type[BaseException] = RuntimeError
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect an error in time, whose message holds the words."""
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        yield caught
    took = time.monotonic() - started
    assert took < seconds, f"took {took:.1f} s: {caught.value}"
    for word in words:
        assert word in str(caught.value), caught.value


def stay() -> None:
    """Until all ranks are here, past the groups that have failed: nobody hears of a departure instead."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"over/{dist.get_rank()}", "")
    store.wait([f"over/{rank}" for rank in range(dist.get_world_size())])


def stay_without(victim: int) -> None:
    """Likewise, until all but one are here."""
    store = dist.distributed_c10d._get_default_store()
    ranks = [rank for rank in range(dist.get_world_size()) if rank != victim]
    number = store.add(f"arrivals/{dist.get_rank()}", 1)
    store.set(f"over/{number}/{dist.get_rank()}", "")
    store.wait([f"over/{number}/{rank}" for rank in ranks])


def different_shape() -> None:
    import smdp

    pair = dist.new_group([0, 1])
    if dist.get_rank() > 1:
        return
    with raises_within(5, "rank 0", "rank 1", "[3]", "[4]", kind=smdp.MismatchError):
        dist.all_reduce(torch.ones(3 if dist.get_rank() == 0 else 4), group=pair)
    # All ranks have got it, so that the group goes on.
    dist.all_reduce(ones := torch.ones(3), group=pair)
    assert ones.tolist() == [2, 2, 2]


def different_dtype() -> None:
    with raises_within(5, "rank 0", "rank 1", "float32", "float64"):
        dist.all_reduce(torch.ones(3, dtype=torch.float64 if dist.get_rank() else torch.float32))


def different_operation_in_ddp_future() -> None:
    """The Future of a failed operation fails, in Python and in C++ (the DDP reducer)."""
    net = DistributedDataParallel(nn.Linear(4, 4))
    net(torch.ones(2, 4)).sum().backward()
    if dist.get_rank() == 0:
        with raises_within(5, "rank 0", "rank 1"):
            net(torch.ones(2, 4)).sum().backward()
    else:
        work = dist.all_reduce(torch.ones(7), async_op=True)
        with raises_within(5, "rank 0", "rank 1"):
            work.get_future().wait()
        with raises_within(5, "rank 0", "rank 1"):
            work.wait()
        assert isinstance(work.exception(), RuntimeError)
        assert work.is_completed()
        assert not work.is_success()


def a_step_more() -> None:
    """One rank has more batches than the other, which is past its training."""
    import smdp

    net = smdp.torch.DistributedDataParallel(nn.Linear(4, 4))
    steps = 2 + dist.get_rank()
    words = ("rank 0", "rank 1", "float32[7] SUM of group 'torch:0'", "group 'torch:0/gradients-0'")
    with raises_within(20, *words, "Neither can end", kind=smdp.MismatchError):
        for _ in range(steps):
            net(torch.ones(2, 4)).sum().backward()
        dist.all_reduce(torch.ones(7))
    stay()


def wrapped_on_one_rank() -> None:
    import smdp

    with raises_within(
        20, "rank 0", "rank 1", "it is creating group 'torch:0/gradients-0'", kind=smdp.MismatchError
    ):
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(7))
        else:
            smdp.torch.DistributedDataParallel(nn.Linear(4, 4))
    stay()


def new_group_on_one_rank() -> None:
    import smdp

    with raises_within(20, "rank 0", "rank 1", "it is creating group 'torch:1'", kind=smdp.MismatchError):
        if dist.get_rank() == 0:
            dist.new_group([0, 1])
        else:
            dist.all_reduce(torch.ones(7))
    stay()


def timeout() -> None:
    import smdp

    group = dist.new_group(timeout=timedelta(seconds=2))
    if dist.get_rank() == 0:
        with raises_within(6, "1", kind=smdp.TimeoutError):
            dist.all_reduce(torch.ones(3), group=group)
    else:
        time.sleep(4)


def time_limits() -> None:
    long = timedelta(days=365_000)
    for wrong in (timedelta(0), timedelta(seconds=-5)):
        with pytest.raises(ValueError, match=r"\[smdp\] timeout = .* is not valid; allowed: seconds above 0"):
            dist.new_group(timeout=wrong)
    group = dist.new_group(timeout=long)
    rank = dist.get_rank()
    for use in (lambda: None, lambda: group.set_timeout(timedelta.max)):
        use()
        time.sleep(0.2 * rank)
        total = torch.ones(3)
        dist.all_reduce(total, group=group)
        assert total.tolist() == [2.0] * 3
        time.sleep(0.2 * rank)
        dist.barrier(group)
    time.sleep(0.2 * rank)
    work = dist.all_reduce(total, group=group, async_op=True)
    with pytest.raises(ValueError, match="allowed: seconds above 0"):
        work.wait(timedelta(seconds=-1))
    assert work.wait(long)
    with pytest.raises(ValueError, match="allowed: seconds above 0"):
        group.set_timeout(timedelta(0))


def one_limit_for_all() -> None:
    """wait(timeout) of several operations is over after that time, not after as many times."""
    import smdp

    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(3)
    options = dist.AllreduceCoalescedOptions()
    options.asyncOp = True
    tensors = [torch.ones(3) for _ in range(5)]
    work = dist.group.WORLD.allreduce_coalesced(tensors, options)  # type: ignore[union-attr]
    if dist.get_rank() == 0:
        with raises_within(1.5, "gave up after 0.5 s", kind=smdp.TimeoutError):
            work.wait(timedelta(seconds=0.5))
        assert not work.is_completed()
    work.wait(timedelta(seconds=30))
    assert all(tensor.tolist() == [2.0] * 3 for tensor in tensors)


def killed_in_operation() -> None:
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with raises_within(5, "rank 1"):
        dist.all_reduce(torch.ones(1_000_000))


def killed_while_idle() -> None:
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(5)
    with raises_within(1, "rank 1"):
        dist.all_reduce(torch.ones(4))


def killed_before_new_group() -> None:
    """A new group with a dead rank ends at once; one without it can be made."""
    import smdp

    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for wait in (0, 1):  # before it is known, and after
        time.sleep(wait)
        with raises_within(5, "rank 1 (host ", "died", kind=smdp.PeerLostError) as caught:
            dist.new_group([0, 1, 2])
        assert caught.value.ranks == [1]
        stay_without(1)
    with raises_within(5, "rank 1"):
        DistributedDataParallel(nn.Linear(4, 4))
    with raises_within(5, "rank 1"):
        smdp.torch.DistributedDataParallel(nn.Linear(4, 4))
    total = torch.ones(3)
    dist.all_reduce(total, group=dist.new_group([0, 2]))
    assert total.tolist() == [2.0] * 3
    stay_without(1)


def killed_in_new_group() -> None:
    import smdp

    victim = int(os.environ["SMDP_TEST_VICTIM"])
    if dist.get_rank() == victim:
        die_in = os.environ["SMDP_TEST_DIE_IN"]
        inner = getattr(smdp._core, die_in)

        def die(*args: object, **kwargs: object) -> None:
            inner(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(smdp._core, die_in, die)
    with raises_within(5, f"rank {victim}", kind=smdp.PeerLostError):
        dist.new_group([0, 1, 2])
    stay_without(victim)


def store_stopped() -> None:
    """torch's client of a store waits without end for its answer."""
    import smdp

    rank, where = int(os.environ["RANK"]), f"tcp://127.0.0.1:{os.environ['SMDP_TEST_PORT']}"
    dist.init_process_group("smdp", init_method=where, rank=rank, world_size=2)
    pids: list[int | None] = [None, None]
    dist.all_gather_object(pids, os.getpid())
    if rank == 0:

        def stop(*_: object, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGSTOP)

        setattr(smdp._core, os.environ["SMDP_TEST_STOP_IN"], stop)
    with raises_within(10, "rank 1 of 2", "has not answered for 3 s", kind=smdp.TimeoutError):
        dist.new_group([0, 1])
    assert pids[0]
    os.kill(pids[0], signal.SIGKILL)
    # Who waits in torch hears of that now: while the interpreter ends it would abort the process.
    for thread in threading.enumerate():
        if thread.name == "smdp-store":
            thread.join(10)
            assert not thread.is_alive()


def left_before_new_group() -> None:
    import smdp

    dist.barrier()
    if dist.get_rank() == 1:
        raise KeyError("a bug of the user's")
    with raises_within(5, "rank 1 (host ", "KeyError: ", kind=smdp.PeerLostError):
        dist.new_group([0, 1, 2])
    total = torch.ones(3)
    dist.all_reduce(total, group=dist.new_group([0, 2]))
    assert total.tolist() == [2.0] * 3
    stay_without(1)


def different_layouts() -> None:
    """Tensors of as many elements are told apart; and who is who, in the group and in the world."""
    import smdp

    rank = dist.get_rank()
    rows = (2, 3) if rank == 0 else (3, 2)
    all_rows = (2 * rows[0], rows[1])
    calls = (
        lambda group: dist.reduce_scatter_tensor(torch.ones(6), torch.ones(all_rows), group=group),
        lambda group: dist.all_gather_into_tensor(torch.ones(12), torch.ones(rows), group=group),
        lambda group: dist.all_gather([torch.ones(rows) for _ in range(2)], torch.ones(6), group=group),
        lambda group: dist.all_to_all_single(torch.ones(12), torch.ones(all_rows), group=group),
    )
    for call in calls:
        pair = dist.new_group([0, 2])
        if rank == 1:
            continue
        words = (
            f"rank {rank // 2} of 2 in group 'torch:",
            "(rank 0 of the world, host ",
            "(rank 2 of the world, host ",
            "3]",
            "2]",
        )
        with raises_within(5, *words, kind=smdp.MismatchError):
            call(pair)
            dist.barrier(group=pair)


class _Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def killed_with_loader_workers() -> None:
    net = DistributedDataParallel(nn.Linear(8, 8))
    loader = DataLoader(_Rows(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    rows = iter(loader)
    for _ in range(3):
        net(next(rows)).sum().backward()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # its loader's processes live on
    with raises_within(5, "rank 1"):
        net(next(rows)).sum().backward()


def forked_child() -> None:
    """A child may not use the group, and does not disturb it."""
    import smdp

    dist.all_reduce(torch.ones(4))
    child = os.fork()
    if child == 0:
        try:
            with raises_within(5, kind=smdp.ClosedError):
                dist.all_reduce(torch.ones(4))
        except BaseException:  # noqa: BLE001 - the exit code says it
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    dist.all_reduce(torch.ones(4))


def different_secrets() -> None:
    import smdp

    rank = int(os.environ["RANK"])
    for secrets, words in (
        (("one", "two"), ("SMDP_SECRET is 'a secret' on rank 0", "but 'another secret' on rank 1")),
        (("one", ""), ("SMDP_SECRET is 'a secret' on rank 0", "but 'not set' on rank 1")),
    ):
        os.environ["SMDP_SECRET"] = secrets[rank]
        store = f"file://{os.environ['SMDP_TEST_STORE']}{''.join(secrets)}"
        with raises_within(5, *words, kind=smdp.ConfigError):
            dist.init_process_group("smdp", init_method=store, rank=rank, world_size=2)


def missing_rank() -> None:
    import smdp

    with raises_within(20, "missing 2 of 3", "joined 0-1", kind=smdp.TimeoutError):
        dist.init_process_group(
            "smdp",
            init_method=f"file://{os.environ['SMDP_TEST_STORE']}",
            rank=int(os.environ["RANK"]),
            world_size=3,
        )


def late_rank() -> None:
    """Rank 0 has given up on rank 1, which comes after it and says so."""
    import smdp

    rank = int(os.environ["RANK"])
    if rank == 1:
        time.sleep(5)
    with raises_within(10, "missing 1 of 2", "too late" if rank else "joined 0", kind=smdp.TimeoutError):
        dist.init_process_group(
            "smdp", init_method=f"file://{os.environ['SMDP_TEST_STORE']}", rank=rank, world_size=2
        )


def exit_in_flight() -> None:
    """An interpreter ends with operations and Futures under way, and without destroying its groups."""
    dist.init_process_group(
        "smdp",
        init_method=f"file://{os.environ['SMDP_TEST_STORE']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(3)]
        works[0].get_future().then(print)
        dist.irecv(torch.ones(3), 1)
    else:
        with raises_within(10, "rank 0"):
            dist.recv(torch.ones(3), 0, tag=5)


def left_by_exception() -> None:
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        raise KeyError("a bug of the user's")
    with raises_within(5, "rank 1"):
        dist.all_reduce(torch.ones(4))


@pytest.mark.parametrize("size", [2, 3])
def test_different_shapes(size: int) -> None:
    run(different_shape, size)


def test_different_dtypes() -> None:
    run(different_dtype, 2)


def test_futures_fail() -> None:
    run(different_operation_in_ddp_future, 2)


def test_a_step_more() -> None:
    run(a_step_more, 2)


@pytest.mark.parametrize("body", [wrapped_on_one_rank, new_group_on_one_rank])
def test_made_on_one_rank(body: Callable[[], None]) -> None:
    run(body, 2)


def test_time_limits() -> None:
    run(time_limits, 2)


def test_one_limit_for_all() -> None:
    run(one_limit_for_all, 2)


def test_timeout_of_a_group() -> None:
    run(timeout, 2)


def test_killed_in_operation() -> None:
    run(killed_in_operation, 3, exits=KILLED)


def test_killed_while_idle() -> None:
    run(killed_while_idle, 2, exits=KILLED)


def test_killed_with_loader_workers() -> None:
    run(killed_with_loader_workers, 3, exits=KILLED)


def test_killed_before_new_group() -> None:
    run(killed_before_new_group, 3, exits=KILLED)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("die_in", ["Meeting", "prefix_store"], ids=["at its start", "when all have come"])
def test_killed_in_new_group(victim: int, die_in: str) -> None:
    run(
        killed_in_new_group,
        3,
        exits={victim: -signal.SIGKILL},
        env={"SMDP_TEST_VICTIM": str(victim), "SMDP_TEST_DIE_IN": die_in},
    )


@pytest.mark.parametrize("stop_in", ["Meeting", "prefix_store"], ids=["at its start", "when all have come"])
def test_store_stopped(stop_in: str) -> None:
    from spawn import free_port

    environ = {
        "SMDP_TEST_PORT": str(free_port()),
        "SMDP_TEST_STOP_IN": stop_in,
        "SMDP_INIT_TIMEOUT": "3",
    }
    run(store_stopped, 2, init=False, env=environ, exits={0: -signal.SIGKILL})


def test_left_before_new_group() -> None:
    run(left_before_new_group, 3, exits={1: 1})


def test_different_layouts() -> None:
    run(different_layouts, 3)


def test_forked_child() -> None:
    run(forked_child, 2)


def test_different_secrets() -> None:
    run(different_secrets, 2, init=False)


def test_missing_rank() -> None:
    run(missing_rank, 2, init=False, env={"SMDP_INIT_TIMEOUT": "4"})


def test_late_rank() -> None:
    run(late_rank, 2, init=False, env={"SMDP_INIT_TIMEOUT": "2"})


def test_exit_in_flight() -> None:
    run(exit_in_flight, 2, init=False)


def test_left_by_exception() -> None:
    run(left_by_exception, 2, exits={1: 1})


LEAVES_WITH_A_FUTURE = """
import torch
import torch.distributed as dist

dist.init_process_group("smdp")
dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
if dist.get_rank() == 1:
    pending = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    raise ValueError("a bug of the user's")
dist.all_reduce(torch.ones(3))
dist.all_reduce(torch.ones(3))
"""


def test_no_thread_hides_the_error_at_the_end(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEAVES_WITH_A_FUTURE)
    command = [sys.executable, "-m", "smdp", "run", "-n", "2", str(script)]
    for _ in range(3):  # a thread would not do it each time
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        output = done.stdout + done.stderr
        assert done.returncode == 1 and "ValueError: a bug of the user's" in output, output
        assert "Exception in thread" not in output, output
