"""The entry point and its parts, run as they are, without a container."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

COMMON = Path(__file__).resolve().parents[2] / "containers" / "common"
needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen on this machine")


def bash(script: str, *arguments: str, environ: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-euo", "pipefail", "-c", script, "bash", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ}, timeout=60)


def entrypoint(*arguments: str, environ: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    return bash('exec "$@"', str(COMMON / "entrypoint.sh"), *arguments, environ=environ)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 64, "without a command, so no rank runs. Add one after the image: `smdp run -n RANKS"),
        (["--sshd"], 64, "without a command, so no rank runs"),
        (["-n", "2", "train.py"], 64, "-n is not a command; the only option of this container is --sshd"),
        (["train.py", "--epochs", "3"], 127, "start its ranks with `smdp run -n RANKS train.py --epochs 3`"),
        (["no-such-program"], 127, "the program no-such-program does not exist in this image (PATH="),
        (["sshd", "-p", "22"], 64, "sshd takes no arguments here, but got: -p 22"),
    ],
)  # fmt: skip
def test_a_wrong_command_is_a_clear_error(arguments: list[str], code: int, message: str) -> None:
    done = entrypoint(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert done.stdout == ""


def test_the_command_takes_the_place_of_the_script() -> None:
    """So that it gets the signals, and its exit code is the container's."""
    done = entrypoint("bash", "-c", "echo $$ $PPID; exit 7")
    assert done.returncode == 7
    pid, parent = map(int, done.stdout.split())
    assert parent == os.getpid() and pid != parent
    done = entrypoint("bash", "-c", "kill -TERM $$; sleep 5")
    assert done.returncode == -signal.SIGTERM


def test_no_warning_without_a_reason() -> None:
    done = bash(
        '. "$1/say.sh"; . "$1/limits.sh"; shm_enough_kib=0; warn_shm /; warn_memlock 64 /no/such', str(COMMON)
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("directory", ["/", "/no/such"])
def test_little_shared_memory_is_one_warning_that_names_the_cost(directory: str) -> None:
    script = '. "$1/say.sh"; . "$1/limits.sh"; shm_enough_kib=$((1 << 50)); warn_shm "$2"'
    done = bash(script, str(COMMON), directory)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert f"warning: {directory} has " in done.stderr
    assert (
        "smdp does not use it" in done.stderr and "bus error" in done.stderr and "--shm-size" in done.stderr
    )


def test_little_locked_memory_matters_only_beside_rdma(tmp_path: Path) -> None:
    script = '. "$1/say.sh"; . "$1/limits.sh"; warn_memlock "$2" "$3"'
    assert bash(script, str(COMMON), "64", str(tmp_path)).stderr == ""
    (tmp_path / "mlx5_0").mkdir()
    (tmp_path / "mlx5_1").mkdir()
    assert bash(script, str(COMMON), "unlimited", str(tmp_path)).stderr == ""
    done = bash(script, str(COMMON), "64", str(tmp_path))
    assert done.stderr.count("\n") == 1
    assert "this machine has mlx5_0 mlx5_1, but at most 64 KiB" in done.stderr
    assert "several times slower" in done.stderr and "--ulimit memlock=-1" in done.stderr


def ssh_keys(home: Path, base: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {"HOME": str(home), "SAGEMAKER_BASE_DIR": str(base or home / "none")}
    return bash('exec "$1"', str(COMMON / "ssh_keys.sh"), environ=environ)


def make_key(directory: Path, name: str = "id_ed25519") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    key = directory / name
    command = ["ssh-keygen", "-q", "-t", name.removeprefix("id_"), "-N", "", "-C", "job", "-f", str(key)]
    subprocess.run(command, check=True)
    return key


@needs_ssh
def test_without_a_key_one_is_made_and_said(tmp_path: Path) -> None:
    done = ssh_keys(tmp_path)
    key = tmp_path / ".ssh" / "id_ed25519"
    assert (done.returncode, done.stdout) == (0, f"{key}\n")
    assert done.stderr.count("warning") == 1 and "only mpirun inside of it can log in" in done.stderr
    assert key.stat().st_mode & 0o777 == 0o600
    again = ssh_keys(tmp_path)
    assert (again.stdout, again.stderr) == (f"{key}\n", "")


@needs_ssh
def test_a_mounted_key_is_taken_as_it_is(tmp_path: Path) -> None:
    key = make_key(tmp_path / ".ssh", "id_rsa")
    before = key.read_bytes()
    done = ssh_keys(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{key}\n", "")
    assert key.read_bytes() == before
    hosts = bash('exec "$1"', str(COMMON / "known_hosts.sh"), environ={"HOME": str(tmp_path)})
    assert hosts.stdout == "* " + " ".join((tmp_path / ".ssh/id_rsa.pub").read_text().split()[:2]) + "\n"


@needs_ssh
def test_the_public_part_follows_from_the_private_one(tmp_path: Path) -> None:
    key = make_key(tmp_path / ".ssh")
    public = key.with_suffix(".pub")
    text = public.read_text()
    public.unlink()
    assert ssh_keys(tmp_path).returncode == 0
    assert public.read_text().split()[:2] == text.split()[:2]


@needs_ssh
def test_a_key_that_ssh_would_refuse_is_refused_first(tmp_path: Path) -> None:
    key = make_key(tmp_path / ".ssh")
    key.chmod(0o644)
    done = ssh_keys(tmp_path)
    assert done.returncode == 78
    assert "is accessible to others (mode 644)" in done.stderr and "chmod 600" in done.stderr


@needs_ssh
def test_the_key_of_a_sagemaker_job_comes_as_a_channel(tmp_path: Path) -> None:
    given = make_key(tmp_path / "ml" / "input" / "data" / "ssh")
    given.chmod(0o644)  # as files of a channel are
    done = ssh_keys(tmp_path / "home", tmp_path / "ml")
    key = tmp_path / "home" / ".ssh" / "id_ed25519"
    assert (done.returncode, done.stdout) == (0, f"{key}\n")
    assert key.read_bytes() == given.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
