"""What CUDA=1 would install, by pip's own decision; no image of it is built, which would be gigabytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "containers" / "common"))
import install_packages as install

CONTAINERS = Path(__file__).resolve().parents[2] / "containers"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        sys.version_info < (3, 11), reason="the images' versions are those for Python 3.11 on"
    ),
]


@pytest.mark.parametrize(
    ("image", "framework", "package"),
    [
        ("pytorch", "torch", "nvidia-nccl-cu13"),
        ("huggingface", "torch", "nvidia-nccl-cu13"),
        ("tensorflow", "tensorflow", "nvidia-nccl-cu12"),
    ],
)
def test_pip_finds_the_packages_of_cuda_under_the_constraints(
    image: str, framework: str, package: str, tmp_path: Path
) -> None:
    """Of each wheel pip fetches the end, which has the metadata, where the index has none by itself."""
    requirements = install.requirements_of(CONTAINERS / image, cuda=True)
    (tmp_path / "requirements.txt").write_text("\n".join(requirements))
    constraints = CONTAINERS / "common" / "constraints.txt"
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--no-cache-dir", "--use-feature=fast-deps", "--only-binary=:all:", f"--report={report}"]
    command += ["-c", str(constraints), "-r", str(tmp_path / "requirements.txt")]
    # Without this machine's index of builds for CPUs, as the error of CUDA=1 advises.
    hidden = ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PYTHONPATH")
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, env={**environ, "PIP_CONFIG_FILE": os.devnull}, timeout=1000)
    assert done.returncode == 0
    found = json.loads(report.read_text())
    versions = {
        install.name_of(each["metadata"]["name"]): each["metadata"]["version"] for each in found["install"]
    }
    assert package in versions
    for requirement in requirements:
        assert versions[install.name_of(requirement)] == requirement.partition("==")[2]
    if framework == "torch":
        install.check_build(install.cuda_packages(found, framework), "torch", cuda=True)
