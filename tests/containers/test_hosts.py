"""Hosts of mpirun are looked at before it starts: an unknown one is named, a late one is waited for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "containers" / "common"))
import check_hosts

COMMON = Path(check_hosts.__file__).parent


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def names(arguments: list[str], environ: dict[str, str] | None = None) -> list[str]:
    return [name for name, _ in check_hosts.hosts_of(arguments, environ or {})]


def test_hosts_of_a_command_line(tmp_path: Path) -> None:
    file = write(
        tmp_path / "hosts", "# of the job", "a slots=2", "", "user@b slots=4  # late", "c max_slots=1"
    )
    assert names(["-n", "4", "--hostfile", file, "python"]) == ["a", "b", "c"]
    assert names([f"--machinefile={file}"]) == ["a", "b", "c"]
    assert names(["-H", "x:2,y", "-n", "2"]) == ["x", "y"]
    assert names(["-n", "2"], {"OMPI_MCA_orte_default_hostfile": file}) == ["a", "b", "c"]
    assert names(["-H", "x"], {"OMPI_MCA_orte_default_hostfile": file}) == ["x"]
    assert names(["-n", "2", "bash", "serve", "--host", "elsewhere"]) == []
    assert names(["-n", "2"]) == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [(None, "cannot be read: "), (("# nobody",), "names no host, so there are no ranks")],
)
def test_a_hosts_file_that_names_nobody(tmp_path: Path, lines: tuple[str, ...] | None, message: str) -> None:
    path = tmp_path / "hosts"
    if lines is not None:
        write(path, *lines)
    with pytest.raises(check_hosts.HostsError, match=message):
        check_hosts.hosts_of(["--hostfile", str(path)], {})


def test_an_unknown_host_is_named_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path / "hosts", "localhost slots=1", "no-such-host.invalid slots=1")
    hosts = check_hosts.hosts_of(["--hostfile", file], {})
    with pytest.raises(check_hosts.HostsError) as caught:
        check_hosts.wait_for(hosts, wait_s=0.1)
    message = str(caught.value)
    assert message.startswith(
        f"1 of 2 hosts have no address after 0.1 s: 'no-such-host.invalid' (line 2 of {file})"
    )
    assert "headless service" in message


def test_a_late_host_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr(check_hosts, "_has_address", lambda _: next(answers))
    check_hosts.wait_for([("late", "line 1 of hosts")], wait_s=30)
    assert capsys.readouterr().err == "[smdp] waiting up to 30 s for the addresses of late\n"


def test_the_program_ends_with_a_line_and_a_code(tmp_path: Path) -> None:
    command = [sys.executable, str(COMMON / "check_hosts.py"), "mpirun", "--hostfile", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 78
    assert done.stderr.startswith("[smdp] the hosts file ") and done.stderr.count("\n") == 1
    command[2:] = ["mpirun", "-H", "localhost"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
