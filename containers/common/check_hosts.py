#!/usr/bin/env python3
"""Check that every host of an mpirun has an address before it starts; wait for those that have none yet.

    check_hosts.py mpirun ARGUMENT...

The hosts are those of --hostfile, --machinefile, --host or OMPI_MCA_orte_default_hostfile. Containers of a
job get their names one after the other, hence the wait. Then a host without an address is an error: exit code
78.
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
_VARIABLES = ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")


class HostsError(Exception):
    """What is wrong, where, and what to do."""


def hosts_of_file(path: str) -> list[tuple[str, str]]:
    """Give the hosts of a hosts file of Open MPI's, each with the place where it stands.

    Raises:
        HostsError: The file cannot be read, or names no host.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HostsError(f"the hosts file {path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if words := line.partition("#")[0].split():
            found.append((words[0].rpartition("@")[2], f"line {number} of {path}"))
    if not found:
        raise HostsError(
            f"the hosts file {path} names no host, so there are no ranks: a line per host, `NAME slots=RANKS`"
        )
    return found


def hosts_of(arguments: Sequence[str], environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Give the hosts of a command line of mpirun's, each with the place where it stands."""
    found: list[tuple[str, str]] = []
    has_option = False
    values = iter(arguments)
    for argument in values:
        if not argument.startswith("-") and shutil.which(argument):
            break  # the program of the ranks: what follows is its own
        name, _, value = argument.partition("=")
        option = name.lstrip("-") if name.startswith("-") else ""
        if option not in _FILE_OPTIONS + _LIST_OPTIONS:
            continue
        has_option = True
        value = value or next(values, "")
        if option in _FILE_OPTIONS:
            found += hosts_of_file(value)
        else:
            found += [(host.partition(":")[0], f"{name} {value}") for host in value.split(",") if host]
    if not has_option:
        for path in filter(None, map(environ.get, _VARIABLES)):
            found += hosts_of_file(path)
    return found


def wait_for(hosts: Sequence[tuple[str, str]], wait_s: float = WAIT_S) -> None:
    """Wait until every host has an address.

    Raises:
        HostsError: Some had none within `wait_s` seconds.
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
