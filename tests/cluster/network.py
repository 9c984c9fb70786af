"""Hosts on one machine: network namespaces on a bridge; links can be shaped, counted and cut. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
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
    """`hosts` namespaces. Host i is 10.77.k.(i + 1), or fd77:k::(i + 1), on its interface eth<k>.

    Args:
        hosts: How many.
        rate: Of every link, as tc spells it, or one per host; None for unlimited.
        rails: Interfaces of a host, each on a bridge of its own.
        ipv6: Whether hosts have IPv6 addresses only.
        names: Give each host a hosts file: "node<i>" is host i, but 127.0.1.1 to itself, as Debian does it.
            Or, for each host, its name or names, by which all know it, itself too, as in Kubernetes; the
            first one is what it takes for its own.
    """

    def __init__(
        self,
        hosts: int,
        rate: str | list[str] | None = None,
        *,
        rails: int = 1,
        ipv6: bool = False,
        names: bool | Sequence[str | list[str]] = False,
    ) -> None:
        self.hosts = hosts
        self.rates = [rate] * hosts if rate is None or isinstance(rate, str) else rate
        self.rails = rails
        self.ipv6 = ipv6
        self.names = names
        self.key = uuid.uuid4().hex[:6]
        self.switch = f"smdp{self.key}s"
        self.started: list[subprocess.Popen[str]] = []

    def name(self, host: int) -> str:
        return f"smdp{self.key}{host}"

    def address(self, host: int, rail: int = 0) -> str:
        return f"fd77:{rail}::{host + 1}" if self.ipv6 else f"10.77.{rail}.{host + 1}"

    def __enter__(self) -> Cluster:
        try:
            # The bridges live in a namespace of their own, so that nothing of this machine is touched.
            sh("ip", "netns", "add", self.switch)
            for host in range(self.hosts):
                sh("ip", "netns", "add", self.name(host))
                sh("ip", "-n", self.name(host), "link", "set", "lo", "up")
                if self.names:
                    self._write_hosts(host)
            for rail in range(self.rails):
                bridge = f"br{rail}"
                sh("ip", "-n", self.switch, "link", "add", bridge, "type", "bridge")
                sh("ip", "-n", self.switch, "link", "set", bridge, "up")
                for host in range(self.hosts):
                    self._connect(host, rail)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self, host: int, rail: int) -> None:
        name, port, device = self.name(host), f"port{host}.{rail}", f"eth{rail}"
        veth = ("type", "veth", "peer", "name", device, "netns", name)
        sh("ip", "-n", self.switch, "link", "add", port, *veth)
        sh("ip", "-n", self.switch, "link", "set", port, "master", f"br{rail}", "up")
        address = f"{self.address(host, rail)}/{64 if self.ipv6 else 24}"
        # nodad: an IPv6 address is usable at once.
        options = ("nodad",) if self.ipv6 else ()
        sh("ip", "-n", name, "addr", "add", address, "dev", device, *options)
        sh("ip", "-n", name, "link", "set", device, "up")
        rate = self.rates[host]
        if rate is not None:
            # A burst of 1 ms at 1 Gbit/s; 20 ms of queue, as a switch would have.
            for where, end in ((name, device), (self.switch, port)):
                sh("tc", "-n", where, "qdisc", "add", "dev", end, "root", "tbf",
                   "rate", rate, "burst", "128kb", "latency", "20ms")  # fmt: skip

    def _hosts_file(self, host: int) -> Path:
        return Path("/etc/netns") / self.name(host) / "hosts"

    def _write_hosts(self, host: int) -> None:
        file = self._hosts_file(host)  # `ip netns exec` shows it as /etc/hosts
        file.parent.mkdir(parents=True)
        self.publish(host, *range(self.hosts))

    def publish(self, host: int, *others: int) -> None:
        """Let a host know the names of these hosts, and no others but its own."""
        lines = ["127.0.0.1 localhost"]
        for other in sorted({host, *others}):
            if isinstance(self.names, Sequence):
                known = self.names[other]
                lines.append(" ".join([self.address(other), *([known] if isinstance(known, str) else known)]))
            else:
                lines.append(f"{'127.0.1.1' if other == host else self.address(other)} node{other}")
        self._hosts_file(host).write_text("\n".join(lines) + "\n")

    def __exit__(self, *_: object) -> None:
        # A server's children may outlive it, and keep its output open.
        for host in range(self.hosts):
            found = subprocess.run(
                ["ip", "netns", "pids", self.name(host)], capture_output=True, text=True, check=False
            )
            for pid in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for host in range(self.hosts):
            subprocess.run(["ip", "netns", "del", self.name(host)], capture_output=True, check=False)
            if self.names:
                shutil.rmtree(self._hosts_file(host).parent, ignore_errors=True)
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
        for rail in range(self.rails):
            sh("ip", "-n", self.switch, "link", "set", f"port{host}.{rail}", "nomaster")

    def bytes_sent(self, host: int, rail: int = 0) -> int:
        counter = f"/sys/class/net/eth{rail}/statistics/tx_bytes"
        return int(sh("ip", "netns", "exec", self.name(host), "cat", counter))
