"""Where the files of a partial checkpoint are."""

from __future__ import annotations

from pathlib import Path

SUFFIX = "_partial"
USER_CONTENT = "user_content.pt"
# The partition and the contents of the checkpoint. This file is written last.
DECISION = "partition_decision.pt"


def folder_of(root: Path, tag: str) -> Path:
    """Returns the folder of a partial checkpoint: `{tag}_partial`, or `{tag}` if only this one exists.

    Amazon's example scripts read shards of parameters from a folder with the name that they get as a tag.
    """
    usual, given = root / f"{tag}{SUFFIX}", root / tag
    return given if given.is_dir() and not usual.is_dir() else usual


def newest_tag(root: Path, text: str) -> str:
    """Returns the tag of what the file `newest` names: a tag, or the folder of a partial checkpoint."""
    tag = text.strip()
    return tag.removesuffix(SUFFIX) if (root / tag).is_dir() else tag
