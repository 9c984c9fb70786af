"""What `recompute=` and checkpoint_activations() accept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_UNITS = {"B": 1, **{f"{k}B": 1000**n for n, k in enumerate("KMGT", 1)}}
_UNITS |= {f"{k}iB": 1024**n for n, k in enumerate("KMGT", 1)}
_ALLOWED = (
    "'each', 'contiguous', 'group_N' with N modules, such as 'group_2', 'selective', or a budget: bytes (an"
    " integer, or a text such as '2GB'), or a part of what training keeps without recomputation (a float"
    " above 0 and up to 1)"
)


@dataclass(frozen=True, slots=True)
class Policy:
    """Which activations are recomputed.

    Attributes:
        name: As the user wrote it.
        size: Most modules that are recomputed together. None: any number.
        is_selective: Whether results that are expensive per byte are kept.
        bytes: The bytes that may be kept. None: no such budget.
        part: The same as a part of what training keeps without recomputation.
    """

    name: str
    size: int | None = 1
    is_selective: bool = False
    bytes: int | None = None
    part: float | None = None

    @property
    def is_budget(self) -> bool:
        """Returns whether the modules to recompute follow from their measured costs."""
        return self.bytes is not None or self.part is not None

    @property
    def is_grouped(self) -> bool:
        """Returns whether several modules may be recomputed together."""
        return self.size != 1 and not self.is_budget and not self.is_selective


def read_policy(policy: Any, argument: str = "policy") -> Policy:
    """Returns the policy that a user has passed.

    Args:
        policy: The user's argument.
        argument: Its name, for errors.

    Raises:
        ValueError: It is not a policy; the message names those that are.
    """
    if isinstance(policy, Policy):
        return policy
    name = repr(policy)
    if isinstance(policy, str):
        if policy in ("each", "contiguous"):
            return Policy(name, size=1 if policy == "each" else None)
        if policy == "selective":
            return Policy(name, is_selective=True)
        if found := re.fullmatch(r"group_([1-9]\d*)", policy):
            return Policy(name, size=int(found[1]))
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?i?B)", policy)
        if found and found[2] in _UNITS and (count := int(float(found[1]) * _UNITS[found[2]])) > 0:
            return Policy(name, bytes=count)
    elif isinstance(policy, int) and not isinstance(policy, bool) and policy > 0:
        return Policy(name, bytes=policy)
    elif isinstance(policy, float) and 0 < policy <= 1:
        return Policy(name, part=policy)
    raise ValueError(f"[smdp] {argument} = {policy!r} is not valid; allowed: {_ALLOWED}")
