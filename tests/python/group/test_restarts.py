"""One rank is started anew, alone, while the process of rank 0 goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Job = Callable[..., list[Any]]

TWO_LIVES = """
import re
import subprocess
if os.environ["SMDP_RANK"] == "1" and "LIFE" not in os.environ:
    lives = ({**os.environ, "LIFE": life} for life in "12")
    codes = [subprocess.run([sys.executable, __file__], env=life).returncode for life in lives]
    assert codes == [7, 0], codes
    sys.exit()
"""


def test_a_rank_that_is_started_anew_waits_for_the_next_world(job: Job, finish: Callable[..., None]) -> None:
    code = """
g = joined()
g.barrier()
if os.environ.get("LIFE") == "1":
    os._exit(7)
if g.rank == 0:
    report(g.barrier)
    smdp.shutdown()
    time.sleep(2)  # the second life is there before
    g = joined()
    g.barrier()
assert (g.all_reduce(np.ones(3)) == 2).all()
"""
    ranks = job(2, TWO_LIVES + code)
    finish(ranks)
    assert "rank 1 (host" in ranks[0].output, ranks[0].output


def test_a_rank_that_is_started_anew_alone_is_told_why(job: Job, finish: Callable[..., None]) -> None:
    code = """
if os.environ.get("LIFE") == "2":
    report(joined)
    sys.exit()
g = joined()
g.barrier()
if g.rank == 0:
    report(g.barrier)
    time.sleep(4)
else:
    os._exit(7)
"""
    ranks = job(2, TWO_LIVES + code, environ={"SMDP_INIT_TIMEOUT": "2"})
    finish(ranks)
    assert (
        "TimeoutError: [smdp] rank 1 of 2: this rank has called smdp.init() before, in this process or in an"
        " earlier one" in ranks[1].output
    )
    assert re.search(r"rank 0 has not called it again within (1\.9|2)[0-9.]* s", ranks[1].output)
