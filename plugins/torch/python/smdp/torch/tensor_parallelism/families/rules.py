"""All rules, by the name of a module's class."""

from __future__ import annotations

from smdp.torch.tensor_parallelism.families import conv1d
from smdp.torch.tensor_parallelism.families.divisions import Rule

RULES: dict[str, Rule] = {**conv1d.RULES}
