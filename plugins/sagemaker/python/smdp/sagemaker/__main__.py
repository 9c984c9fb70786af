"""`python -m smdp.sagemaker`: the command of a container without sagemaker-training.

SageMaker appends the argument `train`.
"""

from __future__ import annotations

import sys

from smdp.sagemaker.failure import TrainingError
from smdp.sagemaker.training import main

if sys.argv[1:] not in ([], ["train"]):
    sys.exit(f"[smdp] python -m smdp.sagemaker takes train or nothing, got {sys.argv[1:]}")
try:
    main()
except TrainingError as error:
    sys.stderr.write(f"{error}\n")
    sys.exit(error.errno)
