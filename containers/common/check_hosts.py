#!/usr/bin/env python3
"""Waits until every host of an mpirun has an address, before mpirun starts.

    check_hosts.py mpirun ARGUMENT...

The hosts are those of --hostfile, --machinefile or --host, or those of the default host file that a parameter
or a variable names. The wait is needed because containers of a job get their names one after the other. If a
host still has no address, the exit code is 78.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

WAIT_S = 60.0
_FILE_OPTIONS = ("hostfile", "machinefile", "default-hostfile")
_LIST_OPTIONS = ("host", "H")
_DEFAULT = "default-hostfile"
# Parameters of Open MPI 4 and 5 that are the same as --default-hostfile, and their variables.
_PARAMETERS = {
    "orte_default_hostfile": "OMPI_MCA_orte_default_hostfile",
    "prte_default_hostfile": "PRTE_MCA_prte_default_hostfile",
}
# The number of values of the options of Open MPI 4 or 5. A value is not the program, even if it has its name.
_ONE_WORD = """
    H N c n np x am app add-host add-hostfile append-env app-pmix-prefix bind-to cartofile cf cpu-list cpu-set
    cpus-per-proc cpus-per-rank debugger default-hostfile display dvm-uri forward-signals gpu-support hnp host
    hostfile keepalive launch-agent machinefile map-by max-restarts max-vm-size npernode npersocket
    ompi-server output output-filename path personality pmix-prefix ppr prefix preload-files pset rank-by
    rankfile report-events report-pid report-uri rf runtime-options singleton spawn-timeout stdin timeout
    tmpdir tune unset-env wd wdir xml-file xterm
"""
_TWO_WORDS = "mca gmca omca gomca prtemca gprtemca pmixmca gpmixmca"
_WORDS = {**dict.fromkeys(_ONE_WORD.split(), 1), **dict.fromkeys(_TWO_WORDS.split(), 2)}


class HostsError(Exception):
    """An error in the list of hosts, with its place and what to do."""


def hosts_of_file(path: str) -> list[tuple[str, str]]:
    """Returns the hosts of an Open MPI host file, each with its place in the file.

    Raises:
        HostsError: The file cannot be read, or lists no host.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HostsError(f"the host file {path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if words := line.partition("#")[0].split():
            found.append((words[0].rpartition("@")[2].strip("[]"), f"line {number} of {path}"))
    if not found:
        raise HostsError(
            f"the host file {path} lists no hosts, so there are no ranks: write one line per host,"
            " `NAME slots=RANKS`"
        )
    return [host for host in found if _is_name(host[0])]


def hosts_of(arguments: Sequence[str], environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the hosts of an mpirun command line, each with its place."""
    found: list[tuple[str, str]] = []
    has_option = False
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            if shutil.which(word):
                break  # the program of the ranks; its own arguments follow
            continue
        name, has_value, value = word.partition("=")
        option = name.lstrip("-")
        values = [value] if has_value else [next(words, "") for _ in range(_WORDS.get(option, 0))]
        if len(values) == 2 and values[0] in _PARAMETERS:  # --mca NAME VALUE
            option, value = _DEFAULT, values[1]
        elif option in _FILE_OPTIONS + _LIST_OPTIONS:
            value = values[0]
        else:
            continue
        has_option = True
        if option in _LIST_OPTIONS:
            hosts = [(_without_slots(host), f"{name} {value}") for host in value.split(",") if host]
            found += [host for host in hosts if _is_name(host[0])]
        elif option != _DEFAULT or value != "none":
            found += hosts_of_file(value)
    if not has_option:
        for variable in _PARAMETERS.values():
            if environ.get(variable, "none") not in ("", "none"):  # "none" is Open MPI's value for no file
                found += hosts_of_file(environ[variable])
    return found


def _without_slots(host: str) -> str:
    """Returns the name in an entry of --host, such as node:2, [fd00::1]:2 or fd00::1."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def _is_name(host: str) -> bool:
    """Returns whether this is a host and not a rule of Open MPI for other hosts, such as +n0 or ^node."""
    return not host.startswith(("+", "^"))


def wait_for(hosts: Sequence[tuple[str, str]], wait_s: float = WAIT_S) -> None:
    """Waits until every host has an address.

    Raises:
        HostsError: Some hosts have no address after `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    missing = [host for host in hosts if not _has_address(host[0])]
    if missing:
        names = ", ".join(name for name, _ in missing)
        print(f"[smdp] waiting up to {wait_s:g} s for the addresses of {names}", file=sys.stderr, flush=True)
    while missing and time.monotonic() < deadline:
        time.sleep(min(1.0, wait_s))
        missing = [host for host in missing if not _has_address(host[0])]
    if missing:
        places = "; ".join(f"{name!r} ({place})" for name, place in missing)
        raise HostsError(
            f"{len(missing)} of {len(hosts)} hosts have no address after {wait_s:g} s: {places}. Correct the "
            "names, or let the containers resolve each other (Docker: one network; Kubernetes: a headless "
            "service with publishNotReadyAddresses)"
        )


def _has_address(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


if __name__ == "__main__":
    try:
        wait_for(hosts_of(sys.argv[2:], os.environ))
    except HostsError as error:
        print(f"[smdp] {error}.", file=sys.stderr)
        sys.exit(78)
