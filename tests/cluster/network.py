"""Hosts on one machine: network namespaces on a bridge; links can be shaped, counted and cut. Needs root."""

from __future__ import annotations

import os
import subprocess
import uuid
from typing import Any


def sh(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def why_not() -> str | None:
    """The reason why no cluster can be made here; None if it can."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    try:
        with Cluster(1):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces here: {error}"


class Cluster:
    """`hosts` namespaces; host i has the address 10.77.0.(i + 1)."""

    def __init__(self, hosts: int, rate: str | None = None) -> None:
        self.hosts = hosts
        self.rate = rate
        self.key = uuid.uuid4().hex[:6]
        self.switch = f"smdp{self.key}s"
        self.started: list[subprocess.Popen[str]] = []

    def name(self, host: int) -> str:
        return f"smdp{self.key}{host}"

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def __enter__(self) -> Cluster:
        try:
            # The bridge lives in a namespace of its own, so that nothing of this machine is touched.
            sh("ip", "netns", "add", self.switch)
            sh("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
            sh("ip", "-n", self.switch, "link", "set", "br0", "up")
            for host in range(self.hosts):
                name, port = self.name(host), f"port{host}"
                sh("ip", "netns", "add", name)
                sh(
                    "ip",
                    "-n",
                    self.switch,
                    "link",
                    "add",
                    port,
                    "type",
                    "veth",
                    "peer",
                    "name",
                    "eth0",
                    "netns",
                    name,
                )
                sh("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up")
                sh("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
                sh("ip", "-n", name, "link", "set", "eth0", "up")
                sh("ip", "-n", name, "link", "set", "lo", "up")
                if self.rate is not None:
                    # A burst of 1 ms at 1 Gbit/s; 20 ms of queue, as a switch would have.
                    for where, device in ((name, "eth0"), (self.switch, port)):
                        sh("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf",
                           "rate", self.rate, "burst", "128kb", "latency", "20ms")  # fmt: skip
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for host in range(self.hosts):
            subprocess.run(["ip", "netns", "del", self.name(host)], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.switch], capture_output=True, check=False)

    def start(self, host: int, command: list[str], environ: dict[str, str]) -> subprocess.Popen[Any]:
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name(host), *command],
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def cut(self, host: int) -> None:
        """Drop all that goes to and from a host, without a word to either side."""
        sh("ip", "-n", self.switch, "link", "set", f"port{host}", "nomaster")

    def bytes_sent(self, host: int) -> int:
        return int(
            sh("ip", "netns", "exec", self.name(host), "cat", "/sys/class/net/eth0/statistics/tx_bytes")
        )
