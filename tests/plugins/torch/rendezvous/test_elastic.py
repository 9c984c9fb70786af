"""torchrun restarts the job after a worker was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_WORKER = """
import os, signal
import torch, torch.distributed as dist
dist.init_process_group("smdp")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
total = torch.ones(4)
dist.all_reduce(total)
if attempt == 0 and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(total)
print(f"attempt {attempt} rank {dist.get_rank()} total {total[0].item():g}", flush=True)
dist.destroy_process_group()
"""


def test_restart_after_a_killed_worker(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(_WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, "--max-restarts=2", "--monitor-interval=0.2", str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "attempt 0" not in result.stdout
    for rank in range(2):
        assert f"attempt 1 rank {rank} total 4" in result.stdout, result.stdout + result.stderr
