"""Hosts of mpirun are looked at before it starts: an unknown one is named, a late one is waited for."""

from __future__ import annotations

import os
import re
import shutil
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


def test_a_value_of_an_option_is_not_the_program(tmp_path: Path) -> None:
    """bash and env are programs here, but mpirun does not start them as ranks."""
    file = write(tmp_path / "hosts", "a", "b")
    assert names(["--mca", "plm_rsh_agent", "bash", "-H", "x"]) == ["x"]
    assert names(["-x", "env", "-H", "x"]) == ["x"]
    assert names(["--prefix", "/usr", "--bind-to", "env", "-hostfile", file, "env", "-H", "no"]) == ["a", "b"]
    assert names(["-n", "2", "env", "-x", "bash", "-H", "no"]) == []


def test_a_default_hosts_file(tmp_path: Path) -> None:
    file = write(tmp_path / "hosts", "a", "b")
    variable = {"OMPI_MCA_orte_default_hostfile": file}
    assert names(["--mca", "orte_default_hostfile", file, "bash"]) == ["a", "b"]
    assert names(["--prtemca", "prte_default_hostfile", file, "bash"]) == ["a", "b"]
    assert names(["--default-hostfile", "none", "-n", "2", "bash"], variable) == []
    assert names(["--mca", "orte_default_hostfile", "none", "bash"], variable) == []
    assert names(["-n", "2", "bash"], {"OMPI_MCA_orte_default_hostfile": "none"}) == []


def test_addresses_and_rules(tmp_path: Path) -> None:
    """IPv6 with and without slots; what Open MPI takes for a rule about other hosts is no name."""
    assert names(["-H", "[fd00::1]:2,fd00::2,10.0.0.1:4,+n1"]) == ["fd00::1", "fd00::2", "10.0.0.1"]
    file = write(tmp_path / "hosts", "[fd00::1] slots=2", "fd00::2", "+n0", "^c")
    assert names(["--hostfile", file]) == ["fd00::1", "fd00::2"]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_every_option_of_this_mpirun_with_a_value_is_known() -> None:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ["mpirun", "--help", "all"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **root}, timeout=60)
    found = re.findall(r"^\s*(-\S+) ((?:<arg\d>)(?: <arg\d>)?)", done.stdout + done.stderr, re.MULTILINE)
    if not found:
        pytest.skip("this mpirun has no such help")
    for spellings, values in found:
        for option in {spelling.lstrip("-") for spelling in spellings.split("|")} - {"h", "help"}:
            assert check_hosts._WORDS.get(option) == values.count("<"), option


@pytest.mark.parametrize(
    ("lines", "message"),
    [(None, "cannot be read: "), (("# nobody",), "lists no hosts, so there are no ranks")],
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
    assert done.stderr.startswith("[smdp] the host file ") and done.stderr.count("\n") == 1
    command[2:] = ["mpirun", "-H", "localhost"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
