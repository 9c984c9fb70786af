"""Counters, traces and the log of stalls, on real ranks."""

from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smdp
from smdp import _stdout
from smdp.cli import trace
from smdp.cli.trace.alignment import offsets
from smdp.cli.trace.files import Trace, read

Job = Callable[..., list[Any]]

WORK = """
g = joined()
for _ in range(5):
    g.all_reduce(np.ones(1000, np.float32))
g.barrier()
"""


def test_stats_count_operations(job: Job) -> None:
    ranks = job(2, WORK + "print([row for row in smdp.stats()['operations'] if row['bytes'] == 20000])")
    for rank in ranks:
        assert rank.finish(30) == 0, rank.output
        assert "'operation': 'all_reduce'" in rank.output
        assert "'algorithm': 'one_shot'" in rank.output
        assert "'calls': 5" in rank.output


def test_explain_says_why(job: Job) -> None:
    code = "joined()\nfor size in 100, 1 << 24: print(smdp.explain(size))"
    code += "\nfor size in 'x', -1, 10**30: report(lambda: smdp.explain(size))"
    for hosts, small, large in (([0, 0], "one_shot", "two_shot"), ([0, 1], "recursive_doubling", "direct")):
        for rank in job(2, code, hosts=hosts):
            assert rank.finish(30) == 0, rank.output
            lines = rank.output.splitlines()
            assert small in lines[0].split("(")[0], rank.output
            assert large in lines[1].split("(")[0], rank.output
            assert ["TypeError" in lines[2], *("ValueError" in line for line in lines[3:5])] == [True] * 3
            assert "summed by every" in lines[0] and "2 owners of" in lines[1], rank.output
            assert all(("1 connection to each rank" in line) == (hosts == [0, 1]) for line in lines[:2])


@pytest.mark.parametrize("hosts", [[0, 0], [0, 1]], ids=["one host", "two hosts"])
def test_trace_of_a_job(hosts: list[int], job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    for rank in job(2, WORK, hosts=hosts, environ={"SMDP_TRACE": str(folder)}):
        assert rank.finish(30) == 0, rank.output
    traces = read(folder)
    assert [one.rank for one in traces] == [0, 1]
    for one in traces:
        sums = [event for event in one.spans if event["name"] == "all_reduce"]
        assert len(sums) == 5
        assert all(event["args"]["bytes"] == 4000 and event["dur"] > 0 for event in sums)
    merged = json.loads(trace.merge(folder).read_text())
    assert {event["pid"] for event in merged} == {0, 1}
    assert min(event["ts"] for event in merged if event["ph"] == "X") == 0
    assert "all_reduce" in trace.report_text(folder)
    assert json.loads(trace.report_text(folder, as_json=True))["ranks"] == 2


def test_trace_survives_a_killed_rank(job: Job, tmp_path: Path) -> None:
    code = WORK + "smdp.shutdown()\nos.kill(os.getpid(), signal.SIGKILL)"
    folder = tmp_path / "traces"
    for rank in job(2, code, environ={"SMDP_TRACE": str(folder)}):
        rank.finish(30)
    assert all(one.spans for one in read(folder))


def test_trace_of_a_rank_that_is_killed_without_warning(job: Job, tmp_path: Path) -> None:
    code = WORK + "time.sleep(1.1)\ng.barrier()\ng.barrier()\nos.kill(os.getpid(), signal.SIGKILL)"
    folder = tmp_path / "traces"
    for rank in job(2, code, environ={"SMDP_TRACE": str(folder)}):
        rank.finish(30)
    for one in read(folder):
        assert sum(event["name"] == "all_reduce" for event in one.spans) >= 5
        assert one.is_cut


def test_trace_that_cannot_be_written_is_said_and_harms_nobody(job: Job, tmp_path: Path) -> None:
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
    code = WORK.replace("range(5)", "range(30)") + limit + "smdp.shutdown()\nprint('went on')"
    for rank in job(2, code, environ={"SMDP_TRACE": str(tmp_path / "traces")}):
        assert rank.finish(30) == 0, rank.output
        message = f"[smdp] rank {rank.rank}: the trace cannot be written (File too large) and ends here"
        assert message in rank.output and "went on" in rank.output, rank.output
    assert [one.is_cut for one in read(tmp_path / "traces")] == [True, True]


def test_traces_that_end_early_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, (steps, last) in enumerate([(20, "trace ends"), (18, "trace ends"), (19, None), (3, None)]):
        head = {"name": "smdp", "ph": "M", "args": {"rank": rank, "size": 6, "clock": "a"}}
        wait = {"name": "exposed communication", "cat": "step", "ts": 1.0, "dur": 1.0}
        # As where gradients are waited for one by one.
        lines: list[Any] = [head] + [
            wait | {"args": {"step": step}} for step in range(steps) for _ in range(1 + rank % 2)
        ]
        lines += [{"name": last, "ph": "i", "ts": 2.0}] if last else []
        (tmp_path / f"rank{rank}-1.json").write_text("[\n" + "".join(f"{json.dumps(x)},\n" for x in lines))
    whole = (tmp_path / "rank0-1.json").read_text().replace('"rank": 0', '"rank": 4')
    (tmp_path / "rank4-1.json").write_text(whole[:-5])
    (tmp_path / "rank5-1.json").touch()
    assert [one.is_cut for one in read(tmp_path)] == [False, False, True, True, True]
    told = capsys.readouterr().err
    assert "the traces of ranks [2, 3, 4, 5] end early: that of rank 2 has 19 steps, others up to 20." in told
    assert "missing: [" not in told


def test_traces_that_are_not_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = {"name": "smdp", "ph": "M", "args": {"rank": 1, "size": 3, "clock": "a"}}
    (tmp_path / "rank1-1.json").write_text(f"[\n{json.dumps(first)},\n")
    assert [one.rank for one in read(tmp_path)] == [1]
    assert "contains traces of 1 of 3 ranks; missing: [0, 2]. If these ranks ran" in capsys.readouterr().err
    for size in ("3", 2.0, None):
        first["args"]["size"] = size  # type: ignore[index]
        (tmp_path / "rank1-1.json").write_text(f"[\n{json.dumps(first)},\n")
        with pytest.raises(ValueError, match="is damaged: its first event lacks a valid rank, size or clock"):
            read(tmp_path)


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank0-1.json").write_text("{")
    with pytest.raises(ValueError, match=r"rank0-1\.json is not a trace of smdp, or is damaged"):
        read(tmp_path)
    with pytest.raises(ValueError, match=r"rank0-1\.json is not a directory"):
        read(tmp_path / "rank0-1.json")


def test_forked_children_that_are_ranks_have_traces(job: Job, tmp_path: Path) -> None:
    """Their parent has traced a world of its own before."""
    code = """
joined(rank=0, world_size=1, master_port=None).barrier()
smdp.shutdown()
pids = [os.fork(), 0]
if pids[0]: pids[1] = os.fork()
if not all(pids):
    port = int(os.environ["SMDP_MASTER_PORT"])
    group = joined(rank=int(pids[0] == 0), world_size=2, master_addr="127.0.0.1", master_port=port)
    group.all_reduce(np.ones(3))
    smdp.shutdown()
    sys.exit()
assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
"""
    (parent,) = job(1, code, environ={"SMDP_TRACE": str(tmp_path)})
    assert parent.finish(60) == 0, parent.output
    traces = read(tmp_path)
    assert [(one.rank, one.size) for one in traces] == [(0, 2), (1, 2)]
    for one in traces:
        assert [event["name"] for event in one.spans if event["cat"] == "operation"] == ["all_reduce"]


def test_a_full_trace_says_so(job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    limit = "from smdp import _core\nif os.environ['SMDP_RANK'] == '1': _core.trace_set_limit(2000)\n"
    code = limit + WORK.replace("range(5)", "range(30)") + "print(_core.trace_is_on())"
    whole, full = job(2, code, environ={"SMDP_TRACE": str(folder)})
    assert whole.finish(30) == full.finish(30) == 0, full.output
    assert "True" in whole.output and "False" in full.output
    last = (folder / next(path.name for path in folder.glob("rank1-*"))).read_text().splitlines()[-1]
    assert '"name":"trace is full"' in last
    first, second = read(folder)
    assert len(first.spans) > len(second.spans) > 0
    assert not first.is_cut and not second.is_cut
    assert first.ends == [] and second.ends[0]["args"] == {"limit_bytes": 2000}
    message = "smdp: the traces of ranks [1] reached the limit of 0.001907 MiB"
    assert message in capsys.readouterr().err
    merged = json.loads(trace.merge(folder).read_text())
    assert [event["pid"] for event in merged if event["name"] == "trace is full"] == [1]
    assert message in capsys.readouterr().err
    assert "all_reduce" in trace.report_text(folder)


def test_steps_that_begin_again_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for step in (7, 8, 8, 1, 3):
        smdp.print_step(step, loss=0.5)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [f"smdp_step={step}" for step in (7, 8, 8, 1, 3)]
    assert ["step_ms=" in line for line in lines[1:]] == [True, False, False, True]


def test_a_figure_that_is_not_one_number_is_printed(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        smdp.print_step(step, loss=np.ones(2), count=10**400, best=np.ones(1))
    assert capsys.readouterr().out.splitlines()[0].startswith("smdp_step=1 loss=nan count=nan best=1")
    assert (
        len([text for text in caplog.messages if "prints loss=nan: it is not a single number" in text]) == 1
    )


class Unwritable(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def closed() -> io.StringIO:
    file = io.StringIO()
    file.close()
    return file


@pytest.mark.parametrize("stdout", [Unwritable(), closed(), None], ids=["full disk", "closed", "none"])
def test_output_that_cannot_be_written_ends_nothing(
    stdout: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_stdout, "_has_failed", False)
    monkeypatch.setattr(sys, "stdout", stdout)
    smdp.print_step(1)
    smdp.print_step(2)
    monkeypatch.undo()
    assert len([text for text in caplog.messages if "cannot write to standard output (" in text]) == 1


def test_directory_that_cannot_be_written(job: Job) -> None:
    (rank,) = job(1, "report(joined)", environ={"SMDP_TRACE": "/proc/nowhere"})
    assert rank.finish(30) == 0
    assert "ConfigError" in rank.output
    assert "SMDP_TRACE is '/proc/nowhere'" in rank.output


def _operation(sequence: int, begin: float, end: float) -> dict[str, Any]:
    arguments = {"group": "world", "sequence": sequence, "bytes": 4, "algorithm": "direct"}
    return {"cat": "operation", "name": "all_reduce", "ts": begin, "dur": end - begin, "args": arguments}


def test_clocks_are_aligned_by_what_collectives_prove() -> None:
    ahead = 1e6
    # Each is late in one operation, and leaves soon after the other has come.
    here = [_operation(1, 0, 105), _operation(2, 300, 310)]
    there = [_operation(1, 100, 110), _operation(2, 200, 305)]
    shifted = [event | {"ts": event["ts"] + ahead} for event in there]
    traces = [Trace(0, 2, "a", spans=here), Trace(1, 2, "b", spans=shifted)]
    found = offsets(traces)
    assert found[0] == 0
    assert found[1] == pytest.approx(-ahead, abs=10)
    assert offsets([traces[0], Trace(1, 2, "a", spans=there)])[1] == 0


def test_a_stall_is_logged_with_the_rank_it_waits_for(job: Job) -> None:
    code = """
g = joined()
if g.rank == 1: time.sleep(5)
g.all_reduce(np.ones(10, np.float32))
"""
    ranks = job(2, code, environ={"SMDP_STALL_TIME": "1"}, hosts=[0, 1])
    for rank in ranks:
        assert rank.finish(30) == 0, rank.output
    assert "all_reduce #1 float32[10] SUM is still running after 2 s" in ranks[0].output
    assert "rank 1" in ranks[0].output.split("is still running")[1]
    assert "is still running after 4 s" in ranks[0].output  # each time the wait has doubled
    assert "is still running" not in ranks[1].output
