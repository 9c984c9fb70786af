"""Images of ours, built and unpacked."""

from __future__ import annotations

import subprocess

from buildah import ROOT, Storage

SIZES: list[str] = []


class Image:
    """An image of ours: its tag, files, configuration, and what its build printed."""

    def __init__(self, storage: Storage, name: str, tag: str, output: str) -> None:
        self.storage, self.name, self.tag, self.output = storage, name, tag, output
        self.config = storage.config(tag)
        self.root = storage.files(tag)
        done = subprocess.run(["du", "-sm", str(self.root)], check=True, capture_output=True, text=True)
        SIZES.append(f"{tag}: {done.stdout.split()[0]} MB")


def build(storage: Storage, name: str, target: str, tag: str, *words: str, **arguments: str) -> Image:
    dockerfile = ROOT / "containers" / "Dockerfile"
    output = storage.build(dockerfile, tag, "--target", target, *words, FRAMEWORK=name, **arguments)
    print(output)
    return Image(storage, name, tag, output)
