"""Training jobs of SageMaker: starts the ranks of every host, and finds metrics in the logs.

There are three ways to start a job: `SAGEMAKER_TRAINING_MODULE=smdp.sagemaker:main` if sagemaker-training is
in the image, `python -m smdp.sagemaker` if it is not, and `ModelTrainer(distributed=smdp.sagemaker.Smdp())`
with the SageMaker Python SDK v3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smdp.sagemaker.failure import TrainingError as TrainingError
from smdp.sagemaker.job import Job as Job
from smdp.sagemaker.metrics import METRIC_DEFINITIONS as METRIC_DEFINITIONS
from smdp.sagemaker.metrics import metric_definition as metric_definition
from smdp.sagemaker.training import main as main

if TYPE_CHECKING:
    from smdp.sagemaker.distributed_config import Smdp as Smdp

__all__ = ["METRIC_DEFINITIONS", "Job", "Smdp", "TrainingError", "main", "metric_definition"]


def __getattr__(name: str) -> Any:
    # Imported on demand: the SDK is on the machine that submits the job, not in the container.
    if name == "Smdp":
        from smdp.sagemaker.distributed_config import Smdp

        return Smdp
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
