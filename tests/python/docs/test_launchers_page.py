"""The page of launchers quotes messages that exist and files that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "launchers.md").read_text(encoding="utf-8")


def sources() -> str:
    """All that can print a message, string literals that go on in the next line joined."""
    files = [
        *ROOT.glob("core/src/**/*.cpp"),
        *ROOT.glob("core/python/**/*.py"),
        *ROOT.glob("plugins/torch/python/**/*.py"),
    ]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return re.sub(r'"\s+f?"', "", text)


def test_messages_are_those_of_the_code() -> None:
    rows = PAGE.split("## When ranks do not meet")[1]
    messages = re.findall(r"^\| `([^`]*)` \|", rows, re.MULTILINE)
    assert len(messages) == 8
    text = sources()
    for message in messages:
        # What varies: numbers, names, a launcher and its job.
        words = re.split(r"[\w.]*'[^']*'|=?\d[\d., ]*|\bnode\d\b|SLURM\w*(?: job)?|MASTER_ADDR=", message)
        for words_that_stay in words:
            assert words_that_stay.strip(" ,;:") in text, (message, words_that_stay)


def test_links_lead_to_pages_and_batch_files() -> None:
    for name in re.findall(r"\]\((\w+\.md)\)", PAGE):
        assert (ROOT / "docs" / name).exists(), name
    slurm = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
    files = set(re.findall(r"containers/slurm/[\w.]+", slurm))
    assert files == {"containers/slurm/srun.sbatch", "containers/slurm/torchrun.sbatch"}
    assert all((ROOT / file).exists() for file in files)
