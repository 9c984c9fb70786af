# needs: torch
# ranks: 2
import os
from pathlib import Path

run()
smp.barrier()
assert Path("checkpoints", "newest").read_text() == "step3"
assert len(list(Path("checkpoints", "step3_partial").iterdir())) == 6
assert output.concat().shape == (32, 10)
