"""The API of SageMaker Model Parallel 1.x on our pipelines: `import smdp.torch.model_parallel as smp`."""

from __future__ import annotations
