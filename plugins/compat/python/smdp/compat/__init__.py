"""Runs scripts written for Amazon's SageMaker libraries and for Horovod on smdp.

Example:
    >>> import smdp.compat
    >>> smdp.compat.install()                                    # doctest: +SKIP
    >>> import smdistributed.dataparallel.torch.torch_smddp      # doctest: +SKIP
"""

from __future__ import annotations

from smdp_compat import install as install
from smdp_compat import is_installed as is_installed
from smdp_compat import uninstall as uninstall

__all__ = ["install", "is_installed", "uninstall"]
