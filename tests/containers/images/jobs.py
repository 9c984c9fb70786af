"""The job on digits of every image, as words after the program that starts ranks."""

from __future__ import annotations

# The repository is mounted at /repository, and what jobs need beside an image at /site.
JOBS = {
    "pytorch": ["/repository/tests/quickstart/train_digits.py"],
    "tensorflow": ["/repository/docs/examples/tensorflow_digits.py"],
    "huggingface": ["/repository/tests/containers/images/digits_trainer.py", "/workspace/out"],
}
ENVIRON = {"PYTHONPATH": "/site", "OMP_NUM_THREADS": "1"}
