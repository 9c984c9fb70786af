"""Two ranks add arrays; no framework gets imported."""

from __future__ import annotations

import sys

import numpy as np

import smdp

world = smdp.init()
values = np.full(100_000, world.rank + 1, dtype=np.float32)
world.all_reduce(values)
assert values.min() == values.max() == 3, values
smdp.shutdown()
frameworks = {"torch", "tensorflow", "keras", "transformers", "accelerate", "lightning"} & sys.modules.keys()
assert not frameworks, frameworks
print("the result is right", flush=True)
