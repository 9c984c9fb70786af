"""The launcher of `ModelTrainer(distributed=...)` in the SageMaker Python SDK v3."""

from __future__ import annotations

import os

try:
    from sagemaker.train.distributed import DistributedConfig
except ImportError as error:
    raise ImportError(
        f"[smdp] smdp.sagemaker.Smdp needs the SageMaker Python SDK v3 ({error}); pip install"
        " 'smdp[sagemaker]'"
    ) from error


class Smdp(DistributedConfig):
    """Runs a ModelTrainer's script on ranks of smdp, on one host or many.

    The image, or source_code.requirements, must have smdp.

    Args:
        process_count_per_node: Ranks of a host. Default: its GPUs, or 1.
        compat: Let smdp answer for Amazon's SMDDP and SMP, and for Horovod. Default: if the hyperparameters
            have mp_parameters.

    Example:
        >>> from sagemaker.train import ModelTrainer                                    # doctest: +SKIP
        >>> ModelTrainer(..., distributed=Smdp(process_count_per_node=8)).train()       # doctest: +SKIP
    """

    process_count_per_node: int | None = None
    compat: bool | None = None

    @property
    def driver_dir(self) -> str:
        """The folder that the SDK uploads."""
        return os.path.join(os.path.dirname(__file__), "driver")

    @property
    def driver_script(self) -> str:
        """The file of that folder which the container runs."""
        return "smdp_driver.py"
