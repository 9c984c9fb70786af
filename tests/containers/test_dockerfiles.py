"""The Dockerfile pins what it takes, and holds no step that belongs into containers/common."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "containers"
IMAGES = ("pytorch", "tensorflow", "huggingface")


DOCKERFILE = (CONTAINERS / "Dockerfile").read_text()


def pins(path: Path) -> dict[str, str]:
    lines = (line.partition("#")[0].partition(";")[0].strip() for line in path.read_text().splitlines())
    found = dict(line.split("==") for line in lines if line and not line.startswith("-r "))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found.items()}


@pytest.mark.parametrize("image", IMAGES)
def test_every_framework_says_what_it_needs(image: str) -> None:
    assert (CONTAINERS / image / "requirements.txt").is_file()
    assert image in DOCKERFILE.splitlines()[0]


def test_targets_and_users() -> None:
    stages: dict[str, list[str]] = {}
    for line in DOCKERFILE.splitlines():
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            stages[match[2]] = [match[1]]
        elif stages and line.startswith("USER "):
            stages[list(stages)[-1]].append(line.split()[1])
    assert stages == {
        "builder": ["${BASE_IMAGE}", "0"],
        "runtime": ["${BASE_IMAGE}", "0", "1000"],
        "sagemaker": ["runtime", "0"],
    }


def test_the_version_in_the_label_is_that_of_the_package() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version and f'org.opencontainers.image.version="{version[1]}"' in DOCKERFILE


def test_the_default_base_is_one_version_of_a_public_image() -> None:
    base = re.search(r"^ARG BASE_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert base and re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base[1])


def test_every_requirement_is_pinned_once() -> None:
    constraints = pins(CONTAINERS / "common" / "constraints.txt")
    for path in sorted(CONTAINERS.glob("*/requirements*.txt")):
        found = pins(path)
        assert found, path
        assert all(re.fullmatch(r"\d[\w.]*", version) for version in found.values()), path
        shared = found.keys() & constraints.keys()
        assert {name: found[name] for name in shared} == {name: constraints[name] for name in shared}
        if path.name == "requirements.txt":
            assert not shared, f"{path} and constraints.txt both pin {sorted(shared)}"


def test_the_context_holds_what_the_builder_copies_and_no_more() -> None:
    """.dockerignore names all that COPY takes; everything else stays away, be it large or secret."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = set()
    for line in DOCKERFILE.splitlines():
        if line.startswith("COPY "):
            copied |= set(line.split()[1:-1])
    assert "*" in lines
    assert allowed == copied | {"containers"}


def builds() -> list[tuple[Path, str]]:
    """Every command that builds an image, in the pages and the Dockerfile, in one line."""
    paths = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), CONTAINERS / "Dockerfile"]
    found = []
    for path in paths:
        text = path.read_text().replace("\\\n", " ")
        found += [
            (path, command)
            for command in re.findall(r".*\b(?:docker|buildah)\b.*\bbuild .* \S+$", text, re.M)
        ]
    return found


@pytest.mark.parametrize(("path", "command"), builds())
def test_a_build_in_the_docs_names_what_is_there(path: Path, command: str) -> None:
    """The Dockerfile, its target, its arguments; and a context in which what it adds can be seen."""
    file = re.search(r" (?:-f|--file) (\S+)", command)
    assert file, command
    context = command.split()[-1]
    if file[1] == "-":
        assert context != ".", ".dockerignore hides all but the repository's own sources there"
        return
    text = (ROOT / file[1]).read_text()
    assert context == "."
    target = re.search(r" --target (\S+)", command)
    assert target and f" AS {target[1]}\n" in text
    for argument in re.findall(r" --build-arg (\w+)=", command):
        assert f"\nARG {argument}" in text


def test_the_pages_build_every_target() -> None:
    targets = {match[1] for _, command in builds() if (match := re.search(r" --target (\S+)", command))}
    assert targets == {"runtime", "sagemaker"}


def test_no_script_goes_unused() -> None:
    """What lies in containers/common is used by the Dockerfile or another script there."""
    scripts = [path for path in (CONTAINERS / "common").iterdir() if path.is_file()]
    texts = [path.read_text() for path in scripts] + [DOCKERFILE]
    for path in scripts:
        assert any(path.name in text for text in texts if text != path.read_text()), path.name
