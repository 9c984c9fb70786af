"""Ranks that give other values: an error on every rank that names both."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from group_jobs import ONE_HOST, THREE_HOSTS, seconds

Job = Callable[..., list[Any]]


@pytest.mark.parametrize("hosts", [ONE_HOST, THREE_HOSTS], ids=["one host", "three hosts"])
@pytest.mark.parametrize(
    ("call", "values"),
    [
        ("g.all_reduce(np.ones(10 if g.rank == 0 else 11, np.float32))", ["float32[10]", "float32[11]"]),
        ("g.all_reduce(np.ones((2, 3) if g.rank == 0 else (3, 2)))", ["float64[2, 3]", "float64[3, 2]"]),
        ("g.all_reduce(np.ones(9, np.float32 if g.rank == 0 else np.int32))", ["float32[9]", "int32[9]"]),
        ("g.all_reduce(np.ones(9), smdp.SUM if g.rank == 0 else smdp.MAX)", ["SUM", "MAX"]),
        (
            "g.all_gather(np.ones(9)) if g.rank == 0 else g.all_reduce(np.ones(9))",
            ["all_gather", "all_reduce"],
        ),
        ("g.broadcast(np.ones(9), g.rank % 2)", ["from rank 0", "from rank 1"]),
        # As many elements, in other shapes.
        ("g.reduce_scatter(np.ones((3, 4) if g.rank == 0 else (6, 2)))", ["float64[3, 4]", "float64[6, 2]"]),
        ("g.reduce_scatter([np.ones((2, 3) if g.rank else 6)] * 3)", ["float64[18]", "float64[6, 3]"]),
        ("g.all_gather(np.ones((2, 3) if g.rank == 0 else (3, 2)))", ["float64[2, 3]", "float64[3, 2]"]),
        ("g.all_to_all(np.ones((3, 4) if g.rank == 0 else (6, 2)))", ["float64[3, 4]", "float64[6, 2]"]),
        ("g.gather(np.ones((2, 3) if g.rank == 0 else (3, 2)))", ["float64[:, 3]", "float64[:, 2]"]),
        (
            "g.scatter(np.ones(18), out=np.ones((2, 3) if g.rank == 0 else (3, 2)))",
            ["float64[:, 3]", "float64[:, 2]"],
        ),
    ],
)
def test_mismatch_names_both_values(call: str, values: list[str], hosts: list[int], job: Job) -> None:
    ranks = job(3, f"g = joined()\nreport(lambda: {call})\nreport(lambda: g.barrier())", hosts=hosts)
    for rank in ranks:
        assert rank.finish(30) == 0, rank.output
        assert "MismatchError" in rank.output, rank.output
        assert "rank 0" in rank.output
        assert all(value in rank.output for value in values), rank.output
        assert seconds(rank.output) < 5


COUNTS = {
    "gather": "g.gather(np.ones(11 if g.rank == 1 else 10), out=[np.empty(10) for _ in range(3)])",
    "scatter": "g.scatter(np.ones(30), out=np.empty(11 if g.rank == 1 else 10))",
    "all_to_all": (
        "g.all_to_all([np.ones(11 if (g.rank, to) == (1, 0) else 10) for to in range(3)],"
        " out=[np.empty(10) for _ in range(3)])"
    ),
}


@pytest.mark.parametrize("hosts", [ONE_HOST, THREE_HOSTS], ids=["one host", "three hosts"])
@pytest.mark.parametrize("call", list(COUNTS))
def test_counts_that_differ_between_two_ranks(call: str, hosts: list[int], job: Job) -> None:
    """Both hear of it in that very call, and so do all others on one host; nobody calls anything else."""
    ranks = job(3, f"g = joined()\nreport(lambda: {COUNTS[call]})\ntime.sleep(1)", hosts=hosts)
    for rank in ranks:
        assert rank.finish(30) == 0, rank.output
    (receiver, expected), (sender, sent) = ((1, 11), (0, 10)) if call == "scatter" else ((0, 10), (1, 11))
    for rank in ranks if hosts == ONE_HOST else ranks[:2]:
        assert "MismatchError" in rank.output, rank.output
        who = rf"rank {receiver} (of 3 )?\(host \w+\)"  # it may have told the others
        peer = rf"rank {sender} \(host \w+\)"
        said = rf"{who} expects {expected} elements from {peer}, which sends {sent}, in {call} #"
        assert re.search(said, rank.output), rank.output
