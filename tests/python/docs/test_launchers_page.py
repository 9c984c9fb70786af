"""The pages of launchers lead to pages and files that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "launchers.md").read_text(encoding="utf-8")


def test_links_lead_to_pages_and_batch_files() -> None:
    for name in re.findall(r"\]\((\w+\.md)\)", PAGE):
        assert (ROOT / "docs" / name).exists(), name
    slurm = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
    files = set(re.findall(r"containers/slurm/[\w.]+", slurm))
    assert files == {"containers/slurm/srun.sbatch", "containers/slurm/torchrun.sbatch"}
    assert all((ROOT / file).exists() for file in files)
