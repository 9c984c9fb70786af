"""After a mismatch that every rank got, the group goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Job = Callable[..., list[Any]]

# What all ranks call is drawn alike by all of them; in some steps one of them makes another call.
SEQUENCE = """
import random
g = joined()
draw = random.Random({seed})
values = [rank + 1 for rank in range(g.size)]
calls = {{
    "all_reduce": lambda array: g.all_reduce(array),
    "broadcast": lambda array: g.broadcast(array, 1),
    "all_gather": lambda array: g.all_gather(array),
    "reduce_scatter": lambda array: g.reduce_scatter(array),
    "all_to_all": lambda array: g.all_to_all(array),
    "barrier": lambda array: g.barrier(),
}}
right = {{
    "all_reduce": lambda got, count: np.all(got == sum(values)),
    "broadcast": lambda got, count: np.all(got == 2),
    "all_gather": lambda got, count: all(np.all(got[rank] == rank + 1) for rank in range(g.size)),
    "reduce_scatter": lambda got, count: np.all(got == sum(values)),
    "all_to_all": lambda got, count: all(np.all(b == r + 1) for r, b in enumerate(np.split(got, g.size))),
    "barrier": lambda got, count: True,
}}
# Between hosts a rank may have ended its part of a broadcast before it can be told.
open_after = [name for name in calls if len(g.hosts) == 1 or name != "broadcast"]
mismatches = 0
for step in range(150):
    name = draw.choice(list(calls))
    count = draw.choice([1, 20, 30_000]) * g.size
    dtype = np.float32
    odd, how = draw.randrange(2 * g.size), draw.choice(["dtype", "count", "call"])
    other = draw.choice([one for one in open_after if one != name])
    if name == "barrier":
        how = "call"
    if name not in open_after or (len(g.hosts) > 1 and (name, how) == ("all_to_all", "count")):
        odd = 2 * g.size
    if odd == g.rank:
        dtype = np.int32 if how == "dtype" else dtype
        count += g.size if how == "count" else 0
        name = other if how == "call" else name
    array = np.full(count, g.rank + 1, dtype)
    try:
        got = calls[name](array)
        if odd < g.size:
            sys.exit(f"step {{step}}: {{name}} of rank {{g.rank}} gave a value, though rank {{odd}} differed")
        if not right[name](got, count):
            sys.exit(f"step {{step}}: {{name}} gave {{got}} on rank {{g.rank}}")
    except smdp.MismatchError:
        mismatches += 1
        if odd >= g.size:
            raise
print(f"{{mismatches}} mismatches", flush=True)
"""


@pytest.mark.parametrize("hosts", [[0, 0], [0, 0, 0], [0, 0, 0, 0], [0, 1, 2], [0, 0, 1, 1]])
def test_any_sequence(hosts: list[int], job: Job) -> None:
    ranks = job(len(hosts), SEQUENCE.format(seed=sum(hosts)), hosts=hosts)
    for rank in ranks:
        assert rank.finish(60) == 0, rank.output
    assert len({rank.output for rank in ranks}) == 1
    assert int(ranks[0].output.split()[0]) > 40, ranks[0].output
