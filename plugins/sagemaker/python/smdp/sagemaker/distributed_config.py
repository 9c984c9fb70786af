"""The launcher for `ModelTrainer(distributed=...)` of the SageMaker Python SDK v3."""

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

    smdp must be in the image or in source_code.requirements.

    Args:
        process_count_per_node: Number of ranks per host. The default is the number of its GPUs, or 1.
        compat: Whether imports of Amazon's SMDDP and SMP and of Horovod resolve to smdp. By default, they do
            if the hyperparameters contain mp_parameters.

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
        """The file in that folder that the container runs."""
        return "smdp_driver.py"
