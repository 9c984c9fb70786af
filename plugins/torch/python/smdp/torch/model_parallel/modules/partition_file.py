"""The keys `partition_file` and `load_partition`: the partition of a model in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smdp import _json
from smdp.torch.model_parallel.modules.partitioning import Decision

_STAGES, _RANKS = "stages", "ranks"


def write_partition(path: Path, stages: dict[str, int], ranks: Sequence[int]) -> None:
    """Writes a partition.

    Args:
        path: The file, whose folder exists.
        stages: The virtual stage of each unit, by its name.
        ranks: The partition of each virtual stage.

    Raises:
        ValueError: The file cannot be written.
    """
    text = json.dumps({_STAGES: stages, _RANKS: list(ranks)}, indent=1)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"[smdp] partition_file = {str(path)!r} cannot be written: {error.strerror}; create its folder,"
            " or remove the key"
        ) from None


def read_partition(path: Path) -> Decision:
    """Returns the partition in a file.

    Raises:
        ValueError: There is no such file, or it does not contain a partition.
    """
    hint = "run once with load_partition = False, which writes the file"
    try:
        found: Any = _json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"[smdp] load_partition = True needs partition_file = {str(path)!r}: {error.strerror}; {hint},"
            " and let every host see it"
        ) from None
    except (ValueError, RecursionError):
        found = None
    if not _is_partition(found):
        raise ValueError(f"[smdp] partition_file = {str(path)!r} does not contain a partition; {hint}")
    return Decision(found[_STAGES], tuple(found[_RANKS]))


def _is_partition(found: Any) -> bool:
    if not isinstance(found, dict) or not isinstance(found.get(_STAGES), dict):
        return False
    ranks = found.get(_RANKS)
    if not isinstance(ranks, list):
        return False
    numbers = [*found[_STAGES].values(), *ranks]
    return all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in numbers)
