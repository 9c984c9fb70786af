"""Jobs in containers of the built images: as the user of the image, under its entry point."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from buildah import ROOT
from container import Container
from image import Image
from jobs import ENVIRON, JOBS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
MAKE = Callable[..., Container]


def digits(image: Image, containers: MAKE, site: Path, **options: object) -> Container:
    return containers(image, volumes={"/repository": ROOT, "/site": site}, **options)


def test_two_ranks_on_digits_as_the_user_of_the_image(image: Image, containers: MAKE, site: Path) -> None:
    container = digits(image, containers, site)
    code, output = container.run("smdp", "run", "-n", "2", *JOBS[image.name], environ=ENVIRON, timeout_s=900)
    print(output)
    assert code == 0, output
    assert "[rank 1]" in output or "2 ranks" in output
    assert "[smdp] warning" not in output
    code, output = container.run("id", "-u")
    assert (code, output) == (0, "1000\n")


def test_two_ranks_under_mpirun(image: Image, containers: MAKE) -> None:
    """Open MPI of the image starts ranks and tells them who they are."""
    program = (
        "import smdp, numpy as np; from mpi4py import MPI; x = np.ones(3, np.float32); "
        "smdp.init().all_reduce(x); print(f'{MPI.COMM_WORLD.size} ranks, sum {x}')"
    )
    code, output = containers(image).run("mpirun", "-n", "2", "python3", "-m", "mpi4py", "-c", program)
    assert code == 0, output
    assert output.count("2 ranks, sum [2. 2. 2.]") == 2, output


def test_health(image: Image, containers: MAKE) -> None:
    test = image.config["Healthcheck"]["Test"]
    assert test[0] == "CMD"
    assert containers(image).run(*test[1:], entrypoint=False) == (0, "")
    code, output = containers(image).run(*test[1:], entrypoint=False, environ={"SMDP_THREADS": "many"})
    assert code == 1
    assert "SMDP_THREADS='many'" in output


def test_a_signal_reaches_the_ranks(image: Image, containers: MAKE, tmp_path: Path) -> None:
    """SIGTERM to the first process, as `docker stop` sends it, is the ranks' chance to save a checkpoint."""
    script = tmp_path / "job" / "train.py"
    script.parent.mkdir()
    script.write_text(
        "import signal, sys, time\n"
        "def save(*_):\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('training', flush=True)\ntime.sleep(600)\n"
    )
    container = containers(image, volumes={"/job": script.parent})
    process = container.start("smdp", "run", "-n", "2", "/job/train.py")
    assert process.stdout is not None
    try:
        seen = "".join(process.stdout.readline() for _ in range(2))
        assert seen.count("training") == 2, seen + (
            process.stdout.read() if process.poll() is not None else ""
        )
        container.signal(process, signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
    finally:
        container.kill(process)
    assert output.count("saved") == 2
    assert process.returncode != -signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ([], 64, "[smdp] the container was started without a command, so no rank runs"),
        (["train.py"], 127, "start its ranks with `smdp run -n RANKS train.py`"),
        (["smdp", "run", "-n", "0", "true"], 2, "-n='0' is not valid; allowed: 1 to 65536"),
    ],
)
def test_no_ranks(image: Image, containers: MAKE, command: list[str], code: int, message: str) -> None:
    found, output = containers(image).run(*command)
    assert found == code and message in output, output


def test_small_limits(image: Image, containers: MAKE) -> None:
    """Docker's default of /dev/shm: one warning, and the command runs."""
    code, output = containers(image, shm="64m").run("echo", "runs")
    assert code == 0
    assert re.fullmatch(
        r"\[smdp\] warning: /dev/shm has 64 MiB\. smdp does not use it, .*\nruns\n", output
    ), output
    assert containers(image).run("echo", "runs") == (0, "runs\n")
    # With so little to lock, and no shared memory to speak of, smdp works all the same.
    program = (
        "import smdp, numpy as np; x = np.ones(1 << 20, np.float32); smdp.init().all_reduce(x); print(x[-1])"
    )
    code, output = containers(image, shm="64k", memlock=0).run(
        "smdp", "run", "-n", "2", "python3", "-c", program
    )
    assert code == 0 and output.count("2.0") == 2, output


def test_little_locked_memory_beside_rdma(image: Image, containers: MAKE, tmp_path: Path) -> None:
    """Docker's default of 64 KiB, on a machine with such a card."""
    devices = tmp_path / "class"
    (devices / "infiniband" / "mlx5_0").mkdir(parents=True)
    container = containers(image, memlock=1 << 16, volumes={"/sys/class": devices})
    code, output = container.run("echo", "runs")
    assert code == 0
    warning = r"\[smdp\] warning: this machine has mlx5_0, but at most 64 KiB of memory may be locked .*\n"
    assert re.fullmatch(warning + "runs\n", output), output


def test_an_unknown_host_is_named(image: Image, containers: MAKE, tmp_path: Path) -> None:
    folder = tmp_path / "mpi"
    folder.mkdir()
    (folder / "hostfile").write_text("localhost slots=1\nno-such-host.invalid slots=1\n")
    container = containers(image, volumes={"/etc/mpi": folder})
    variables = {"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"}
    begin = time.monotonic()
    code, output = container.run("mpirun", "-n", "2", "true", environ=variables)
    assert code == 78
    assert "'no-such-host.invalid' (line 2 of /etc/mpi/hostfile)" in output
    assert time.monotonic() - begin < 100


def test_a_folder_that_holds_no_key_of_ours(image: Image, containers: MAKE, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o755)
    (keys / "id_ed25519").write_text("of somebody else")
    (keys / "id_ed25519").chmod(0o600)  # root's
    code, output = containers(image, volumes={"/home/mpiuser/.ssh": keys}).run("sshd")
    assert code == 78
    assert (
        "user 1000 may not read the mounted key /home/mpiuser/.ssh/id_ed25519 (owner 0, mode 600)" in output
    )
    shutil.rmtree(keys)
