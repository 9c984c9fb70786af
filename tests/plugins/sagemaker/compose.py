"""`docker compose up` without Docker: a service is a process in a network and a mount namespace of its own.

It stands in for Docker in the SDK's local mode: the image is this machine, volumes are mounted where the
compose file has them, and services reach each other by their aliases. As root.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from threading import Thread

import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))
from network import Cluster


def container(service: dict[str, list[str]]) -> str:
    """The shell commands of a service: /opt is its own, and has the volumes in it."""
    lines = ["set -e", "mount -t tmpfs none /opt"]
    for volume in sorted(service["volumes"], key=lambda text: text.split(":")[1]):
        source, target = volume.split(":")[:2]
        os.makedirs(source, exist_ok=True)
        lines += [f"mkdir -p {target}", f"mount --bind {shlex.quote(source)} {target}"]
    return "\n".join([*lines, "exec " + shlex.join(service["entrypoint"])])


def up(path: str) -> int:
    services = yaml.safe_load(Path(path).read_text())["services"]
    with Cluster(len(services), names=list(services)) as cluster:
        processes = [
            cluster.start(
                number,
                ["sh", "-c", container(service)],
                dict(variable.split("=", 1) for variable in service["environment"]),
            )
            for number, service in enumerate(services.values())
        ]
        readers = [Thread(target=show, args=pair) for pair in zip(services, processes, strict=True)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return max(process.wait() for process in processes)


def show(name: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{name}  | {line.rstrip()}", flush=True)


if sys.argv[1:] == ["compose", "version"]:
    print("Docker Compose version v2.0")
else:
    assert sys.argv[1:3] == ["compose", "-f"] and sys.argv[4] == "up", sys.argv
    sys.exit(up(sys.argv[3]))
