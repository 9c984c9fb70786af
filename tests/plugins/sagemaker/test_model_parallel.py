"""Training jobs of scripts for SageMaker Model Parallel, as the SDK v2 starts them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from containers import ALONE, HAS_TOOLKIT, TOOLKIT, Container

SCRIPTS = Path(__file__).parents[1] / "compat" / "scripts"
TWO_STAGES: dict[str, Any] = {"partitions": 2, "microbatches": 2, "ddp": True}
TWO_SLICES: dict[str, Any] = {"tensor_parallel_degree": 2, "prescaled_batch": 1}
TWO_PARTS: dict[str, Any] = {"partitions": 1, "tensor_parallel_degree": 2, "ddp": True, "microbatches": 2}


@pytest.mark.timeout(400)
@pytest.mark.skipif(not HAS_TOOLKIT, reason="sagemaker-training is not installed")
@pytest.mark.parametrize(
    ("runner", "script", "ranks", "config"),
    [
        (TOOLKIT, "smp_mnist.py", 2, TWO_PARTS),
        (ALONE, "smp_mnist.py", 4, {**TWO_PARTS, "partitions": 2}),
        (TOOLKIT, "smp_train_bert.py", 2, TWO_STAGES),
        (TOOLKIT, "smp_train_t5.py", 4, TWO_STAGES),
        (TOOLKIT, "smp_train_gpt.py", 2, TWO_SLICES),
        (TOOLKIT, "smp_train_gpt.py", 4, {**TWO_SLICES, "pipeline_parallel_degree": 2}),
        (TOOLKIT, "smp_train_gpt.py", 2, {"sharded_data_parallel_degree": 2, "bf16": 1}),
    ],
)
def test_a_job(runner: list[str], script: str, ranks: int, config: dict[str, Any], tmp_path: Path) -> None:
    """`mp_parameters` become the variable that configures SMP, and an argument that scripts leave alone."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn" if script == "smp_mnist.py" else "transformers")
    given: dict[str, Any] = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": ranks}
    if script == "smp_train_gpt.py":  # which has arguments instead
        given, config = {**given, **config}, {"ddp": True}
    container = Container(
        tmp_path / "ml",
        (SCRIPTS / script).read_text(),
        hyperparameters={**given, "mp_parameters": config},
        CUDA_VISIBLE_DEVICES="",
    )
    done = container.run(runner)
    assert done.returncode == 0, done.stderr
    if script == "smp_mnist.py":
        ((accuracy, count),) = re.findall(r"accuracy ([\d.]+) on (\d) ranks", done.stdout)
        assert float(accuracy) > 0.85 and int(count) == ranks
    else:
        assert done.stdout.count(" trained") == ranks
