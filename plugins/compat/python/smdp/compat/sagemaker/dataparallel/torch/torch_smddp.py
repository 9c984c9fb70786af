"""`smdistributed.dataparallel.torch.torch_smddp`: importing it registers the backend "smddp"."""

from __future__ import annotations

import smdp.torch  # noqa: F401 - raises with the reason where there is no torch
from smdp_torch_autoload import register_backend

register_backend("smddp")
