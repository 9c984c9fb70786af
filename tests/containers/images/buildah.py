"""Images built by buildah, without a Docker engine: chroot isolation, vfs, a storage of the test's own."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SUITE = "bookworm"


def why_not() -> str | None:
    """The reason why no image can be built here; None if one can."""
    if os.geteuid() != 0:
        return "building images by chroot needs root"
    for program in ("buildah", "mmdebstrap", "unshare"):
        if shutil.which(program) is None:
            return f"no {program} on this machine"
    return None


class Storage:
    """Images in `directory`, and what the builds take from this machine: where pip and apt fetch from."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pip_conf = directory / "pip.conf"
        self.volumes = self._use_pip_of_this_machine()
        self.pip_conf_cuda = self._without_builds_for_cpus()
        self.printed: dict[str, str] = {}  # by the first build of each tag: later ones may be of the cache

    def buildah(self, *words: str, timeout_s: float = 3600, stderr: int | None = None) -> str:
        """Run buildah and give its output."""
        places = ("--root", str(self.directory / "root"), "--runroot", str(self.directory / "run"))
        command = ["buildah", "--storage-driver", "vfs", *places, *words]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=timeout_s, cwd=ROOT
        )
        if done.returncode:
            raise BuildError(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout[-8000:]}")
        return done.stdout

    def base(self) -> str:
        """Make a base image by mmdebstrap, as small as Debian goes; without Python."""
        folder = self.directory / "base"
        folder.mkdir()
        sources = Path("/etc/apt/sources.list.d/debian.sources")
        own = [str(sources)] if sources.exists() and SUITE in sources.read_text() else []
        archive = folder / "base.tar"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", SUITE]
        subprocess.run([*command, str(archive), *own], check=True, timeout=1800)
        (folder / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        self.build(folder / "Dockerfile", "smdp-base", context=folder)
        archive.unlink()
        return "localhost/smdp-base"

    def build(self, dockerfile: Path, tag: str, *words: str, context: Path = ROOT, **arguments: str) -> str:
        """Build a Dockerfile, as `docker build` would, with build arguments; give what was printed.

        Each layer is a copy of all files. `--layers=false` makes fewer of them, and none for later builds.
        """
        command = ["build", "--isolation", "chroot", "--format", "docker", "--layers"]
        command += [f"--volume={volume}:{volume}:ro" for volume in self.volumes]
        pip_conf = self.pip_conf_cuda if arguments.get("CUDA") == "1" else self.pip_conf
        command += [f"--secret=id=pip.conf,src={pip_conf}"]
        command += [f"--build-arg={name}={value}" for name, value in arguments.items()]
        command += ["--tag", tag, "--file", str(dockerfile), *words, str(context)]
        output = self.buildah(*command, stderr=subprocess.STDOUT)
        self.printed.setdefault(tag, output)
        return output

    def config(self, tag: str) -> dict[str, Any]:
        """The configuration of an image: Env, User, Entrypoint, Labels, Healthcheck, WorkingDir."""
        found = json.loads(self.buildah("inspect", "--type", "image", tag))
        config: dict[str, Any] = found["Docker"]["config"]
        return config

    def files(self, tag: str) -> Path:
        """The files of an image, to be read only: those of its last layer, which has all under vfs."""
        images = json.loads((self.directory / "root" / "vfs-images" / "images.json").read_text())
        (layer,) = (each["layer"] for each in images if f"localhost/{tag}:latest" in each.get("names", ()))
        return self.directory / "root" / "vfs" / "dir" / str(layer)

    def remove(self, tag: str) -> None:
        """Remove an image, and what no other one needs of it."""
        self.buildah("rmi", tag)

    def _use_pip_of_this_machine(self) -> list[str]:
        """Write pip's settings, from its files and variables, into a file; give the folders they name."""
        done = subprocess.run(
            ["python3", "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
        )
        settings = {}
        for line in done.stdout.splitlines():
            name, _, value = line.partition("=")
            settings[name.rpartition(".")[2]] = value.strip("'\"").replace("%", "%%")
        parser = configparser.ConfigParser()
        parser["global"] = settings
        with self.pip_conf.open("w") as file:
            parser.write(file)
        paths = re.findall(r"(?:^|\s|file://)(/[^\s']+)", "\n".join(settings.values()))
        folders = {Path(path) if Path(path).is_dir() else Path(path).parent for path in paths}
        # An index of files is a folder with links into its neighbours.
        folders = {folder.parent if folder.name == "simple" else folder for folder in folders}
        return sorted(str(folder) for folder in folders if folder.is_dir())

    def _without_builds_for_cpus(self) -> Path:
        """Write pip's settings less the indexes beside the first one, as the error of CUDA=1 advises."""
        parser = configparser.RawConfigParser()
        parser.read(self.pip_conf)
        for name in ("extra-index-url", "find-links"):
            parser.remove_option("global", name)
        path = self.directory / "pip-cuda.conf"
        with path.open("w") as file:
            parser.write(file)
        return path


class BuildError(Exception):
    """buildah failed; the end of its output."""
