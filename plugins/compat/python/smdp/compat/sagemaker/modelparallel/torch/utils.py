"""`smdistributed.modelparallel.torch.utils`: helpers of SMP."""

from __future__ import annotations

from smdp.torch.model_parallel import utils as _utils

get_distribution_axis = _utils.get_distribution_axis
rmsg = _utils.rmsg

__all__ = ["get_distribution_axis", "rmsg"]
