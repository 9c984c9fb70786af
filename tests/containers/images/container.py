"""A container of an image without an engine: namespaces of mounts, processes, IPC, and a root of its own.

What the image's configuration says holds: variables, user, folder, entry point. The root is an overlay, so
that containers of one image see nothing of each other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

# $1 lower, $2 work, $3 size of /dev/shm, $4 volumes, $5 host name, then the command. The mounts go with the
# namespace.
_SETUP = """
set -eu
lower=$1; work=$2; shm=$3; volumes=$4; hostname "$5"; shift 5
root=$work/root
mkdir -p "$work/upper" "$work/scratch" "$root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/scratch" "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o "size=$shm,mode=1777" tmpfs "$root/dev/shm"
mkdir -p "$root/dev/pts" && mount --bind /dev/pts "$root/dev/pts"
for file in /etc/hosts /etc/resolv.conf; do cat "$file" >"$root$file"; done
for volume in $volumes; do
  source=${volume%%:*} target=$root${volume#*:}
  mkdir -p "$target"
  mount --bind "$source" "$target"
done
exec "$@"
"""


class Container:
    """One run of an image.

    Args:
        root: The image's files.
        config: Its configuration, as `buildah inspect` gives it.
        work: A folder for what the container writes.
        shm: Size of /dev/shm, as tmpfs spells it.
        memlock: Most bytes of locked memory, None for this machine's.
        volumes: Folders of this machine, by where they are in the container.
        hostname: Its name, which mpirun takes for that of the host it runs on.
        prefix: A command that all runs under, such as `ip netns exec NAME`.
    """

    def __init__(
        self,
        root: Path,
        config: dict[str, Any],
        work: Path,
        *,
        shm: str = "2g",
        memlock: int | None = None,
        volumes: Mapping[str, Path] = MappingProxyType({}),
        hostname: str = "container",
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.root, self.config, self.shm, self.memlock, self.prefix = root, config, shm, memlock, prefix
        self.hostname = hostname
        self.work = work / uuid.uuid4().hex[:8]
        self.volumes = " ".join(f"{path}:{target}" for target, path in volumes.items())
        self.work.mkdir(parents=True)

    def start(
        self,
        *command: str,
        environ: Mapping[str, str] = MappingProxyType({}),
        user: str | None = None,
        entrypoint: bool = True,
    ) -> subprocess.Popen[str]:
        """Start a container on a command; the process that is given has its exit code."""
        variables = [*self.config["Env"], *(f"{name}={value}" for name, value in environ.items())]
        words = [*(self.config["Entrypoint"] if entrypoint else []), *command]
        inside = ["env", "-i", "-C", self.config["WorkingDir"] or "/", *variables, *words]
        user = user or self.config["User"] or "0"
        limits = [] if self.memlock is None else ["prlimit", f"--memlock={self.memlock}:{self.memlock}"]
        setup = [
            "sh",
            "-c",
            _SETUP,
            "sh",
            str(self.root),
            str(self.work),
            self.shm,
            self.volumes,
            self.hostname,
        ]
        change = ["chroot", f"--userspec={user}:{user}", "--groups=", str(self.work / "root")]
        spaces = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork"]
        return subprocess.Popen(
            [*self.prefix, *spaces, *setup, *limits, *change, *inside],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def run(self, *command: str, timeout_s: float = 300, **options: Any) -> tuple[int, str]:
        """Run a command to its end; give its exit code and what it wrote."""
        process = self.start(*command, **options)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        finally:
            self.kill(process)
        return process.returncode, output

    @staticmethod
    def signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
        """Send a signal to the container's first process, as `docker stop` does."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), number)

    @classmethod
    def kill(cls, process: subprocess.Popen[str]) -> None:
        """End a container that still runs; with its first process go all others."""
        if process.poll() is None:
            with contextlib.suppress(OSError, IndexError):
                cls.signal(process, signal.SIGKILL)
        process.communicate()

    def remove(self) -> None:
        """Forget what the container wrote."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.work)
